"""What connects asks whether it may, and says what went wrong if it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vgtools import cli
from vgtools.images.sources import ImageError, _read_url
from vgtools.io import remote
from vgtools.io.errors import DataError, Exit

URLS = ("s3://bucket/a.txt", "gs://bucket/a.txt", "https://host.invalid/a.txt", "hf://x/y/a.txt")


@pytest.fixture(autouse=True)
def unconnected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def connect(*_: object, **__: object) -> Any:
        raise AssertionError("it connects")

    monkeypatch.setattr("fsspec.core.url_to_fs", connect)
    yield
    remote.stay_offline(False)


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "use",
    [
        remote.facts,
        remote.open_url,
        remote.read,
        remote.sizes,
        remote.remove,
        remote.fetch,
        lambda url: remote.write(url, b""),
        lambda url: remote.create(url, b""),
        lambda url: remote.put("x", url),
        lambda url: remote.expand(f"{url}*"),
        lambda url: remote.facts_of([url]),
        remote.file_size,
    ],
)
def test_offline_nothing_connects(url: str, use: Any) -> None:
    remote.stay_offline(True)
    with pytest.raises(DataError, match="--offline never connects") as caught:
        use(url)
    assert caught.value.code == Exit.UNAVAILABLE


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "command",
    ["stats {}", "stats --vokens {}", "stats --captions {}", "extract-image-feats {} -o f.npy"],
)
def test_no_command_connects_offline(
    url: str, command: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert cli.run([*command.format(url).split(), "--offline"]) == Exit.UNAVAILABLE
    assert capfd.readouterr().err.splitlines()[-1].startswith(f"vg: {url}: is at a URL, and")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", URLS[:3])
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("command", ["vokenize t.txt --index i", "pretrain t.txt -o run"])
def test_settings_at_a_url_are_not_read_offline(
    url: str, command: str, order: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """--config reads its file while the line is parsed, before other flags count."""
    settings = url.replace(".txt", ".toml")
    words = ["--config", settings, *command.split()[1:]]
    more = [words, ["--offline"]]
    line = [command.split()[0], *more[order], *more[1 - order]]
    assert cli.run(line) == Exit.UNAVAILABLE
    assert f"{settings}: is at a URL, and --offline never" in capfd.readouterr().err


def test_the_flag_is_of_one_command_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["stats", URLS[0], "--offline"]) == Exit.UNAVAILABLE
    assert "never connects" in capfd.readouterr().err
    cli.run(["stats", URLS[0]])
    assert "it connects" in capfd.readouterr().err


class Answer(Exception):
    """An answer of a web server as aiohttp raises it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status}, message='…'")
        self.status = status


@pytest.mark.parametrize(
    ("cause", "code", "why"),
    [
        (None, Exit.NO_INPUT, "does not exist"),
        (FileNotFoundError("404"), Exit.NO_INPUT, "does not exist"),
        (Answer(404), Exit.NO_INPUT, "does not exist"),
        (Answer(503), Exit.UNAVAILABLE, "503"),
        (ConnectionRefusedError("Cannot connect to host"), Exit.UNAVAILABLE, "Cannot connect"),
    ],
)
def test_a_refused_connection_is_not_a_missing_file(
    cause: Exception | None, code: Exit, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Web:
        def info(self, path: str) -> Any:
            raise FileNotFoundError(path) from cause

    monkeypatch.setattr(remote, "_system", lambda url: (Web(), url))
    with pytest.raises(DataError, match=why) as caught:
        remote.facts(URLS[2])
    assert caught.value.code == code


def test_a_missing_bucket_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Store:
        def info(self, path: str) -> Any:
            raise FileNotFoundError("The specified bucket does not exist")

    monkeypatch.setattr(remote, "_system", lambda url: (Store(), url))
    with pytest.raises(DataError, match="its bucket does not exist") as caught:
        remote.facts(URLS[0])
    assert caught.value.code == Exit.NO_INPUT


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("{00008..00010}.tar", ["00008.tar", "00009.tar", "00010.tar"]),
        ("{8..10}.tar", ["8.tar", "9.tar", "10.tar"]),
        ("{3..2}/{a,b}", ["3/a", "3/b", "2/a", "2/b"]),
        ("s3://b/{0..1}.tar", ["s3://b/0.tar", "s3://b/1.tar"]),
        ("{7..7}.parquet#caption", ["7.parquet#caption"]),
        ("{a}", ["{a}"]),
        ("{..}.txt", ["{..}.txt"]),
    ],
)
def test_braces_mean_each_name_as_in_a_shell(pattern: str, names: list[str]) -> None:
    assert remote.expand(pattern) == names


