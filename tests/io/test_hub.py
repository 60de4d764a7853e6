"""A run, an index and rows go to a hub and come back, over HTTP; a hub that fails is reported."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.conftest import Runner
from tests.tiny import text
from tests.tiny.hub_server import Hub
from vgtools.cli import run
from vgtools.io.errors import DataError, Exit
from vgtools.io.hub import is_hub_name, split_name

Vg = Callable[..., tuple[int, str, str]]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as running:
        yield running


@pytest.fixture
def on_hub(hub: Hub, vg: Runner, tmp_path: Path) -> Vg:
    """Run vg as a process next to a hub of this machine; return code, output and messages."""

    def call(*args: object, **environment: str) -> tuple[int, str, str]:
        own = {
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "cache"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_XET": "1",  # a protocol of its own; the one for files of git is served
            "HF_HUB_OFFLINE": "0",
            "HF_TOKEN": "hf_test",
            **environment,
        }
        done = vg(*map(str, args), cwd=tmp_path, env=own, timeout=600)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    return call


@pytest.fixture
def vokens(tiny: Path, tmp_path: Path) -> Path:
    """Write voken rows with their manifest."""
    (tmp_path / "t.txt").write_text("".join(f"{line}\n" for line in text(20)))
    args = ["vokenize", tmp_path / "t.txt", "--index", tiny / "vg.faiss", "--device", "cpu", "-q"]
    assert run([*map(str, args), "-o", str(tmp_path / "v.jsonl")]) == 0
    return tmp_path / "v.jsonl"


def sha(hub: Hub, repo: str) -> str:
    """Return the newest commit of a repository."""
    found = hub.commit(repo, "main")
    assert found is not None
    return found[0]


def test_rows_there_and_back(
    tiny: Path, vokens: Path, tmp_path: Path, hub: Hub, on_hub: Vg
) -> None:
    code, out, err = on_hub("push", vokens, "me/wiki", "--license", "cc-by-4.0")
    assert code == 0, err
    assert out.startswith(f"{hub.url}/datasets/me/wiki/commit/")
    files = hub.repos["datasets/me/wiki"][-1]
    assert sorted(files) == ["README.md", "v.json", "v.jsonl"]
    assert files["v.jsonl"] == vokens.read_bytes()
    card = files["README.md"].decode()
    assert card.startswith('---\nlicense: "cc-by-4.0"\n')
    assert str(tmp_path) not in card
    sha256 = json.loads(files["v.json"])["inputs"][0]["sha256"]
    assert sha256[:16] in card
    assert "| rows | 20 |" in card
    assert "Hao Tan and Mohit Bansal (2020)" in card
    assert "vg revokenize me/wiki --tokenizer" in card
    # Back: once from the hub, then from the cache.
    to = ("-t", tiny / "encoder", "-q", "-o")
    assert run(["revokenize", str(vokens), *map(str, to), str(tmp_path / "here.jsonl")]) == 0
    newest = sha(hub, "datasets/me/wiki")
    for number, name in enumerate(("me/wiki", f"me/wiki@{newest}")):
        out_file = tmp_path / f"{number}.jsonl"
        code, _, err = on_hub("revokenize", name, *to, out_file)
        assert (code, err) == (0, "")
        assert out_file.read_bytes() == (tmp_path / "here.jsonl").read_bytes()
        (entry,) = json.loads(out_file.with_suffix(".json").read_text())["inputs"]
        assert entry["path"] == f"me/wiki@{newest}/v.jsonl"  # not its place in the cache
    asked = len(hub.asked)
    code, _, err = on_hub("revokenize", "me/wiki", "--offline", *to, tmp_path / "2.jsonl")
    assert (code, err) == (0, "")
    assert len(hub.asked) == asked
    # What is here comes first.
    (tmp_path / "me").mkdir()
    (tmp_path / "me" / "wiki").write_text("")
    code, _, err = on_hub("revokenize", "me/wiki", *to, tmp_path / "3.jsonl")
    assert (code, (tmp_path / "3.jsonl").read_bytes()) == (0, b"")


@pytest.mark.slow
def test_an_index_goes_with_its_matcher(tiny: Path, tmp_path: Path, hub: Hub, on_hub: Vg) -> None:
    code, _, err = on_hub("push", tiny / "vg.faiss", "me/bank")
    assert code == 0, err
    files = hub.repos["models/me/bank"][-1]
    assert {"vg.faiss", "vg.ids", "vg.json", "run/run.json"} <= files.keys()
    (tmp_path / "t.txt").write_text("".join(f"{line}\n" for line in text(20)))
    search = ("--device", "cpu", "-q", "-o")
    code, _, err = on_hub("vokenize", "t.txt", "--index", "me/bank", *search, "v.jsonl")
    assert (code, err) == (0, "")
    args = ["vokenize", tmp_path / "t.txt", "--index", tiny / "vg.faiss", *search]
    assert run([*map(str, args), str(tmp_path / "here.jsonl")]) == 0
    assert (tmp_path / "v.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()
    made = json.loads((tmp_path / "v.json").read_text())
    assert made["index"] == f"me/bank@{sha(hub, 'models/me/bank')}/vg.faiss"
    # The run alone, as the matcher and as an encoder.
    code, _, err = on_hub("push", tiny / "run", "me/matcher")
    assert code == 0, err
    feats = (tiny / "feats.npy", "--matcher", "me/matcher", "--device", "cpu", "-q")
    code, _, err = on_hub("build-index", *feats, "-o", "again.faiss")
    assert (code, err) == (0, "")
    assert (tmp_path / "again.faiss").read_bytes() == (tiny / "vg.faiss").read_bytes()
    made = json.loads((tmp_path / "again.json").read_text())
    assert made["matcher"]["run"] == f"me/matcher@{sha(hub, 'models/me/matcher')}"
    parquet.write_table(pa.table({"say": text(20)}), tmp_path / "x.parquet")
    hub.repos["datasets/you/texts"] = [{"data/x.parquet": (tmp_path / "x.parquet").read_bytes()}]
    several = "hf://datasets/you/texts/data/*.parquet#say"
    code, _, err = on_hub("vokenize", several, "--index", "again.faiss", *search, "w.jsonl")
    assert (code, err) == (0, "")
    assert (tmp_path / "w.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()
    (entry,) = json.loads((tmp_path / "w.json").read_text())["inputs"]
    assert entry["path"] == several.replace("*", "x")
    assert entry["revision"] == sha(hub, "datasets/you/texts")
    code, _, err = on_hub("push", "again.faiss", "me/again")
    assert code == 0, err
    assert "run/run.json" not in hub.repos["models/me/again"][-1]


@pytest.mark.slow
def test_an_index_in_the_folder_of_its_matcher_is_read_from_a_hub(
    tiny: Path, tmp_path: Path, hub: Hub, on_hub: Vg
) -> None:
    shutil.copytree(tiny / "run", tmp_path / "m")
    feats = (tiny / "feats.npy", "--matcher", "m", "--device", "cpu", "-q")
    code, _, err = on_hub("build-index", *feats, "-o", "m/bank.faiss")
    assert (code, err) == (0, "")
    assert json.loads((tmp_path / "m/bank.json").read_text())["matcher"]["run"] == "."
    code, _, err = on_hub("push", "m/bank.faiss", "me/bank")
    assert code == 0, err
    assert "matcher/run.json" in hub.repos["models/me/bank"][-1]
    (tmp_path / "t.txt").write_text("".join(f"{line}\n" for line in text(20)))
    search = ("vokenize", "t.txt", "--device", "cpu", "-q", "--index")
    code, _, err = on_hub(*search, "me/bank", "-o", "v.jsonl")
    assert (code, err) == (0, "")
    code, _, err = on_hub(*search, "m/bank.faiss", "-o", "here.jsonl")
    assert (code, err) == (0, "")
    assert (tmp_path / "v.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()


def test_a_table_of_another_repository(tmp_path: Path, hub: Hub, on_hub: Vg) -> None:
    lines = text(30)
    parquet.write_table(pa.table({"say": lines}), tmp_path / "x.parquet", row_group_size=7)
    hub.repos["datasets/you/texts"] = [{"data/x.parquet": (tmp_path / "x.parquet").read_bytes()}]
    code, found, err = on_hub("stats", "hf://datasets/you/texts/data/x.parquet#say", "-q")
    assert (code, err) == (0, "")
    (tmp_path / "x.txt").write_text("".join(f"{line}\n" for line in lines))
    code, expected, _ = on_hub("stats", "x.txt", "-q")
    assert found.replace("hf://datasets/you/texts/data/x.parquet#say", "x.txt") == expected
    for missing in ("texts/data/y.parquet", "none/x.parquet", "texts@none/data/x.parquet"):
        url = f"hf://datasets/you/{missing}"
        code, _, err = on_hub("stats", url)
        assert (code, err.splitlines()[-1]) == (Exit.NO_INPUT, f"vg: {url}: does not exist")
    code, _, err = on_hub("stats", "--vokens", "you/texts@none")
    assert code == Exit.UNAVAILABLE
    assert "nor could it be fetched: the hub has none of this name, or it is private" in err


def test_a_card_is_printed_without_a_connection(vokens: Path, hub: Hub, on_hub: Vg) -> None:
    code, out, err = on_hub("push", vokens, "me/wiki", "--dry-run")
    assert (code, hub.asked) == (0, [])
    assert out.startswith("---\nlibrary_name")
    assert "2 files" in err


def test_files_of_the_user_in_a_folder_of_shards_stay_here(
    tiny: Path, vokens: Path, hub: Hub, on_hub: Vg
) -> None:
    place, text_file = vokens.parent, vokens.parent / "t.txt"
    args = ["vokenize", text_file, "--index", tiny / "vg.faiss", "--device", "cpu", "-q"]
    assert run([*map(str, args), "--shard-size", "500", "-o", f"{place}/s.jsonl/"]) == 0
    folder = place / "s.jsonl"
    (folder / "secret.txt").write_text("my password")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "notes").mkdir()
    code, _, err = on_hub("push", folder, "me/shards")
    assert code == 0, err
    pushed = hub.repos["datasets/me/shards"][-1]
    listed = [json.loads(line) for line in (folder / "shards.jsonl").read_text().splitlines()]
    own = [name for record in listed for name in record["files"]]
    assert len(own) > 1
    assert sorted(pushed) == sorted(
        [
            "README.md",
            "s.json",
            *(f"s.jsonl/{name}" for name in ("plan.json", "shards.jsonl", *own)),
        ]
    )
    to = ("-t", tiny / "encoder", "-q", "-o")
    code, _, err = on_hub("revokenize", "me/shards", *to, place / "back.jsonl")
    assert (code, err) == (0, "")
    assert run(["revokenize", str(vokens), *map(str, to), str(place / "here.jsonl")]) == 0
    assert (place / "back.jsonl").read_bytes() == (place / "here.jsonl").read_bytes()


def test_features_are_pushed_and_read_without_their_list_of_bad_images(
    tiny: Path, tmp_path: Path, hub: Hub, on_hub: Vg
) -> None:
    for name in ("feats.npy", "feats.ids", "feats.json"):
        shutil.copy(tiny / name, tmp_path)
    body = json.loads((tmp_path / "feats.json").read_text())
    body["files"]["feats.errors.jsonl"] = {"bytes": 0, "sha256": hashlib.sha256().hexdigest()}
    (tmp_path / "feats.json").write_text(json.dumps(body))
    code, _, err = on_hub("push", tmp_path / "feats.npy", "me/feats")
    assert code == 0, err
    pushed = sorted(hub.repos["datasets/me/feats"][-1])
    assert pushed == ["README.md", "feats.ids", "feats.json", "feats.npy"]
    args = ("--matcher", tiny / "run", "--device", "cpu", "-q", "-o", tmp_path / "x.faiss")
    code, _, err = on_hub("build-index", tmp_path / "feats.npy", *args)
    assert code == 0, err
    assert (tmp_path / "x.faiss").read_bytes() == (tiny / "vg.faiss").read_bytes()


def test_a_damaged_file_is_not_pushed(vokens: Path, hub: Hub, on_hub: Vg) -> None:
    vokens.write_bytes(vokens.read_bytes().replace(b"0", b"1"))
    code, _, err = on_hub("push", vokens, "me/wiki")
    assert (code, hub.asked) == (Exit.DATA, [])
    assert "its manifest states" in err


def test_a_repository_of_other_files_is_left_alone(vokens: Path, hub: Hub, on_hub: Vg) -> None:
    hub.repos["datasets/me/wiki"] = [{"thesis.txt": b"mine", ".gitattributes": b""}]
    code, _, err = on_hub("push", vokens, "me/wiki")
    assert code == Exit.CANNOT_CREATE
    assert "me/wiki: holds thesis.txt, which vg would not write" in err
    assert hub.repos["datasets/me/wiki"] == [{"thesis.txt": b"mine", ".gitattributes": b""}]


FAULTS: dict[str, tuple[dict[str, Any], int, str]] = {
    "down": ({"fails": "GET .*/tree/"}, Exit.UNAVAILABLE, "500 Internal Server Error"),
    "cut off": ({"cut": r"v\.jsonl"}, Exit.UNAVAILABLE, "nor could it be fetched"),
    "another file": ({}, Exit.DATA, "its manifest states"),
    "no manifest": ({}, Exit.DATA, "holds 0 manifests of vg, expected one"),
    "no repository": ({}, Exit.NO_INPUT, "me/wiki: does not exist, here or on the hub"),
}


@pytest.mark.slow  # it is asked again and again
@pytest.mark.parametrize("fault", FAULTS)
def test_answers_of_a_hub_that_fails(
    fault: str, tiny: Path, vokens: Path, tmp_path: Path, hub: Hub, on_hub: Vg
) -> None:
    how, code, why = FAULTS[fault]
    files = {name: (tmp_path / name).read_bytes() for name in ("v.json", "v.jsonl")}
    if fault == "another file":
        files["v.jsonl"] = files["v.jsonl"][:-9]
    if fault == "no manifest":
        del files["v.json"]
    if fault != "no repository":
        hub.repos["datasets/me/wiki"] = [files]
    hub.fails = how.get("fails", "")
    hub.cut = how.get("cut", "")
    args = ("revokenize", "me/wiki", "-t", tiny / "encoder", "-q", "-o", "r.jsonl")
    got, _, err = on_hub(*args)
    assert got == code, err
    assert why in err.splitlines()[-1]  # the lines before are retries of huggingface_hub
    assert not (tmp_path / "r.jsonl").exists()


def test_without_a_network(tiny: Path, tmp_path: Path, on_hub: Vg) -> None:
    args = ("revokenize", "me/wiki", "-t", tiny / "encoder", "-o", "r.jsonl")
    code, _, err = on_hub(*args, HF_ENDPOINT="http://127.0.0.1:9")
    assert code == Exit.UNAVAILABLE
    assert "'me/wiki' is neither on this machine nor could it be fetched" in err
    code, _, err = on_hub(*args, "--offline")
    assert (code, err.count("\n")) == (Exit.UNAVAILABLE, 1)
    (tmp_path / "x.jsonl").write_text("")
    code, _, err = on_hub("push", tiny / "vg.faiss", "me/bank", "--offline")
    assert (code, "--offline never connects" in err) == (Exit.UNAVAILABLE, True)


def test_names_of_repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "run").mkdir(parents=True)
    assert all(
        map(is_hub_name, ("me/bank", "a-b/c.d_e@v1.0", "openai/whisper-small.en", "A/b@x/y"))
    )
    others = (
        "bank",
        "here/run",
        "a/b@../c",
        "a/b@c/../d",
        "a/b/c",
        "/a/b",
        "./a/b",
        "a/x.faiss",
        "a/v.jsonl.gz",
        "a/b c",
    )
    assert not any(map(is_hub_name, (*others, "builtin:minilm", "s3://a/b", "a/b#text", "a/*")))
    assert split_name("me/bank@v1") == ("me/bank", "v1")
    with pytest.raises(DataError, match="expected OWNER/NAME") as caught:
        split_name("bank")
    assert caught.value.code == Exit.USAGE
