"""Commands in shards: every writer makes one process's rows, every reader takes the folder."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Generator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import vg_command
from tests.tiny import text
from tests.tiny.images import save_backbone, save_photo
from tests.tiny.lm import save_shape, save_tokenizer
from vgtools.batch.plan import PlannedInput
from vgtools.batch.run import check_target, part_of
from vgtools.batch.run import run as run_shards
from vgtools.batch.shards import open_folder
from vgtools.cli import run
from vgtools.commands.options import ShardTarget
from vgtools.images.regions import open_regions
from vgtools.io.arrays import Array
from vgtools.io.artifact import open_features, read_manifest
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps
from vgtools.io.folders import Shards
from vgtools.io.streams import read_lines
from vgtools.text.blocks import Corpus, open_packed
from vgtools.text.retrieved import open_retrieved


def vg(*args: object) -> None:
    assert run([str(arg) for arg in args]) == 0


def joined(folder: Path, ending: str | None = None) -> bytes:
    return b"".join(Path(file.path).read_bytes() for file in Shards(folder).files(ending))


class Rows:
    """Writes rows of an array as image features."""

    def __init__(self, array: Array, ids: list[str], manifest: dict[str, Any]) -> None:
        self.config = {"command": "rows"}
        self._array = array
        self._ids = ids
        self._manifest = manifest

    def open(self, path: str, output: Any) -> Any:
        files = [path, path.replace(".npy", ".ids")]
        return output(files, self.config, npy={0: ("float32", self._array.shape[1])})

    def steps(self, pieces: Any, out: Any) -> Generator[int, None, None]:
        (piece,) = pieces
        for row in range(piece.start, piece.stop):
            out.write(self._array[row].tobytes())
            out.write(f"{self._ids[row]}\n".encode(), 1)
        out.commit({"counts": {"rows": piece.stop - piece.start}})
        yield 1
        out.finish(**self._manifest)


def save_features(folder: str, array: Array, ids: list[str], manifest: dict[str, Any]) -> None:
    """Write image features in 7 shards."""
    task = Rows(array, ids, manifest)
    sources = [PlannedInput("photos", 60, "stamp", "image", 60)]
    out = open_folder(folder, task.config, sources, None, 9)
    run_shards(out, task, name="rows")
    assert len(Shards(folder)) == 7


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two texts, the second with a byte-order mark, bad bytes and no line end at its end."""
    folder = tmp_path_factory.mktemp("texts")
    lines = text(120, seed=5)
    (folder / "a.txt").write_text("".join(f"{line}\n" for line in lines[:80]))
    rest = b"\xef\xbb\xbf" + "\r\n".join(lines[80:]).encode() + b"\n\n\xff bam den"
    (folder / "b.txt").write_bytes(rest)
    return [folder / "a.txt", folder / "b.txt"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny: Path, texts: list[Path]) -> Path:
    """The outputs of both ways: `one.*` of one process, `many.*` in shards."""
    folder = tmp_path_factory.mktemp("made")
    index = ("--index", tiny / "vg.faiss", "--device", "cpu", "-q")
    save_tokenizer(folder / "other")
    save_shape(folder / "shape.json")
    for name, more in (("one", ()), ("many", ("--shard-size", 900))):
        slash = "/" if more else ""
        for kind in ("jsonl", "npy", "jsonl.zst"):
            out = f"{folder / name}-{kind[:5]}{'z' * ('zst' in kind)}.{kind}{slash}"
            vg("vokenize", *texts, *index, "-o", out, *more)
        rows = f"{folder / name}-jsonl.jsonl{slash}"
        for kind in ("jsonl", "npy"):
            out = f"{folder / name}-re{kind}.{kind}{slash}"
            size = ("--shard-size", 9000) if more else ()
            vg("revokenize", rows, "-t", folder / "other", "-q", "-o", out, *size)
        vg("retrieve", *texts, *index, "-k", 3, "-o", f"{folder / name}-images.jsonl{slash}", *more)
    return folder


@pytest.mark.parametrize("name", ["jsonl", "rejsonl", "images"])
def test_the_rows_of_shards_joined_are_one_process_s_file(made: Path, name: str) -> None:
    folder = made / f"many-{name}.jsonl"
    assert joined(folder) == (made / f"one-{name}.jsonl").read_bytes()
    one, many = (read_manifest(made / f"{x}-{name}.jsonl") for x in ("one", "many"))
    assert many["shards"] == len(Shards(folder)) > 3
    same = one.keys() - {"argv", "files", "inputs", "config", "versions"}
    assert {key: many[key] for key in same} == {key: one[key] for key in same}
    assert one["config"] == {**many["config"], **({} if name == "rejsonl" else {"device": "cpu"})}