def test_braces_of_a_file_are_its_name_and_patterns_stay_patterns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("{0..1}.txt", "a1.txt", "a2.txt", "b1.txt"):
        Path(name).touch()
    assert remote.expand("{0..1}.txt") == ["{0..1}.txt"]
    assert remote.expand("{b,a}*.txt") == ["b1.txt", "a1.txt", "a2.txt"]
    with pytest.raises(DataError, match="names more than 1,000,000 files") as error:
        remote.expand("{0..9999999999}.tar")
    assert error.value.code == Exit.USAGE
    for pattern in ("{0..9999}{0..9999}x.txt", "{0..99}" * 5, "{a,b}" * 30):
        with pytest.raises(DataError, match="names more than 1,000,000 files"):
            remote.expand(pattern)


@pytest.mark.parametrize("name", ["ETag", "Content-MD5", "Digest", "Last-Modified", "LastModified"])
def test_a_change_shows_by_what_a_store_has(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """fsspec's file system of web servers has the names of their headers."""

    class Store:
        def info(self, path: str) -> dict[str, Any]:
            return {"name": path, "size": 3, "type": "file", name: "Sun, 29 Nov 2026"}

    monkeypatch.setattr(remote, "_system", lambda url: (Store(), url))
    assert remote.facts("http://a.org/t.txt") == (3, "Sun, 29 Nov 2026")


def test_an_image_whose_server_names_no_size_can_be_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = "http://a.org/a.png"

    class Store:
        def info(self, path: str) -> dict[str, Any]:
            return {"name": path, "size": None, "type": "file"}

    monkeypatch.setattr(remote, "_system", lambda url: (Store(), url))
    assert remote.facts_of([url]) == [None]
    with pytest.raises(ImageError, match="cannot be read: has no size at its server"):
        _read_url(url, url)


@pytest.mark.parametrize(
    ("error", "is_hidden"),
    [(FileNotFoundError("x"), True), (PermissionError("x"), True), (ConnectionError("x"), False)],
)
def test_what_a_store_hides_is_not_there(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_hidden: bool
) -> None:
    class Store:
        def info(self, path: str) -> dict[str, Any]:
            raise error

    monkeypatch.setattr(remote, "_system", lambda url: (Store(), url))
    if is_hidden:
        assert remote.read_if_there("s3://a/t.json", 9) is None
    else:
        with pytest.raises(DataError) as caught:
            remote.read_if_there("s3://a/t.json", 9)
        assert caught.value.code == Exit.UNAVAILABLE


@pytest.mark.parametrize(
    "hidden", [FileNotFoundError("x"), PermissionError("x"), Answer(403), Answer(404)]
)
def test_a_file_whose_manifest_is_not_to_be_seen_is_fetched_alone(hidden: Exception) -> None:
    class Store:
        def isdir(self, path: str) -> bool:
            return False

        def info(self, path: str) -> dict[str, Any]:
            if path == "b/emb.json":
                if isinstance(hidden, Answer):
                    raise FileNotFoundError(path) from hidden
                raise hidden
            return {"size": 3, "type": "file"}

    assert [*remote._files(Store(), "b/emb.npy")] == ["b/emb.npy"]


def test_a_file_that_a_manifest_at_a_url_names_is_named_if_it_is_missing() -> None:
    class Store:
        def isdir(self, path: str) -> bool:
            return False

        def info(self, path: str) -> dict[str, Any]:
            if path in missing:
                raise FileNotFoundError(path)
            return {"size": 3, "type": "file"}

        def cat_file(self, path: str) -> bytes:
            return (
                b'{"vg": "0.1.0", "files": {"emb.npy": {}, "emb.ids": {}, "emb.errors.jsonl": {}}}'
            )

    missing = {"b/emb.ids"}
    with pytest.raises(
        DataError, match=r"b/emb\.ids: is missing; the manifest next to it"
    ) as caught:
        remote._files(Store(), "b/emb.npy")
    assert caught.value.code == Exit.NO_INPUT
    missing = {"b/emb.errors.jsonl"}  # which no reader opens
    assert {*remote._files(Store(), "b/emb.npy")} == {"b/emb.npy", "b/emb.ids", "b/emb.json"}


@pytest.mark.parametrize(
    "body",
    [b'{"files": ["raw.npy"]}', b'{"vg": "1", "files": 3}', b"[]", b"x", b'{"files": {"r": 1}}'],
)
def test_somebody_s_json_at_a_url_names_no_files(body: bytes) -> None:
    class Store:
        def isdir(self, path: str) -> bool:
            return False

        def info(self, path: str) -> dict[str, Any]:
            return {"size": 3, "type": "file"}

        def cat_file(self, path: str) -> bytes:
            return body

    assert [*remote._files(Store(), "b/emb.npy")] == ["b/emb.npy"]
