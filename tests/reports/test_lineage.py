"""`vg lineage`: files and the commands that made them, changes, and a Makefile."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import save_encoder
from tests.tiny.lm import save_shape, save_tokenizer, sentences
from tests.tiny.runs import refused
from vgtools import __version__, cli
from vgtools.io.errors import Exit
from vgtools.io.files import dumps, sha256_file
from vgtools.io.records import record_of
from vgtools.io.written import END, seal

CAPTIONS = "".join(f"{n}.jpg#{k}\tA {w} dog runs.\n" for n, w in enumerate("red old") for k in "01")

NOTHING = "nothing that has a sha256 has changed"  # a folder of photos has none


def vg(line: str) -> None:
    assert cli.run(shlex.split(line)) == 0, line


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which captions became an index of keywords, and a text its images."""
    folder = tmp_path_factory.mktemp("a folder: 50% $of #it's")
    (folder / "official/photos").mkdir(parents=True)
    (folder / "official/tokens.txt").write_text(CAPTIONS)
    for n in range(7):
        (folder / f"official/photos/{n}.jpg").write_bytes(b"x")
    (folder / "t.txt").write_text("An old dog.\nA red one.\n")
    before = Path.cwd()
    os.chdir(folder)
    try:
        pictures = "--images official/photos --images-out images.jsonl"
        vg(f"prepare flickr8k official/tokens.txt {pictures} -o captions.jsonl")
        vg("build-index captions.jsonl --keywords 3 -o keys.jsonl -q")
        vg("retrieve t.txt --index keys.jsonl -o found.jsonl/ --shard-size 8 -q")
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the folder, as the working directory."""
    shutil.copytree(made, tmp_path / "copy", copy_function=shutil.copy2)
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def said(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[list[str], str]:
    capsys.readouterr()
    assert cli.run(["lineage", *args]) == 0
    out, err = capsys.readouterr()
    return out.splitlines(), err


@pytest.mark.usefixtures("copy")
def test_a_lineage_leads_back_to_the_official_files(capsys: pytest.CaptureFixture[str]) -> None:
    prepare = (
        "vg prepare flickr8k official/tokens.txt --images official/photos"
        " --images-out images.jsonl -o captions.jsonl"
    )
    tokens = f"given, sha256 {sha256_file('official/tokens.txt')[:12]}"
    expected = [
        "found.jsonl: vg retrieve t.txt --index keys.jsonl -o found.jsonl/ --shard-size 8 -q",
        "  keys.jsonl: vg build-index captions.jsonl --keywords 3 -o keys.jsonl -q",
        f"    captions.jsonl: {prepare}",
        f"      official/tokens.txt: {tokens}",
        "      official/photos: given, no sha256",
        f"  t.txt: given, sha256 {sha256_file('t.txt')[:12]}",
    ]
    lines, error = said(capsys, "found.jsonl/")
    assert sorted(lines) == sorted(expected)
    assert (lines[:4], error) == (expected[:4], f"vg lineage: {NOTHING} since\n")
    assert said(capsys, "images.jsonl", "-q") == (
        [
            f"images.jsonl: {prepare}",
            f"  official/tokens.txt: {tokens}",
            "  official/photos: given, no sha256",
        ],
        "",
    )
    # A file next to the main file, and the manifest itself.
    for name in ("keys.ids", "keys.json"):
        assert said(capsys, name)[0][0] == expected[1].strip()


def test_the_same_as_json_and_from_another_folder(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir("official")
    (line,), _ = said(capsys, "../keys.jsonl", "--json")
    found = json.loads(line)
    assert found["made"] == str(copy / "keys.jsonl")
    captions, keys = found["steps"]
    assert captions["path"] == str(copy / "captions.jsonl")
    assert keys["read"] == [captions["path"]]
    assert keys["argv"][:2] == ["vg", "build-index"]
    assert (keys["kind"], keys["vg"], keys["folder"]) == ("index", __version__, str(copy))
    files = {str(copy / name): sha256_file(copy / name) for name in ("keys.jsonl", "keys.ids")}
    assert keys["files"] == files
    assert found["given"] == [
        {"path": "tokens.txt", "changes": [], "sha256": sha256_file("tokens.txt")},
        {"path": "photos", "changes": [], "sha256": None},
    ]


def changed(capsys: pytest.CaptureFixture[str], name: str = "found.jsonl/") -> list[str]:
    lines, error = said(capsys, name)
    found = [line.strip().removeprefix("! ") for line in lines if line.strip().startswith("! ")]
    count = f"{len(found)} change{'s' * (len(found) > 1)}" if found else NOTHING
    assert error == f"vg lineage: {count} since\n"
    return found


@pytest.mark.usefixtures("copy")
def test_what_has_changed_since_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert changed(capsys) == []
    before = sha256_file("t.txt")
    Path("t.txt").write_text("Another text.\n")
    now = sha256_file("t.txt")
    text = f"t.txt has changed: sha256 was {before[:12]}, is now {now[:12]}"
    assert changed(capsys) == [text]
    Path("official/tokens.txt").unlink()
    assert {*changed(capsys)} == {text, "official/tokens.txt is missing"}
    Path("official/tokens.txt").write_text(CAPTIONS)
    manifest = Path("captions.json")
    manifest.write_text(manifest.read_text().replace(f'"vg": "{__version__}"', '"vg": "0.0.1"'))
    assert {*changed(capsys)} == {text, f"vg was 0.0.1, is now {__version__}"}
    # The index is made again, from other captions; the rows are still from the old index.
    vg("prepare flickr8k official/tokens.txt -o captions.jsonl --restart")
    vg("build-index captions.jsonl --keywords 1 -o keys.jsonl -q --restart")
    assert {*changed(capsys)} == {text, "keys.jsonl has been made again"}
    Path("keys.ids").write_text("x\n")
    assert len(changed(capsys)) == 3
    Path("captions.json").unlink()
    Path("captions.jsonl").unlink()
    assert "captions.jsonl is missing" in changed(capsys)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_makefile_makes_it_again_in_an_empty_folder(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(made)
    lines, _ = said(capsys, "keys.jsonl", "--makefile")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "Makefile").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("PYTHONPATH", str(Path(cli.__file__).parents[1]))
    monkeypatch.setenv("VG", f"{sys.executable} -m vgtools")
    done = subprocess.run(["make", "-e", "check"], cwd=empty, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("captions.jsonl", "keys.jsonl", "keys.ids"):
        assert (empty / name).read_bytes() == (made / name).read_bytes()
        assert f"{name}: OK" in done.stdout
    again = subprocess.run(["make", "-e"], cwd=empty, capture_output=True, text=True)
    assert "Nothing to be done" in again.stdout
    # Other bytes of an official file end it before anything is made of them.
    source = tmp_path / "source"
    shutil.copytree(made / "official", source / "official")
    (source / "official/tokens.txt").write_text(CAPTIONS + CAPTIONS[:8])
    other = tmp_path / "other"
    other.mkdir()
    call = ["make", "-e", "-f", str(empty / "Makefile"), f"FROM={source}"]
    done = subprocess.run(call, cwd=other, capture_output=True, text=True)
    assert (done.returncode, "official/tokens.txt: FAILED" in done.stdout) == (2, True)
    assert [path.name for path in other.iterdir()] == ["official"]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_takes_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "it's $x"
    folder.mkdir()
    monkeypatch.chdir(folder)
    text, made = r"50% = #1: $(t) 'a\b'.txt", r"a=100% %: #1 it's $$ a\b.jsonl"
    Path(text).write_text("A dog.\n")
    record(made.removesuffix("l"), ["vg", "prepare", "sentences", text, "-o", made], made)
    lines, error = said(capsys, made, "--makefile")
    assert error == "vg lineage: 1 change since\n"  # the record is of a file that was not made
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "Makefile").write_text("\n".join(lines) + "\n")
    call = ["make", f"VG={sys.executable} -m vgtools"]
    monkeypatch.setenv("PYTHONPATH", str(Path(cli.__file__).parents[1]))
    done = subprocess.run(call, cwd=empty, capture_output=True, text=True)
    assert (done.returncode, [*map(str, empty.glob("*.jsonl"))]) == (0, [str(empty / made)])
    again = subprocess.run(call, cwd=empty, capture_output=True, text=True)
    assert "Nothing to be done" in again.stdout


@pytest.mark.usefixtures("copy")
def test_the_makefile_of_shards_and_of_a_command_that_writes_two_files(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines, _ = said(capsys, "found.jsonl", "--makefile")
    rule = lines.index("found.jsonl/shards.jsonl: keys.jsonl t.txt")
    call = "retrieve t.txt --index keys.jsonl --output found.jsonl/ --shard-size 8 --quiet"
    assert lines[rule + 1] == f"\t$(VG) {call}"
    checked = [line.split()[2].rstrip("'") for line in lines if line.startswith("\t@echo")]
    shards = sorted(f"found.jsonl/{path.name}" for path in Path("found.jsonl").glob("*-*"))
    assert checked[-3:] == shards
    # Captions and pictures are written by one command, which is called once.
    record(
        "x.json",
        ["vg", "vokenize", "images.jsonl", "--index", "captions.jsonl", "-o", "x.npy"],
        "x.npy",
    )
    lines, _ = said(capsys, "x.npy", "--makefile")
    assert [line for line in lines if "flickr8k" in line] == [
        "\t$(VG) prepare flickr8k official/tokens.txt --images official/photos"
        " --images-out images.jsonl --output captions.jsonl"
    ]
    assert "images.jsonl: captions.jsonl" in lines


def record(path: str, argv: list[str], *files: str, **more: Any) -> None:
    """Write a record by hand."""
    facts = {name: {"sha256": "0" * 64} for name in files}
    body = {"format": 1, "vg": __version__, "argv": argv, "files": facts, **more}
    if path.endswith("run.json"):
        body["sha256"] = seal(body, END)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(json.dumps(body).encode())


def test_a_file_without_a_record_is_of_the_command_that_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("photos", "emoji", "cache"):
        (tmp_path / folder).mkdir()
    for file in ("f.npy", "c.jsonl", "e.jsonl", "images.jsonl"):
        (tmp_path / file).write_text("x")
    extract = "extract-image-feats photos emoji -o f.npy --captions c.jsonl"
    openmoji = "prepare openmoji emoji -o e.jsonl --images-out images.jsonl"
    train = "train-matcher vokenization c.jsonl f.npy --valid e.jsonl --cache cache -o m"
    record("f.json", ["vg", *extract.split()], "f.npy")
    record("e.json", ["vg", *openmoji.split()], "e.jsonl")
    record("m/run.json", ["vg", *train.split()], "run/x")
    told, _ = said(capsys, "m")
    assert "  c.jsonl: written with f.npy" in told
    assert "    emoji: written with e.jsonl" in told
    assert [one["path"] for one in json.loads(said(capsys, "m", "--json")[0][0])["given"]] == [
        "photos"
    ]
    rules = {line for line in said(capsys, "m", "--makefile")[0] if ": " in line}
    assert {"c.jsonl: f.npy", "emoji: e.jsonl", "f.npy: photos emoji"} <= rules
    assert not any("(FROM)'/" in line and "photos" not in line for line in rules)


def test_a_word_or_number_in_the_place_of_a_file_is_not_an_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("photos", "vqa", "lm"):
        (tmp_path / folder).mkdir()
    (tmp_path / "boxes.jsonl").write_text("x")
    regions = "extract-image-feats photos --regions boxes.jsonl --regions grid -o r.npy"
    record("r.json", ["vg", *regions.split()], "r.npy")
    task = "finetune task vqa vqa -e lm --answers 50 -o m"
    record("m/run.json", ["vg", *task.split()], "x")
    for name, read in (("r.npy", ["photos", "boxes.jsonl"]), ("m", ["vqa", "lm"])):
        given = json.loads(said(capsys, name, "--json")[0][0])["given"]
        assert {*read} == {one["path"] for one in given}
    rules = said(capsys, "r.npy", "--makefile")[0]
    at = next(n for n, line in enumerate(rules) if line.startswith("r.npy: "))
    assert {*rules[at].split()} == {"r.npy:", "photos", "boxes.jsonl"}
    assert " --regions boxes.jsonl --regions grid " in rules[at + 1]


def test_training_that_starts_from_a_run_names_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run's own weights are others than those that it starts from."""
    monkeypatch.chdir(tmp_path)
    save_shape(tmp_path / "shape.json")
    save_tokenizer(tmp_path / "t")
    texts = sentences(30)
    Path("text.txt").write_text("".join(f"{text}\n" for text in texts))
    fast = "--block 16 --batch-size 8 --steps 1 --device cpu -q"
    begin = f"pretrain text.txt --shape shape.json -t t {fast} -o lm"
    vg(begin)
    vg(f"pretrain text.txt -e lm {fast} -o further")
    assert changed(capsys, "further") == []
    vg(f"pretrain text.txt --shape shape.json -t t {fast} --steps 2 --keep-every 1 -o steps")
    vg(f"pretrain text.txt -e steps/step-1 {fast} -o later")
    assert changed(capsys, "later") == []
    shutil.rmtree("lm")
    vg(f"{begin} --seed 1")
    assert changed(capsys, "further") == ["lm has been made again"]


