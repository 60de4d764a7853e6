"""Folders of shards at a URL: what test_shards does on this machine, against a real S3 server."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.batch.test_run import save_features
from tests.batch.test_shards import Lengths
from tests.tiny import text
from tests.tiny.images import save_backbone, save_photo
from tests.tiny.s3 import Server
from vgtools import cli
from vgtools.batch import places, run
from vgtools.batch.plan import text_source
from vgtools.batch.shards import ShardedOutput, open_folder
from vgtools.io import own, remote
from vgtools.io.artifact import open_features
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import final_path
from vgtools.io.output import Output
from vgtools.io.streams import Piece, open_read

pytestmark = pytest.mark.slow
LINES = b"".join(b"%s %d\r\n" % (b"x" * (n % 17), n) for n in range(500))


def upload(url: str, data: bytes, folder: Path) -> str:
    file = folder / "upload"
    file.write_bytes(data)
    remote.put(file, url)
    return url


def opened(url: str, texts: list[str], size: int = 700, **config: Any) -> ShardedOutput:
    return open_folder(url, Lengths(**config).config, [*map(text_source, texts)], size, size)


def make(shards: ShardedOutput, part: tuple[int, int] = (0, 1)) -> Any:
    return run.run(shards, Lengths(), part, name="lengths")


def test_a_folder_at_a_url_is_the_file_of_one_process(
    bucket: str, s3: Server, tmp_path: Path
) -> None:
    names = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for name, data in zip(names, (LINES, LINES[3000:]), strict=True):
        name.write_bytes(data)
    task = Lengths()
    with task.open(str(tmp_path / "whole.jsonl"), Output) as out:
        list(task.steps([Piece(str(name)) for name in names], out))
    expected = (tmp_path / "whole.jsonl").read_bytes()

    texts = [upload(f"{bucket}/{name.name}", name.read_bytes(), tmp_path) for name in names]
    assert remote.expand(f"{bucket}/*.txt") == texts
    s3.busy(5)
    url = f"{bucket}/out.jsonl/"
    shards = opened(url, texts)
    assert make(shards, (0, 2)) is None
    assert not shards.is_complete()
    manifest = make(shards, (1, 2))
    assert len(s3.busy(0)) > 5
    assert shards.is_complete()
    assert manifest["rows"] == expected.count(b"\n")
    with open_read(url) as stream:
        assert stream.read() == expected
    names_there = remote.sizes(url)
    assert not [name for name in names_there if name.startswith(".")], "private files stay here"
    lines = [json.loads(line) for line in (remote.read(f"{url}shards.jsonl")).splitlines()]
    assert len(lines) == len(shards.plan)


def test_what_is_missing_at_a_url_is_made_again(bucket: str, tmp_path: Path) -> None:
    texts = [upload(f"{bucket}/a.txt", LINES, tmp_path)]
    url = f"{bucket}/out.jsonl/"
    shards = opened(url, texts)
    make(shards)
    with open_read(url) as stream:
        before = stream.read()
    (data,) = [name for name in remote.sizes(url) if name.startswith("000002-")]
    remote.remove(f"{url}{data}")
    remote.remove(f"{url}000004.json")
    assert [*shards.missing()] == [2, 4]
    with pytest.raises(DataError, match="is missing") as caught:
        open_read(url).read()
    assert caught.value.code == Exit.NO_INPUT
    make(shards)
    with open_read(url) as stream:
        assert stream.read() == before


def test_other_settings_inputs_and_places_are_refused(bucket: str, tmp_path: Path) -> None:
    texts = [upload(f"{bucket}/a.txt", LINES, tmp_path)]
    url = f"{bucket}/out.jsonl/"
    opened(url, texts, level=3)
    make(opened(url, texts), (0, 5))  # a plan of which no shard is made is replaced
    with pytest.raises(DataError, match="level was null, is now 2") as caught:
        opened(url, texts, level=2)
    assert caught.value.code == Exit.CONFIG
    upload(texts[0], LINES.replace(b"7", b"8"), tmp_path)
    with pytest.raises(DataError, match=r"the input .*/a.txt changed: sha256 was") as caught:
        opened(url, texts)
    assert caught.value.code == Exit.CONFIG
    with pytest.raises(DataError, match=r"holds files but no plan.json") as caught:
        opened(f"{bucket}/", texts)
    assert caught.value.code == Exit.CANNOT_CREATE
    with pytest.raises(DataError, match=r"a / after the name"):
        final_path(f"{bucket}/out.jsonl", [])


def test_an_upload_that_breaks_leaves_no_shard(
    bucket: str, s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)
    texts = [upload(f"{bucket}/a.txt", LINES, tmp_path)]
    url = f"{bucket}/out.jsonl/"
    shards = opened(url, texts)
    s3.busy(1, "PUT")
    with pytest.raises(DataError, match="the storage refuses it") as caught:
        make(shards)
    assert caught.value.code == Exit.UNAVAILABLE
    s3.busy(0)
    assert remote.sizes(url).keys() == {"plan.json"}
    assert make(shards)["rows"] == LINES.count(b"\n")


def test_a_private_file_is_gone_when_it_is_adopted(bucket: str, tmp_path: Path) -> None:
    for target in (str(tmp_path / "x.bin"), f"{bucket}/x.bin"):
        file = places.private(target)
        file.write_bytes(b"all of it")
        places.adopt(file, target, places.is_ours)
        assert places.read(target) == b"all of it"
        assert not file.exists()
        places.create(target, b"second")
        assert places.read(target) == b"all of it"
        places.write(target, b"new", own.begins(b"all"))
        assert places.read(target) == b"new"
        places.remove(target)
        places.remove(target)
        assert places.read(target) is None


def test_vokens_of_texts_index_and_matcher_at_urls(
    bucket: str, s3: Server, tmp_path: Path, tiny: Path
) -> None:
    source = tmp_path / "a.txt"
    source.write_text("".join(f"{line}\n" for line in text(200, seed=5)))
    cpu = ("--device", "cpu", "-q")
    here = ("vokenize", source, "--index", tiny / "vg.faiss", *cpu, "-o", tmp_path / "one.npy")
    assert cli.run([*map(str, here)]) == 0
    upload(f"{bucket}/in/a.txt", source.read_bytes(), tmp_path)
    for file in [*tiny.glob("vg.*"), *(tiny / "run").rglob("*")]:
        if file.is_file():
            remote.put(file, f"{bucket}/{file.relative_to(tiny)}")
    s3.busy(7)
    bank = ("--index", f"{bucket}/vg.faiss", "--matcher", f"{bucket}/run", *cpu)
    url = f"{bucket}/out.npy/"
    there = ("vokenize", f"{bucket}/in/*.txt", *bank, "--shard-size", 2000, "-o", url)
    assert cli.run([*map(str, there)]) == 0
    assert len(s3.busy(0)) > 3
    ids = b""
    for name in sorted(name for name in remote.sizes(url) if name.endswith(".npy")):
        if not name.endswith("rows.npy"):
            file = tmp_path / name
            file.write_bytes(remote.read(f"{url}{name}"))
            ids += np.load(file).tobytes()
    assert ids == np.load(tmp_path / "one.npy").tobytes()


def test_features_of_tars_and_lists_at_urls(
    bucket: str, s3: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_backbone(tmp_path / "net")
    names = [f"p{number}.png" for number in range(7)]
    for number, name in enumerate(names):
        save_photo(tmp_path / name, number)
        remote.put(tmp_path / name, f"{bucket}/photos/{name}")
    for tar, held in (("a.tar", names[:3]), ("b.tar", names[3:])):
        with tarfile.open(tmp_path / tar, "w") as stream:
            for name in held:
                stream.add(tmp_path / name, name)
        remote.put(tmp_path / tar, f"{bucket}/{tar}")
    flags = ("-b", tmp_path / "net", "--device", "cpu", "--batch-size", 4, "-q")

    def extract(*args: object) -> int:
        return cli.run([*map(str, ("extract-image-feats", *args, *flags))])

    assert extract(tmp_path / "a.tar", tmp_path / "b.tar", "-o", tmp_path / "one.npy") == 0
    expected = open_features(tmp_path / "one.npy")
    s3.busy(9)
    assert extract(f"{bucket}/*.tar", "-o", f"{bucket}/tars.npy/") == 0
    # A list at a URL, of URLs and of names beside it.
    lines = "".join(f"{bucket}/photos/{name}\n" for name in names[:4]) + "\n".join(names[4:])
    upload(f"{bucket}/photos/list.txt", lines.encode(), tmp_path)
    listed = (f"{bucket}/photos/list.txt", "-o", f"{bucket}/list.npy/", "--shard-size", 2000)
    assert extract(*listed) == 0
    assert s3.busy(0)
    for url, ids in (("tars", names), ("list", lines.splitlines())):
        found = open_features(f"{bucket}/{url}.npy/")
        assert found.ids == ids
        assert np.asarray(found.array).tobytes() == expected.array.tobytes()

    # What is missing is an image that cannot be used, named by its URL.
    remote.remove(f"{bucket}/photos/p2.png")
    assert extract(f"{bucket}/photos/list.txt", "-o", tmp_path / "some.npy") == Exit.DATA
    assert f"{bucket}/photos/p2.png: cannot be read: does not exist" in capsys.readouterr().err
    for source, why in (
        (f"{bucket}/none.tar", f"{bucket}/none.tar: does not exist"),
        (f"{bucket}/photos/", f"{bucket}/photos/: a folder at a URL is not searched"),
    ):
        assert extract(source, "-o", f"{bucket}/none.npy/") == Exit.NO_INPUT
        assert why in capsys.readouterr().err


def test_an_index_of_features_at_urls(bucket: str, tmp_path: Path, tiny: Path) -> None:
    feats = open_features(tiny / "feats.npy")
    manifest = {"kind": "image-features", "backbone": feats.manifest["backbone"]}
    save_features(f"{tmp_path}/shards.npy/", feats.array, feats.ids, manifest)
    files = [*tiny.glob("feats.*"), *tmp_path.glob("shards.npy/*"), tmp_path / "shards.json"]
    for file in files:
        home = tiny if tiny in file.parents else tmp_path
        remote.put(file, f"{bucket}/{file.relative_to(home)}")
    for source in ("feats.npy", "shards.npy/"):
        args = ("build-index", f"{bucket}/{source}", "--matcher", tiny / "run", "--device", "cpu")
        out = tmp_path / f"of-{source.partition('.')[0]}.faiss"
        assert cli.run([*map(str, (*args, "-q", "-o", out))]) == 0
        assert out.read_bytes() == (tiny / "vg.faiss").read_bytes()


def test_a_store_that_is_gone_is_69(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(f"{bucket}/a.tar", b"0" * 100, tmp_path)
    with remote.open_url(f"{bucket}/a.tar") as stream:

        def gone(*_: object) -> int:
            raise ConnectionError("nobody answers")

        monkeypatch.setattr("fsspec.spec.AbstractBufferedFile.readinto", gone)
        with pytest.raises(DataError, match=r"a.tar: the storage refuses it: nobody") as caught:
            stream.read(5)
    assert caught.value.code == Exit.UNAVAILABLE


def test_a_file_may_go_while_its_folder_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process adopts its private file between the look at a name and the next."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"12")
    (tmp_path / "folder").mkdir()
    stat = os.stat

    def then_gone(path: Any, *args: Any, **more: Any) -> os.stat_result:
        found = stat(path, *args, **more)
        if str(path).endswith("/a"):
            os.unlink(path)
        return found

    monkeypatch.setattr(os, "stat", then_gone)
    assert places.sizes(str(tmp_path)) == {"a": 2, "b": 2}
    assert places.sizes(str(tmp_path)) == {"b": 2}
