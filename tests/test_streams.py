"""One rule for JSON lines or text in a stream, and inputs that can be read only once."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import vg_command
from tests.tiny import lm as t
from tests.tiny import text
from vgtools.cli import run
from vgtools.commands.options import open_vocabulary
from vgtools.io.errors import DataError
from vgtools.io.files import compress, dumps
from vgtools.io.streams import read_lines, read_texts

ROWS = [{"image": f"image{i:03}", "text": line} for i, line in enumerate(text(12, longest=8))]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "x.jsonl").write_bytes(b"".join(map(dumps, ROWS)))
    (folder / "x.txt").write_text("".join(row["text"] + "\n" for row in ROWS))
    t.save_tokenizer(folder / "tok")
    t.save_shape(folder / "shape.json")
    return folder


@contextmanager
def fed(path: str | Path | int, content: bytes) -> Iterator[None]:
    """Write a content into a pipe, once, while the block runs."""

    def feed() -> None:
        with open(path, "wb") as stream:
            stream.write(content)

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    yield
    thread.join(10)


@contextmanager
def arriving(way: str, content: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give the name under which a content arrives: through standard input, `<(…)` or a FIFO."""
    if way.endswith(".gz"):
        content = gzip.compress(content)
    if way.startswith("-"):
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(content)))
        yield "-"
    elif way.startswith("<("):
        reader, writer = os.pipe()
        with fed(writer, content):
            yield f"/dev/fd/{reader}"
        os.close(reader)
    else:
        os.mkfifo(folder / way)
        with fed(folder / way, content):
            yield str(folder / way)


WAYS = ["-", "-.gz", "<()", "<().gz", "pipe", "pipe.txt", "pipe.gz"]


def vokenize(tiny: Path, data: Path, name: str, out: Path) -> Any:
    index = ["--index", str(tiny / "vg.faiss"), "--device", "cpu"]
    assert run(["vokenize", name, *index, "-o", f"{out}.jsonl", "-q"]) == 0
    return Path(f"{out}.jsonl").read_bytes()


def pretrain(tiny: Path, data: Path, name: str, out: Path) -> Any:
    flags = ["--shape", str(data / "shape.json"), "-t", str(data / "tok"), "--device", "cpu"]
    flags += ["--steps", "1", "--block", "16", "--batch-size", "2", "-q"]
    assert run(["pretrain", name, *flags, "-o", str(out)]) == 0
    return (out / "encoder" / "model.safetensors").read_bytes()


def wikitext(tiny: Path, data: Path, name: str, out: Path) -> Any:
    assert run(["prepare", "wikitext", name, "-o", f"{out}.txt", "-q"]) == 0
    return Path(f"{out}.txt").read_bytes()


def sentences(tiny: Path, data: Path, name: str, out: Path) -> Any:
    assert run(["prepare", "sentences", name, "-o", f"{out}.txt", "-q"]) == 0
    return Path(f"{out}.txt").read_bytes()


def pack(tiny: Path, data: Path, name: str, out: Path) -> Any:
    from vgtools.text.blocks import pack

    tokenizer = t.make_tokenizer()
    return pack(name, out, tokenizer)[0].tokens.tobytes()


def probed(tiny: Path, data: Path, name: str, out: Path) -> Any:
    from vgtools.systems.attention_probes.text import ProbeTexts

    return list(ProbeTexts(name))


def counted(tiny: Path, data: Path, name: str, out: Path) -> Any:
    from vgtools.analysis import corpora

    types = open_vocabulary("words")
    facts = corpora.CorpusStats(types, reference=str(data / "x.txt")).record(name)
    return {key: value for key, value in facts.items() if key != "corpus"}


def grounded(tiny: Path, data: Path, name: str, out: Path) -> Any:
    from vgtools.analysis import corpora

    survey = corpora.CorpusStats(open_vocabulary("words"), captions=name, above=1)
    return survey.grounded_types()


def reference(tiny: Path, data: Path, name: str, out: Path) -> Any:
    from vgtools.analysis import corpora

    survey = corpora.CorpusStats(open_vocabulary("words"), reference=name)
    return survey.record(str(data / "x.txt"))["jsd_1"]


