"""URLs, against a real S3 server on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny.s3 import Server
from vgtools.io import remote
from vgtools.io.errors import DataError, Exit
from vgtools.io.names import is_url

DATA = os.urandom(3 << 20)
pytestmark = pytest.mark.slow


def local(folder: Path, data: bytes = DATA) -> Path:
    path = folder / "local.bin"
    path.write_bytes(data)
    return path


def test_what_goes_up_is_read_by_ranges(bucket: str, tmp_path: Path) -> None:
    url = f"{bucket}/dir/a.bin"
    remote.put(local(tmp_path), url)
    assert remote.facts(url).bytes == len(DATA)
    assert remote.read(url) == DATA
    with remote.open_url(url) as stream:
        assert stream.seek(2_000_001) == 2_000_001
        assert stream.read(10) == DATA[2_000_001:2_000_011]
        stream.seek(5)
        assert stream.read(1_500_000) == DATA[5:1_500_005]


def test_lines_of_an_object_are_those_of_the_file(bucket: str, tmp_path: Path) -> None:
    text = b"".join(b"%d\r\n" % n * (n % 3) + b"\n" for n in range(100_000))
    remote.put(local(tmp_path, text), f"{bucket}/a.txt")
    with remote.open_url(f"{bucket}/a.txt") as stream:
        assert [*stream] == text.splitlines(keepends=True)


def test_only_the_first_creates(bucket: str) -> None:
    url = f"{bucket}/plan.json"
    assert remote.create(url, b"first")
    assert not remote.create(url, b"second")
    assert remote.read(url) == b"first"


def test_a_new_version_is_another_one(bucket: str, tmp_path: Path) -> None:
    url = f"{bucket}/a.bin"
    remote.put(local(tmp_path, b"one"), url)
    before = remote.facts(url)
    remote.put(local(tmp_path, b"two"), url)
    after = remote.facts(url)
    assert (before.bytes, after.bytes) == (3, 3)
    assert before.version != after.version


def test_folders_and_patterns(bucket: str, tmp_path: Path) -> None:
    assert remote.sizes(f"{bucket}/x.npy/") == {}
    for name in ("x.npy/b.txt", "x.npy/a.txt", "x.npy/c.bin", "x.npy/deep/d.txt"):
        remote.put(local(tmp_path, name.encode()), f"{bucket}/{name}")
    assert remote.sizes(f"{bucket}/x.npy/") == {"a.txt": 11, "b.txt": 11, "c.bin": 11}
    both = [f"{bucket}/x.npy/a.txt", f"{bucket}/x.npy/b.txt"]
    assert remote.expand(f"{bucket}/x.npy/*.txt") == both
    assert remote.expand(f"{bucket}/none.txt") == [f"{bucket}/none.txt"]
    remote.remove(both[0])
    remote.remove(both[0])
    assert remote.sizes(f"{bucket}/x.npy") == {"b.txt": 11, "c.bin": 11}
    with pytest.raises(DataError, match=r"/x.npy/\*.jsonl: matches no file") as caught:
        remote.expand(f"{bucket}/x.npy/*.jsonl")
    assert caught.value.code == Exit.NO_INPUT


@pytest.mark.parametrize("operation", ["facts", "open_url", "read", "fetch"])
def test_what_is_missing_is_66(bucket: str, operation: str) -> None:
    with pytest.raises(DataError, match=r"s3://.*/none.bin: does not exist") as caught:
        getattr(remote, operation)(f"{bucket}/none.bin")
    assert caught.value.code == Exit.NO_INPUT


def test_a_store_that_is_busy_now_and_then_is_asked_again(
    bucket: str, s3: Server, tmp_path: Path
) -> None:
    s3.busy(2)
    for n in range(3):
        remote.put(local(tmp_path, b"%d" % n), f"{bucket}/{n}.txt")
    assert remote.read(f"{bucket}/1.txt") == b"1"
    assert set(remote.sizes(bucket)) == {"0.txt", "1.txt", "2.txt"}
    assert len(s3.busy(0)) >= 3, "requests that were answered 503"


def test_an_upload_that_breaks_leaves_nothing(
    bucket: str, s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)
    s3.busy(1, "PUT")
    with pytest.raises(DataError, match=r"the storage refuses it: .*rate") as caught:
        remote.put(local(tmp_path), f"{bucket}/a.bin")
    assert caught.value.code == Exit.UNAVAILABLE
    assert s3.busy(0)
    assert remote.sizes(bucket) == {}
    remote.put(local(tmp_path), f"{bucket}/a.bin")
    assert remote.read(f"{bucket}/a.bin") == DATA


def test_an_artifact_is_fetched_once_by_all_processes(bucket: str, tmp_path: Path) -> None:
    for name in ("vg.faiss", "vg.ids", "vg.jsonl"):
        remote.put(local(tmp_path, name.encode()), f"{bucket}/{name}")
    manifest = json.dumps({"files": {"vg.faiss": {}, "vg.ids": {}}}).encode()
    remote.put(local(tmp_path, manifest), f"{bucket}/vg.json")
    code = f"from vgtools.io import remote; print(remote.fetch('{bucket}/vg.faiss'))"
    several = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    (path,) = {process.communicate()[0].strip() for process in several}
    folder = Path(path).parent
    assert folder.parent == tmp_path / "cache" / "vgtools"
    found = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert found == {"vg.faiss": b"vg.faiss", "vg.ids": b"vg.ids", "vg.json": manifest}

    before = os.stat(path)
    assert str(remote.fetch(f"{bucket}/vg.faiss")) == path
    assert os.stat(path) == before, "it is not fetched again"
    remote.put(local(tmp_path, b"new.ids"), f"{bucket}/vg.ids")
    again = remote.fetch(f"{bucket}/vg.faiss")
    assert again.with_suffix(".ids").read_bytes() == b"new.ids"
    assert folder.joinpath("vg.ids").read_bytes() == b"vg.ids", "who has it open keeps it"


def test_a_folder_is_fetched_whole(bucket: str, tmp_path: Path) -> None:
    for name in ("run/run.json", "run/best/model.safetensors"):
        remote.put(local(tmp_path, name.encode()), f"{bucket}/{name}")
    folder = remote.fetch(f"{bucket}/run")
    assert folder.name == "run"
    assert (folder / "run.json").read_bytes() == b"run/run.json"
    assert (folder / "best" / "model.safetensors").read_bytes() == b"run/best/model.safetensors"


@pytest.mark.parametrize("key", ["../../../victim", "../victim", "a/../../../../victim"])
def test_no_name_of_a_store_leads_out_of_its_folder(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Store:
        def isdir(self, path: str) -> bool:
            return True

        def find(self, path: str, detail: bool) -> dict[str, dict[str, object]]:
            return {f"{path}/{name}": {"size": 3, "ETag": "1"} for name in ("plan.txt", key)}

        def get_file(self, name: str, file: str) -> None:
            Path(file).write_bytes(b"bad")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "_system", lambda url: (Store(), "bucket/run"))
    (tmp_path / "cache" / "vgtools").mkdir(parents=True)
    mine = [tmp_path / "cache" / name for name in ("victim", "vgtools/victim")]
    for file in mine:
        file.write_bytes(b"own")
    with pytest.raises(DataError, match="leads out of its folder") as caught:
        remote.fetch("s3://bucket/run")
    assert caught.value.code == Exit.DATA
    assert {file.read_bytes() for file in mine} == {b"own"}


@pytest.mark.parametrize(
    ("package", "url", "install"),
    [("s3fs", "s3://b/x", "'vgtools[s3]'"), ("aiohttp", "http://x.org/a", "aiohttp requests")],
)
def test_a_missing_package_is_named(package: str, url: str, install: str) -> None:
    code = f"""if True:
        import sys
        from vgtools.io import remote
        from vgtools.io.errors import DataError
        sys.modules["{package}"] = None
        try:
            remote.facts("{url}")
        except DataError as error:
            print(int(error.code), error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    why = f"needs a package that is not installed: pip install {install}"
    assert done.stdout == f"69 {url}: {why}\n"


def test_paths_and_urls_are_told_apart() -> None:
    for url in ("s3://b/x", "gs://b/x", "hf://datasets/a/b", "https://x.org/a.txt"):
        assert is_url(url)
    for path in ("a.txt", "./s3:/b", "/tmp/x", "-", "C:x", "x://y"[:2]):
        assert not is_url(path)