def test_tuning_that_starts_from_a_tuned_network_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such runs have no weights of their own: the hash of nothing does not make them the same."""
    monkeypatch.chdir(tmp_path)
    save_encoder(tmp_path / "bert")
    rows = ({"text": "bam", "label": str(n % 2)} for n in range(8))
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    tune = "finetune classify rows.jsonl --dev rows.jsonl --steps 1 --device cpu -q"
    vg(f"{tune} -e bert --seed 1 -o first")
    vg(f"{tune} -e first/seed-1/model --seed 1 -o second")
    assert changed(capsys, "second") == []
    shutil.rmtree("first")
    vg(f"{tune} -e bert --seed 1 --lr 0.01 -o first")
    assert changed(capsys, "second") == ["first/seed-1/model has been made again"]


def test_a_makefile_of_runs_of_several_folders_and_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("x")
    (tmp_path / "sub").mkdir()
    at = str(tmp_path)
    lm = ["vg", "pretrain", f"{at}/a.txt", "--encoder", "hub/model", "-o", f"{at}/lm"]
    record("lm/run.json", lm, "encoder/model.safetensors", processes=[2], fingerprint="f" * 64)
    task = ["vg", "finetune", "rte", "../RTE", "-e", "../lm/encoder", "-o", "rte"]
    record("sub/rte/run.json", task, "metrics.jsonl", config={"encoder": "f" * 64})
    lines, _ = said(capsys, "sub/rte/metrics.jsonl", "--makefile")
    rules = "\n".join(lines).partition("all: ")[2]
    assert rules.splitlines() == [
        "sub/rte/run.json",
        "",
        "RTE:",
        "\tln -s '$(FROM)'/RTE RTE",
        "",
        "a.txt:",
        "\tln -s '$(FROM)'/a.txt a.txt",
        "",
        "lm/run.json: a.txt",
        "\t$(TORCHRUN) --nproc-per-node 2 -m vgtools pretrain lm a.txt --output lm"
        " --encoder hub/model",
        "",
        "sub/rte/run.json: RTE lm/run.json",
        "\tmkdir -p sub",
        "\tmkdir -p sub && cd sub && $(VG) finetune task rte ../RTE --encoder ../lm/encoder"
        " --output rte",
        "",
        "check: all",
        f"\t@echo '{'0' * 64}  lm/encoder/model.safetensors' | $(SHA256) -c -",
        f"\t@echo '{'0' * 64}  sub/rte/metrics.jsonl' | $(SHA256) -c -",
    ]


def test_what_cannot_be_made_again_has_no_makefile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, argv, why in (
        ("piped", ["vg", "prepare", "sentences", "-", "-o", "piped.jsonl"], "was made from a pipe"),
        ("mine", ["my.py"], "was made by the program my.py, which alone makes it again"),
        ("old", ["vg", "stats", "--old"], "cannot read vg stats --old: No such option"),
        ("odd", ["vg", "prepare", "squad", "a\nb", "-o", "odd.jsonl"], "has a control character"),
    ):
        record(f"{name}.json", argv, f"{name}.jsonl")
        assert cli.run(["lineage", f"{name}.jsonl", "--makefile"]) == Exit.DATA
        assert why in capfd.readouterr().err
        assert cli.run(["lineage", f"{name}.jsonl"]) == 0
        assert len(capfd.readouterr().out.splitlines()) == (4 if name == "odd" else 2)


@pytest.mark.parametrize("text", ["a;id>b", "a|b", "a*", "a?", "a[b", "./-a", "~a", "a\\"])
def test_a_name_that_make_takes_for_more_has_no_makefile(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What follows a ; in a rule is a command for the shell."""
    monkeypatch.chdir(tmp_path)
    Path(text).write_text("A dog.\n")
    record("made.json", ["vg", "prepare", "sentences", text, "-o", "made.txt"], "made.txt")
    assert cli.run(["lineage", "made.txt", "--makefile"]) == Exit.DATA
    assert "which a name in a Makefile cannot have" in capfd.readouterr().err