READERS = [vokenize, wikitext, sentences, pack, probed, counted, grounded, reference]
Reader = Callable[[Path, Path, str, Path], Any]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["x.jsonl", "x.txt"])
def test_a_stream_is_read_like_the_file(
    reader: Reader,
    way: str,
    kind: str,
    tiny: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = reader(tiny, data, str(data / kind), tmp_path / "file")
    with arriving(way, (data / kind).read_bytes(), tmp_path, monkeypatch) as name:
        assert reader(tiny, data, name, tmp_path / "stream") == expected


@pytest.mark.parametrize("way", ["-", "<()", "pipe"])
def test_pretraining_reads_a_stream_once(
    way: str, tiny: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = pretrain(tiny, data, str(data / "x.jsonl"), tmp_path / "file")
    with arriving(way, (data / "x.jsonl").read_bytes(), tmp_path, monkeypatch) as name:
        assert pretrain(tiny, data, name, tmp_path / "stream") == expected


def test_a_fifo_is_never_up_to_date(tiny: Path, data: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for line in (b"bam\n", b"den fis\n"):
        with fed(tmp_path / "pipe", line):
            made = vokenize(tiny, data, str(tmp_path / "pipe"), tmp_path / "out")
        assert json.loads(made)["text"] == line.decode().strip()


@pytest.mark.parametrize("line", ['{"image": "a"}', '{"text": "torn', '{ "text" 1}'])
def test_a_stream_that_begins_like_json_and_is_no_row_is_refused(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(line.encode() + b"\n")))
    with pytest.raises(DataError, match="starts like JSON"):
        list(read_texts("-"))


def test_a_name_decides_and_a_brace_is_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.txt").write_text('{"text": "a"}\n')
    assert list(read_texts(tmp_path / "x.txt")) == ['{"text": "a"}']
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"{a} b\n")))
    assert list(read_texts("-")) == ["{a} b"]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_compressed_stream_may_come_byte_by_byte(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(BytesIO):
        def read1(self, count: int | None = -1, /) -> bytes:
            return super().read1(size)

    for suffix in (".gz", ".zst"):
        whole = compress(b"one\ntwo\n", Path("x" + suffix))
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(Slow(whole)))  # type: ignore[type-var]
        assert list(read_lines("-")) == ["one", "two"]
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(Slow(b"(a\nb")))  # type: ignore[type-var]
    assert list(read_lines("-")) == ["(a", "b"]


def test_what_is_read_twice_cannot_be_a_pipe(
    tiny: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    photos = data / "photos.txt"
    photos.write_text("a.png\n")
    index = ["--index", str(tiny / "vg.faiss"), "--device", "cpu", "-o", str(tmp_path / "v.jsonl")]
    drawn = ["--control", "term-frequency", "--captions", pipe]
    probed = ["--encoder", str(tiny / "encoder"), "--classifier", "attention", "--parser", "x"]
    for args in (
        ["vokenize", str(data / "x.txt"), *index, *drawn],
        ["extract-image-feats", str(photos), "--regions", pipe, "-o", f"{tmp_path}/f.npy"],
        ["probe-attention", "text", pipe, *probed],
    ):
        assert run(args) == 2
        assert "read" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_paths_of_a_list_from_a_pipe_begin_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vgtools.images.sources import ImageError, open_source

    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(b"picture")
    monkeypatch.chdir(tmp_path)
    with arriving("<()", b"photos/a.png\n", tmp_path, monkeypatch) as name:
        [item] = open_source(name).items
        assert (item.id, item.load()) == ("photos/a.png", b"picture")
    (tmp_path / "photos" / "list").write_text("photos/a.png\n")
    [item] = open_source("photos/list").items
    with pytest.raises(ImageError, match=r"\(photos/photos/a\.png\)"):
        item.load()


@pytest.mark.slow
def test_process_substitution_in_a_shell(tiny: Path, data: Path) -> None:
    vg = " ".join(vg_command("vokenize"))
    script = f"{vg} <(cat {data}/x.jsonl) --index {tiny}/vg.faiss --device cpu -q"
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
    assert [json.loads(row)["text"] for row in done.stdout.splitlines()] == [
        row["text"] for row in ROWS
    ]


def test_an_id_with_a_line_break_makes_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a\nb.jsonl").write_text("{}\n")
    assert run(["prepare", "sentences", str(tmp_path / "a\nb.jsonl"), "-q"]) == 65
    assert capsys.readouterr().err.count("\n") == 1


def test_a_pipe_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with fed(pipe, b"one\n"):
        assert list(read_lines(pipe)) == ["one"]
    with pytest.raises(DataError, match="can be read only once") as caught:
        list(read_lines(pipe))
    assert caught.value.code == 2