def test_compressed_shards_hold_the_rows_of_one_process(made: Path) -> None:
    rows = [list(read_lines(made / f"{x}-jsonlz.jsonl.zst")) for x in ("one", "many")]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 122


@pytest.mark.parametrize("name", ["npy", "renpy"])
@pytest.mark.parametrize("pack", ["stream", "document", "row", "best-fit"])
def test_packed_shards_are_the_blocks_of_one_file(made: Path, name: str, pack: str) -> None:
    (one,) = open_packed(made / f"one-{name}.npy")
    many = open_packed(made / f"many-{name}.npy/")
    assert len(many) > 3
    assert np.array_equal(np.concatenate([part.tokens for part in many]), one.tokens)
    starts = np.cumsum([0, *(len(part.tokens) for part in many)])
    ends = [part.ends + start for part, start in zip(many, starts, strict=False)]
    assert np.concatenate(ends).tolist() == one.ends.tolist()
    assert [part.line_of(0) for part in many][1] == len(many[0].ends) + 1
    left, right = Corpus([one, one], 7, pack), Corpus([*many, *many], 7, pack)
    assert len(left) == len(right)
    for number in range(len(left)):
        for expected, got in zip(left.block(number), right.block(number), strict=True):
            assert np.array_equal(expected, got)


def test_readers_take_the_folder(made: Path, tiny: Path, capsysbinary: Any) -> None:
    def printed(*args: object) -> str:
        capsysbinary.readouterr()
        vg(*args)
        return str(capsysbinary.readouterr().out, "utf-8")

    for name in ("jsonl.jsonl", "npy.npy"):
        both = [
            json.loads(printed("stats", "--vokens", f"{made}/{x}-{name}{end}"))
            for x, end in (("one", ""), ("many", "/"), ("many", ""))
        ]
        assert both[0] | {"vokens": ""} == both[1] | {"vokens": ""} == both[2] | {"vokens": ""}
    texts = [
        json.loads(printed("stats", f"{made}/{x}-jsonl.jsonl{end}"))
        for x, end in (("one", ""), ("many", "/"))
    ]
    assert texts[0] | {"corpus": ""} == texts[1] | {"corpus": ""}
    for name in ("jsonl", "images"):
        shown = [
            printed("show", f"{made}/{x}-{name}.jsonl{end}", "--index", tiny / "vg.faiss")
            for x, end in (("one", ""), ("many", "/"))
        ]
        assert len(shown[0]) > 500
        assert shown[0].replace("one-", "many-") == shown[1].replace("jsonl/", "jsonl")


def test_retrieved_images_and_features_are_read_from_folders(
    made: Path, tiny: Path, tmp_path: Path
) -> None:
    """What `vg finetune --retrieved --feats` opens."""
    feats = open_features(tiny / "feats.npy")
    manifest = {"kind": "image-features", "backbone": feats.manifest["backbone"]}
    order = np.arange(60)[::-1]
    folder = f"{tmp_path}/back.npy/"
    save_features(folder, np.asarray(feats.array)[order], [feats.ids[i] for i in order], manifest)
    one = open_retrieved(f"{made}/one-images.jsonl", feats, f"{tiny}/feats.npy")
    many = open_retrieved(f"{made}/many-images.jsonl/", feats, f"{tiny}/feats.npy")
    back = open_retrieved(f"{made}/many-images.jsonl", open_features(folder), folder)
    assert len(one) == len(many) == 122
    assert one.digest() == many.digest()
    assert np.array_equal(np.where(back.rows < 0, -1, 59 - back.rows), one.rows)
    numbers = np.array([3, 0, 100])
    for expected, got in zip(
        one.gather(feats.array, numbers),
        back.gather(open_features(folder).array, numbers),
        strict=True,
    ):
        assert np.array_equal(expected, got)
    # Without a manifest the rows are those of the index that is named.
    bare = tmp_path / "bare.jsonl"
    bare.write_bytes((made / "one-images.jsonl").read_bytes())
    named = open_retrieved(str(bare), open_features(folder), folder, index=folder)
    assert np.array_equal(named.rows, one.rows)
    other = open_retrieved(str(bare), open_features(folder), folder, index=f"{tiny}/vg.faiss")
    assert np.array_equal(other.rows, back.rows)


