"""Messages for the operating system's errors and for memory that ran out."""

from __future__ import annotations

import errno
import pickle
import weakref

import numpy as np
import pytest
import torch

from vgtools.io.errors import (
    DataError,
    Exit,
    about,
    amount,
    file_error,
    is_out_of_memory,
    make_room,
    plain,
)
from vgtools.io.names import base_of, public
from vgtools.io.process import command_line, note_command_line


def test_a_full_standard_output_is_named() -> None:
    error = file_error(OSError(errno.ENOSPC, "full"), "-", reading=False)
    assert str(error).startswith("standard output: cannot be written")


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("of a GPU"), True),
        (type("Derived", (torch.OutOfMemoryError,), {})("of a GPU"), True),
        (
            RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
            ),
            True,
        ),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("can't start new thread"), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory"), False),  # a row may say so
    ],
)
def test_out_of_memory_is_recognised(error: Exception, is_memory: bool) -> None:
    assert is_out_of_memory(error) == is_memory


def test_an_error_comes_whole_from_another_process() -> None:
    found = pickle.loads(pickle.dumps(DataError("full", "x.png", 3, Exit.IO)))
    assert (str(found), found.why, found.file, found.line, found.code) == (
        "x.png:3: full",
        "full",
        "x.png",
        3,
        Exit.IO,
    )


def test_one_thing_is_not_a_plural() -> None:
    assert [amount(n, "image") for n in (0, 1, 2000)] == ["0 images", "1 image", "2,000 images"]
    assert amount(2, "image or box", "images or boxes") == "2 images or boxes"


def test_terminal_escapes_in_messages_are_written_out() -> None:
    assert plain("a\x1b]8;;x\x07b\u202ec é") == "a\\x1b]8;;x\\x07b\\u202ec é"


def test_an_error_without_a_file_gets_the_one_it_is_about() -> None:
    for error, expected in (
        (DataError("why", code=Exit.USAGE), ("net: why", Exit.USAGE)),
        (DataError("why", "x", 3), ("x:3: why", Exit.DATA)),
        (MemoryError(), ("net: out of memory", Exit.CANNOT_CONTINUE)),
        (RuntimeError("you can't allocate memory"), ("net: out of memory", Exit.CANNOT_CONTINUE)),
    ):
        with pytest.raises(DataError) as caught, about("net"):
            raise error
        assert str(caught.value).startswith(expected[0])
        assert caught.value.code == expected[1]
    with pytest.raises(RuntimeError, match=r"^other$"), about("net"):
        raise RuntimeError("other")


@pytest.mark.parametrize(
    "why",
    [
        "libtorch_cpu.so: failed to map segment from shared object",
        "dlopen: cannot allocate memory in static TLS block",
    ],
)
def test_a_library_that_does_not_fit_is_a_lack_of_memory(why: str) -> None:
    assert is_out_of_memory(ImportError(why))
    wrapped = ImportError("numpy could not be imported")
    wrapped.__cause__ = ImportError(why)
    assert is_out_of_memory(wrapped)
    assert not is_out_of_memory(ImportError("No module named 'x'"))


def test_the_batch_that_did_not_fit_is_freed_before_the_cache_is_emptied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = list[weakref.ref[object]]()
    held = list[bool]()

    def network() -> None:
        batch = np.zeros(9)
        batches.append(weakref.ref(batch))
        raise MemoryError

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: held.append(batches[0]() is not None))
    try:
        network()
    except MemoryError as error:
        make_room(error)
    assert held == [False]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://u:secret@host/a.txt", "http://***@host/a.txt"),
        ("https://ghp_secret@host/a@b.txt", "https://***@host/a@b.txt"),
        ("https://host/a.txt?se=1&sig=secret%3D&n=2", "https://host/a.txt?se=1&sig=***&n=2"),
        ("https://host/a?X-Amz-Signature=secret", "https://host/a?X-Amz-Signature=***"),
        (
            "https://host/a?AWSAccessKeyId=secret&Expires=1",
            "https://host/a?AWSAccessKeyId=***&Expires=1",
        ),
        ("http://u:p@ss@host/a", "http://***@host/a"),
        ("https://host/a?m=a@b", "https://host/a?m=a@b"),
        ("https://host/a?key=AIzaSyA0123456789abcdef", "https://host/a?key=***"),
        ("https://host/a?key=images/1.npy", "https://host/a?key=images/1.npy"),
        ("https://host/a?keyword=dog&id=3", "https://host/a?keyword=dog&id=3"),
        ("hf://gpt2@main/a.txt", "hf://gpt2@main/a.txt"),
        ("s3://bucket/a@b:c@d.txt", "s3://bucket/a@b:c@d.txt"),
        ("a@b?key=c.txt", "a@b?key=c.txt"),
    ],
)
def test_passwords_in_urls_are_in_no_message_and_no_record(url: str, shown: str) -> None:
    error = DataError(f"is not at {url}", url)
    assert str(error) == f"{shown}: is not at {shown}"
    assert error.record() == {"file": shown, "line": None, "error": f"is not at {shown}"}
    assert public(url) == shown
    assert base_of(url) == shown.rpartition("/")[2]
    note_command_line(["vg", "stats", url])
    try:
        assert command_line() == ["vg", "stats", shown]
    finally:
        note_command_line(None)