@pytest.mark.parametrize("index", ["builtin:emoji", "user/emoji@v1"])
def test_what_a_package_or_hub_holds_is_not_missing(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text("A dog.\n")
    argv = ["vg", "vokenize", "t.txt", "--index", index, "-o", "v.jsonl"]
    record("v.json", argv, "v.jsonl")
    lines, _ = said(capsys, "v.jsonl")
    assert not [line for line in lines[1:] if "emoji" in line]
    made, _ = said(capsys, "v.jsonl", "--makefile")
    assert "v.jsonl: t.txt" in made
    assert not [line for line in made if "ln -s" in line and "emoji" in line]


def test_a_chain_of_steps_is_followed_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for n in range(600):
        Path(f"{n}.jsonl").write_text("{}\n")
        words = ["vg", "revokenize", f"{n + 1}.jsonl", "-t", "x", "-o", f"{n}.jsonl"]
        record(f"{n}.json", words, f"{n}.jsonl")
    assert cli.run(["lineage", "0.jsonl"]) == Exit.DATA
    refused(capfd, "0.jsonl: was made in more than 200 steps", "vg lineage 201.jsonl shows")
    assert cli.run(["lineage", "400.jsonl"]) == 0
    assert capfd.readouterr().out.count("vg revokenize") == 200


def test_bad_records_are_refused_and_those_of_others_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.txt").write_text("x")
    assert cli.run(["lineage", "x.txt"]) == Exit.DATA
    refused(capfd, "x.txt: has no manifest or run.json")
    assert cli.run(["lineage", "none"]) == Exit.NO_INPUT
    assert cli.run(["lineage", "x.txt", "--json", "--makefile"]) == Exit.USAGE
    capfd.readouterr()
    for body, why in (
        ({"files": {"y.npy": 3}}, '"files.y.npy"'),
        ({"inputs": [{"path": 3}]}, '"inputs[0].path"'),
        ({"processes": ["x"]}, '"processes[0]"'),
        ({"format": 9}, "format 9 was written by vg"),
    ):
        record("y.json", ["vg", "stats"], "y.npy")
        y = Path("y.json")
        y.write_bytes(json.dumps(json.loads(y.read_bytes()) | body).encode())
        assert cli.run(["lineage", "y.npy"]) == Exit.DATA
        refused(capfd, "y.json: ", why)
        assert record_of("x.txt") is None, "the damaged manifest is of another file"
    record("y.json", ["vg", "build-index", "y.npy", "-o", "y.npy"], "y.npy")
    assert cli.run(["lineage", "y.npy"]) == 0, "a record that names its own output"


def test_names_that_were_permuted_and_a_retriever_of_other_weights_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    versions = {"vgtools": __version__}
    base = {"format": 1, "vg": __version__, "config": {}, "versions": versions, "inputs": []}

    def write(name: str, data: bytes) -> dict[str, Any]:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(data)
        return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def run(mark: str, encoder: dict[str, Any]) -> None:
        facts = {"retr/retriever.safetensors": write("retr/retriever.safetensors", b"w")}
        files = {Path(name).name: {"sha256": one["sha256"]} for name, one in facts.items()}
        body = {"format": 1, "kind": "retriever", "fingerprint": mark, "encoder": encoder}
        body |= {
            "argv": ["vg", "train-matcher", "visual-awareness"],
            "versions": versions,
            "files": files,
        }
        body |= {"config": {}, "inputs": []}
        Path("retr/run.json").write_bytes(dumps(body | {"sha256": seal(body, END)}))

    feats = {"f.npy": write("f.npy", b"array"), "f.ids": write("f.ids", b"a\nb\n")}
    argv = ["vg", "extract-image-feats", "photos", "-o", "f.npy"]
    Path("photos").mkdir()
    Path("f.json").write_bytes(dumps(base | {"argv": argv, "files": feats}))
    frozen = {"ref": "builtin:minilm", "fingerprint": "e" * 64}
    run("1" * 64, frozen)
    index = {"b.faiss": write("b.faiss", b"index"), "b.ids": write("b.ids", b"a\nb\n")}
    argv = ["vg", "build-index", "f.npy", "--matcher", "retr", "-o", "b.faiss"]
    mark = hashlib.sha256(b"1" * 64).hexdigest()
    about = {"config": {"features": feats, "encoder": "e" * 64}, "files": index}
    about |= {"matcher": {"run": "retr", "fingerprint": mark}, "kind": "index"}
    Path("b.json").write_bytes(dumps(base | {"argv": argv} | about))

    def changes() -> list[str]:
        capsys.readouterr()
        assert cli.run(["lineage", "b.faiss", "--json"]) == 0
        steps = json.loads(capsys.readouterr().out)["steps"]
        return [change["name"] for step in steps for change in step.get("changes", ())]

    assert changes() == []
    run("2" * 64, frozen)
    assert changes() == ["retr"]
    run("1" * 64, frozen)
    other = feats | {"f.ids": write("f.ids", b"b\na\n")}
    argv = ["vg", "extract-image-feats", "photos", "-o", "f.npy"]
    Path("f.json").write_bytes(dumps(base | {"argv": argv, "files": other}))
    assert changes() == ["f.npy"]
