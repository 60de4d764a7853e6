"""`vg prepare vectors` and `imagenet` as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vgtools.cli import run
from vgtools.datasets.imagenet import wnid_of
from vgtools.text.word_vectors import open_word_vectors

Runner = Callable[..., Any]
SHARK = "n01484850"
TENCH = "n01440764"


def test_vectors_are_packed_and_what_is_left_out_is_counted(vg: Runner, tmp_path: Path) -> None:
    (tmp_path / "v.vec").write_text("3 2\ncat 1 2\ncat 3 4\ndog 5 6\n")
    call = ("prepare", "vectors", "v.vec", "-o", "v.npy")
    done = vg(*call, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr == (
        b"vg prepare: vectors of 2 words in v.npy; left out: duplicate word: 1\n"
    )
    manifest = json.loads((tmp_path / "v.json").read_text())
    assert manifest["kind"] == "word-vectors"
    assert (manifest["rows"], manifest["dim"]) == (2, 2)
    assert open_word_vectors(str(tmp_path / "v.npy")).row("dog") == 1
    assert vg(*call, cwd=tmp_path).stderr == b"vg prepare: v.npy is up to date\n"
    done = vg("prepare", "vectors", "-", "-o", "w.npy", "-q", cwd=tmp_path, input=b"a 1\nb 2\n")
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "w.ids").read_text() == "a\nb\n"


def test_a_bad_line_and_a_bad_name_are_refused(vg: Runner, tmp_path: Path) -> None:
    (tmp_path / "v.vec").write_text("cat 1 2\ndog 1\n")
    done = vg("prepare", "vectors", "v.vec", "-o", "v.npy", cwd=tmp_path)
    assert done.returncode == 65
    assert b"v.vec:2: expected a word and 2 finite numbers" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v.vec"]
    assert vg("prepare", "vectors", "v.vec", "-o", "v.vec", cwd=tmp_path).returncode == 2
    assert vg("prepare", "vectors", "no.vec", "-o", "v.npy", cwd=tmp_path).returncode == 66


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "net"
    for name in (f"{SHARK}/{i}.jpg" for i in range(5)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(folder / name)
    Image.new("RGB", (4, 4)).save(folder / f"{TENCH}_7.png")
    Image.new("RGB", (4, 4)).save(folder / "other.png")
    (folder / "notes.txt").write_text("")
    return folder


def rows_of(*args: str | Path) -> list[dict[str, Any]]:
    out = Path(args[0]).parent / "rows.jsonl"
    assert run(["prepare", "imagenet", *map(str, args), "-o", str(out), "--restart"]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_pictures_get_the_nouns_and_the_definition_of_their_synset(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(pictures, "--images-out", pictures.parent / "i.jsonl")
    assert rows[0] == {
        "image": f"{TENCH}_7.png",
        "synset": TENCH,
        "nouns": ["tench", "Tinca tinca"],
        "text": "freshwater dace-like game fish of Europe and western Asia noted for ability to "
        "survive outside water",
    }
    assert [row["image"] for row in rows[1:]] == [f"{SHARK}/{i}.jpg" for i in range(5)]
    assert rows[1]["nouns"][0] == "great white shark"
    images = [json.loads(x) for x in (pictures.parent / "i.jsonl").read_text().splitlines()]
    assert images[0] == {"image": rows[0]["image"], "path": str(pictures / rows[0]["image"])}
    assert "picture without a synset in its name: 1" in capsys.readouterr().err


def test_least_and_most_choose_pictures_by_the_seed(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(pictures, "--least", "2", "--most", "2")
    assert len(rows) == 2
    assert {row["synset"] for row in rows} == {SHARK}
    error = capsys.readouterr().err
    assert "picture of a synset with fewer than 2: 1" in error
    assert "picture beyond 2 of its synset: 3" in error
    drawn = {
        tuple(row["image"] for row in rows_of(pictures, "--most", "2", "--seed", str(seed)))
        for seed in range(8)
    }
    assert len(drawn) > 1
    again = rows_of(pictures, "--least", "2", "--most", "2")
    assert again == rows
    # What is drawn of one synset does not depend on the others.
    (pictures / f"{TENCH}_7.png").unlink()
    assert rows_of(pictures, "--most", "2") == rows


def test_a_synset_that_is_not_known_is_named_and_can_be_given(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (4, 4)).save(pictures / "n99999999_1.jpg")
    out = pictures.parent / "rows.jsonl"
    assert run(["prepare", "imagenet", str(pictures), "-o", str(out)]) == 65
    error = capsys.readouterr().err
    assert "n99999999_1.jpg: has 1 picture of n99999999" in error
    assert "--glosses" in error
    glosses = pictures.parent / "g.tsv"
    glosses.write_text("n99999999\tred dog, hound\ta dog that is red\n")
    rows = rows_of(pictures, "--glosses", glosses)
    assert rows[-1]["nouns"] == ["red dog", "hound"]
    assert rows[-1]["text"] == "a dog that is red"
    glosses.write_text("n99999999\tred dog\ta\nn99999999\tcat\tb\n")
    given = ["prepare", "imagenet", str(pictures), "--glosses", str(glosses), "-o", str(out)]
    assert run(given) == 65
    assert "g.tsv:2: duplicate synset n99999999 (first on line 1)" in capsys.readouterr().err
    glosses.write_text("n99999999 red dog\n")
    assert run(given) == 65
    assert "g.tsv:1: expected wnid, nouns and definition" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "wnid"),
    [
        ("train/n01440764/x.JPEG", TENCH),
        ("n01440764/n01484850_1.JPEG", TENCH),
        ("val/n01440764_1.JPEG", TENCH),
        ("n014407645.jpg", None),
        ("xn01440764.jpg", None),
    ],
)
def test_the_synset_is_in_the_folder_or_the_name(file: str, wnid: str | None) -> None:
    assert wnid_of(file) == wnid