@pytest.mark.slow
def test_pretraining_on_shards_gives_the_weights_of_the_file(made: Path, tmp_path: Path) -> None:
    for kind in ("renpy.npy", "rejsonl.jsonl"):
        for name, end in (("one", ""), ("many", "/")):
            flags = ("--block", 16, "--batch-size", 8, "--steps", 3, "--device", "cpu", "-q")
            vokens = f"{made}/{name}-{kind}{end}"
            out = tmp_path / f"{name}-{kind}"
            start = ("--shape", made / "shape.json", "-t", made / "other")
            vg("pretrain", vokens, *start, *flags, "-o", out)
        runs = [tmp_path / f"{x}-{kind}" for x in ("one", "many")]
        files = [sorted(path.relative_to(r) for path in r.rglob("*.safetensors")) for r in runs]
        assert files[0] == files[1] != []
        for file in files[0]:
            assert (runs[0] / file).read_bytes() == (runs[1] / file).read_bytes()


def test_a_quoted_pattern_is_all_files_it_means(
    made: Path, tiny: Path, texts: list[Path], tmp_path: Path
) -> None:
    args = ("--index", tiny / "vg.faiss", "--device", "cpu", "-q", "-o", tmp_path / "v.jsonl")
    vg("vokenize", f"{texts[0].parent}/*.txt", *args)
    assert (tmp_path / "v.jsonl").read_bytes() == (made / "one-jsonl.jsonl").read_bytes()
    inputs = read_manifest(tmp_path / "v.jsonl")["inputs"]
    assert [entry["path"] for entry in inputs][:2] == [*map(str, texts)]


def test_damaged_shards_are_refused_where_they_are_read(
    tiny: Path, texts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "v.npy"
    index = ("--index", tiny / "vg.faiss", "--device", "cpu", "-q")
    vg("vokenize", *texts, *index, "-o", f"{folder}/", "--shard-size", 900)
    data = sorted(folder.glob("000002-*.npy"))[0]
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    assert run([*map(str, ("stats", "--vokens", folder))]) == Exit.DATA
    assert re.search(rf"{data}: is damaged: its sha256", capsys.readouterr().err)
    data.unlink()
    assert run([*map(str, ("stats", "--vokens", folder))]) == Exit.NO_INPUT
    assert "is missing" in capsys.readouterr().err
    vg("vokenize", *texts, *index, "-o", f"{folder}/")
    vg("stats", "--vokens", folder)


@pytest.mark.parametrize(
    "command",
    [
        "stats --vokens {0}/v.npy/",
        "stats {0}/v.jsonl",
        "show {0}/v.jsonl/",
        "vokenize {0}/t.txt --index {0}/v.npy",
        "vokenize {0}/v.jsonl/ --index {1}/vg.faiss --device cpu",
        "vokenize {0}/v.jsonl/ --index {1}/vg.faiss --device cpu -o {0}/x.jsonl/",
        "build-index {0}/v.npy/ -m {1}/run --device cpu -o {0}/x.faiss",
    ],
)
def test_a_folder_without_its_plan_is_one_clear_error(
    tiny: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("v.npy", "v.jsonl"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"000000-01234567{name[1:]}").write_text('{"text": "a"}\n')
    (tmp_path / "t.txt").write_text("bam\n")
    assert run(command.format(tmp_path, tiny).split()) == Exit.NO_INPUT
    why = r"it is a folder, expected a file; a folder of shards has a plan\.json"
    assert re.search(
        rf"{tmp_path}/v\.(npy|jsonl)/?: cannot be read: {why}", capsys.readouterr().err
    )


def test_parts_of_a_command_complete_its_folder(
    made: Path, tiny: Path, texts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["vokenize", *texts, "--index", tiny / "vg.faiss", "--device", "cpu"]
    args += ["-o", f"{tmp_path}/v.jsonl/", "--shard-size", 900]
    vg(*args, "--shard", "1/2")
    total = len(Shards(made / "many-jsonl.jsonl"))
    left = len(range(0, total, 2))
    assert f"part 1/2 is done; {left} shards of {total} are missing" in capsys.readouterr().err
    assert run(["stats", f"{tmp_path}/v.jsonl"]) == Exit.NO_INPUT
    assert "is not complete: shards are missing" in capsys.readouterr().err
    vg(*args, "--shard", "0/2")
    assert "122 rows" in capsys.readouterr().err
    assert joined(tmp_path / "v.jsonl") == joined(made / "many-jsonl.jsonl")
    vg(*args, "--shard", "0/2")
    assert "is up to date" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["-", "-o", "{}/v.jsonl/"], "standard input cannot be cut into shards"),
        (["{}/t.txt", "--shard", "0/2"], "--shard needs a folder of shards"),
        (["{}/t.txt", "-o", "{}/v.jsonl", "--shard", "0/2"], "--shard needs a folder"),
        (["{}/t.txt", "-o", "{}/v.jsonl", "--shard-size", "7"], "--shard-size needs a folder"),
        (["{}/t.txt", "-o", "{}/v.jsonl/", "--limit", "3"], "--limit does not go with"),
        (["{}/t.txt", "-o", "{}/v.jsonl/", "--shard", "2/2"], "--shard 2/2: expected I/N"),
        (["{}/t.txt", "-o", "{}/v.faiss/"], "is named as its file, expected"),
        (["{}/t.txt", "-o", "{}/q.parquet#v.jsonl/"], "# starts the columns of a table"),
        (["{}/t.txt", "-o", "{}/out/"], "is named as its file, expected X.jsonl/"),
    ],
)
def test_flags_that_do_not_go_with_shards(
    tiny: Path, tmp_path: Path, args: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.txt").write_text("bam\n")
    words = [word.format(tmp_path) for word in args]
    code = run(["vokenize", *words, "--index", f"{tiny}/vg.faiss", "--device", "cpu"])
    assert (code, why in capsys.readouterr().err) == (Exit.USAGE, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.txt"]


def test_parts() -> None:
    assert part_of(None) == (0, 1)
    assert part_of("3/64") == (3, 64)
    for wrong in ("4/4", "-1/4", "1", "a/b", "1/0", "0/2 "):
        with pytest.raises(DataError, match="expected I/N") as error:
            part_of(wrong)
        assert error.value.code == Exit.USAGE
    check_target(["a.txt"], ShardTarget(output="o.jsonl/", shard="0/1", shard_size=5), limit=False)
    with pytest.raises(DataError, match="--some-flag does not go"):
        check_target(["a.txt"], ShardTarget(output="o.jsonl/"), some_flag=True)


# --------------------------------------------------------------------------------------- features


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backbone, 21 photos of which one is damaged, and two tars."""
    folder = tmp_path_factory.mktemp("pictures")
    save_backbone(folder / "net")
    for number in range(21):
        save_photo(folder / f"photos/p{number}.png", number)
    (folder / "photos/p13.png").write_bytes(b"no picture")
    for name, numbers in (("a.tar", range(5)), ("b.tar", range(5, 12))):
        with tarfile.open(folder / name, "w") as tar:
            for number in numbers:
                tar.add(folder / f"photos/p{number}.png", f"{number}.png")
    return folder


def test_features_in_shards_are_those_of_one_process(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("-b", pictures / "net", "--device", "cpu", "--batch-size", 4, "--on-error", "skip")
    total = sum(path.stat().st_size for path in (pictures / "photos").iterdir())
    size = ("--shard-size", -(-total // 5))
    for name, sources in (
        ("dir", [pictures / "photos"]),
        ("tars", [pictures / "a.tar", pictures / "b.tar"]),
        ("both", [pictures / "a.tar", pictures / "photos"]),
    ):
        one, many = tmp_path / f"{name}1.npy", tmp_path / f"{name}2.npy"
        vg("extract-image-feats", *sources, *flags, "-o", one)
        vg("extract-image-feats", *sources, *flags, "-o", f"{many}/", *size, "--shard", "1/2")
        capsys.readouterr()
        vg("extract-image-feats", *sources, *flags, "-o", f"{many}/", *size)
        expected, found = open_features(one), open_features(f"{many}/")
        shards = Shards(many)
        assert len(shards) == {"dir": 5, "tars": 2, "both": 6}[name]
        assert found.ids == expected.ids
        assert np.array_equal(np.asarray(found.array), expected.array)
        errors = one.with_suffix(".errors.jsonl").read_bytes()
        assert joined(many, ".errors.jsonl") == errors
        rows = [row.rows for row in shards.files()]
        assert sum(rows) == len(expected.ids) == found.manifest["rows"]
        if name != "tars":
            assert f"1 image could not be used; {many}/*.errors.jsonl" in capsys.readouterr().err
        assert found.backbone == expected.backbone
    code = run(
        [*map(str, ["extract-image-feats", *sources, *flags[:-1], "fail", "-o", f"{many}/"])]
    )
    assert (code, "more than --on-error fail allows" in capsys.readouterr().err) == (65, True)


def test_regions_in_shards_are_those_of_one_process(pictures: Path, tmp_path: Path) -> None:
    boxes = tmp_path / "boxes.jsonl"
    rows = [
        # Images without a box, also at the ends of shards; p13 cannot be read.
        {"image": f"p{n}.png", "boxes": [[i, i, 30 + i, 20 + n] for i in range(n % 3)]}
        for n in range(21)
    ]
    boxes.write_bytes(b"".join(map(dumps, rows)))
    flags = ("-b", pictures / "net", "--device", "cpu", "--batch-size", 4, "--on-error", "skip")
    total = sum(path.stat().st_size for path in (pictures / "photos").iterdir())
    one, many = tmp_path / "one.npy", tmp_path / "many.npy"
    source = ("extract-image-feats", pictures / "photos", *flags, "--regions", boxes, "--cut", "-q")
    vg(*source, "-o", one)
    vg(*source, "-o", f"{many}/", "--shard-size", -(-total // 5), "--shard", "1/2")
    vg(*source, "-o", f"{many}/", "--shard-size", -(-total // 5))
    assert len(Shards(many)) == 5
    expected, found = open_regions(one), open_regions(many)
    assert found.images == expected.images == [f"p{n}.png" for n in range(21) if n != 13]
    assert found.counts.tolist() == [n % 3 for n in range(21) if n != 13]
    for image in expected.images:
        for a, b in zip(astuple(expected.of(image)), astuple(found.of(image)), strict=True):
            assert np.array_equal(a, b)
    assert found.manifest["rows"] == expected.manifest["rows"] == sum(n % 3 for n in range(21)) - 1
    errors = one.with_suffix(".errors.jsonl").read_bytes()
    assert joined(many, ".errors.jsonl") == errors


def test_tars_with_one_image_twice_are_refused(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("-b", pictures / "net", "--device", "cpu", "-o", tmp_path / "f.npy")
    shutil.copy(pictures / "a.tar", tmp_path / "c.tar")
    args = ["extract-image-feats", pictures / "a.tar", tmp_path / "c.tar", *flags]
    assert run([*map(str, args)]) == Exit.DATA
    assert "duplicate id '0.png' in two sources" in capsys.readouterr().err


def test_an_index_of_shards_is_that_of_the_file(tiny: Path, tmp_path: Path) -> None:
    feats = open_features(tiny / "feats.npy")
    manifest = {"kind": "image-features", "backbone": feats.manifest["backbone"]}
    save_features(f"{tmp_path}/feats.npy/", feats.array, feats.ids, manifest)
    index = ("--matcher", tiny / "run", "--device", "cpu", "-q")
    for limit in ((), ("--limit", 23)):
        for name, source in (("one", tiny / "feats.npy"), ("many", f"{tmp_path}/feats.npy/")):
            vg("build-index", source, *index, *limit, "-o", tmp_path / f"{name}.faiss", "--restart")
        for suffix in ("faiss", "ids"):
            both = [(tmp_path / f"{name}.{suffix}").read_bytes() for name in ("one", "many")]
            assert both[0] == both[1]


# ------------------------------------------------------------------------------------- processes


def started(*args: object) -> subprocess.Popen[str]:
    command = vg_command(*map(str, args))
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wait_for_commits(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    while len(list(folder.glob("[0-9]*.json"))) < count:
        assert process.poll() is None, "it ended before"
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_ends_a_run_costs_one_shard(
    tiny: Path, made: Path, texts: list[Path], tmp_path: Path, number: int
) -> None:
    folder = tmp_path / "v.jsonl"
    args = ["vokenize", *texts, "--index", tiny / "vg.faiss", "--device", "cpu"]
    args += ["-o", f"{folder}/", "--shard-size", 50]
    process = started(*args)
    wait_for_commits(folder, 3, process)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    if number == signal.SIGTERM:
        assert process.returncode == Exit.STOPPED
        assert said.endswith("run the same command again to resume\n")
        assert not list(folder.glob(".*")), "nothing private is left"
    else:
        assert process.returncode == -signal.SIGKILL
        assert len(list(folder.glob(".*"))) <= 1
    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("[0-9]*")}
    assert len(stamps) >= 6
    vg(*args)
    assert not list(folder.glob(".*"))
    for path, stamp in stamps.items():
        assert not path.exists() or path.stat().st_mtime_ns == stamp or number == signal.SIGKILL
    assert joined(folder) == joined(made / "many-jsonl.jsonl")
