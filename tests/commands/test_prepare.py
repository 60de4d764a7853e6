"""`vg prepare` as a user runs it: files, streams, exit codes, second runs."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.conftest import vg_command

Runner = Callable[..., "subprocess.CompletedProcess[bytes]"]
TOKENS = "".join(
    f"{n}_693b08cb0e.jpg#{k}\tcaption {k} of {n} .\n" for n in range(1, 4) for k in range(2)
)


@pytest.fixture
def flickr(tmp_path: Path) -> Path:
    (tmp_path / "tokens.txt").write_text(TOKENS)
    (tmp_path / "photos").mkdir()
    for n in range(1, 5):  # the fourth has no caption
        Image.new("RGB", (8, 6), (n, 0, 0)).save(tmp_path / f"photos/{n}_693b08cb0e.jpg")
    (tmp_path / "photos/notes.json").write_text("{}")  # no picture: nobody misses it
    (tmp_path / "Flickr_8k.trainImages.txt").write_text("1_693b08cb0e.jpg\n")
    (tmp_path / "Flickr_8k.devImages.txt").write_text("2_693b08cb0e.jpg\n")
    return tmp_path


def jsonl(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def test_captions_and_images_are_written_and_a_second_run_changes_nothing(
    vg: Runner, flickr: Path
) -> None:
    call = (
        "prepare",
        "flickr8k",
        "tokens.txt",
        "--splits",
        ".",
        "--images",
        "photos",
        "--images-out",
        "i.jsonl",
        "-o",
        "c.jsonl",
    )
    done = vg(*call, cwd=flickr)
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.decode().splitlines() == [
        "vg prepare: 6 captions in c.jsonl",
        "vg prepare: 3 images in i.jsonl; left out: picture of photos in no row: 1",
    ]
    captions, images = (
        jsonl((flickr / "c.jsonl").read_bytes()),
        jsonl((flickr / "i.jsonl").read_bytes()),
    )
    assert captions[0] == {
        "image": "1_693b08cb0e.jpg",
        "text": "caption 0 of 1 .",
        "split": "train",
    }
    assert [c.get("split") for c in captions] == ["train", "train", "dev", "dev", None, None]
    assert images == [
        {"image": f"{n}_693b08cb0e.jpg", "path": str(flickr / f"photos/{n}_693b08cb0e.jpg")}
        for n in (1, 2, 3)
    ]
    before = {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in flickr.iterdir()}
    done = vg(*call, cwd=flickr)
    assert done.returncode == 0
    assert b"6 captions in c.jsonl (up to date)" in done.stderr
    assert b"3 images in i.jsonl (up to date)" in done.stderr
    assert {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in flickr.iterdir()} == before
    (
        flickr / "photos/4_693b08cb0e.jpg"
    ).unlink()  # what the list is made from changed: it is made anew
    assert b"(up to date)" not in vg(*call, cwd=flickr).stderr


@pytest.mark.parametrize("place", ["tokens.txt", "none/i.jsonl", "photos"])
def test_a_place_for_the_image_list_is_refused_before_any_work(
    vg: Runner, flickr: Path, place: str
) -> None:
    done = vg(
        "prepare",
        "flickr8k",
        "tokens.txt",
        "--images",
        "photos",
        "--images-out",
        place,
        "-o",
        "c.jsonl",
        cwd=flickr,
    )
    assert done.returncode == 73
    assert not (flickr / "c.jsonl").exists()


@pytest.mark.parametrize("place", ["c.errors.jsonl", "i.txt"])
def test_a_name_that_the_image_list_cannot_have_is_refused_before_any_work(
    vg: Runner, flickr: Path, place: str
) -> None:
    call = ("prepare", "flickr8k", "tokens.txt", "--images", "photos", "--on-error", "skip")
    done = vg(*call, "--images-out", place, "-o", "c.jsonl", cwd=flickr)
    assert done.returncode == 2
    assert b"--images-out" in done.stderr
    assert not (flickr / "c.jsonl").exists()


def test_streams_in_and_out(vg: Runner, flickr: Path) -> None:
    done = vg(
        "prepare",
        "flickr8k",
        "-",
        "--splits",
        ".",
        "--split",
        "dev",
        cwd=flickr,
        input=TOKENS.encode(),
    )
    assert (done.returncode, done.stderr) == (
        0,
        b"vg prepare: 2 captions in stdout; left out: not in dev: 4\n",
    )
    assert jsonl(done.stdout) == [
        {"image": "2_693b08cb0e.jpg", "text": f"caption {k} of 2 .", "split": "dev"}
        for k in range(2)
    ]
    (flickr / "t.gz").write_bytes(gzip.compress(TOKENS.encode()))
    done = vg("prepare", "flickr8k", "t.gz", "-q", cwd=flickr)
    assert (len(jsonl(done.stdout)), done.stderr) == (6, b"")


def test_a_closed_pipe_is_141_and_silent(tmp_path: Path) -> None:
    (tmp_path / "tokens.txt").write_text("".join(f"{n}.jpg#0\tcaption\n" for n in range(50_000)))
    command = (
        " ".join(vg_command("prepare", "flickr8k", "tokens.txt"))
        + ' | head -1; echo "${PIPESTATUS[0]}"'
    )
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, timeout=60)
    assert done.stdout == b'{"image":"0.jpg","text":"caption"}\n141\n'
    assert done.stderr == b""


def test_bad_items_fail_or_are_skipped_and_noted(vg: Runner, flickr: Path) -> None:
    (flickr / "tokens.txt").write_text(
        TOKENS + "torn\n" + "9_693b08cb0e.jpg#0\tno photo\n" * 1 + "9_693b08cb0e.jpg#1\tno photo\n"
    )
    call = ("prepare", "flickr8k", "tokens.txt", "--images", "photos", "-o", "c.jsonl")
    done = vg(*call, cwd=flickr)
    assert (done.returncode, done.stdout) == (65, b"")
    assert (
        done.stderr
        == b"vg: tokens.txt:7: expected IMAGE#NUMBER, a tab, and the caption, got 'torn'\n"
    )
    assert not list(flickr.glob("c.*"))
    done = vg(*call, "--on-error", "skip", cwd=flickr)
    assert done.returncode == 0
    assert b"6 captions in c.jsonl; left out: bad item: 2, row of a bad photo: 1" in done.stderr
    assert [e["line"] for e in jsonl((flickr / "c.errors.jsonl").read_bytes())] == [7, None]
    assert vg(*call, "--on-error", "skip", "--max-errors", "1", cwd=flickr).returncode == 66
    assert vg(*call, "--on-error", "perhaps", cwd=flickr).returncode == 2
    done = vg(*call[:-2], "--on-error", "skip", cwd=flickr)
    assert done.stderr.startswith(b"vg: skipped: tokens.txt:7: expected IMAGE#NUMBER")


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        (("flickr8k", "nowhere.txt"), 66, "nowhere.txt: cannot be read: No such file"),
        (
            ("flickr8k", "tokens.txt", "--split", "test", "--splits", "."),
            2,
            "unknown split; known are dev, train",
        ),
        (("flickr8k", "tokens.txt", "--splits", "photos"), 66, "photos: holds no split list"),
        (("flickr8k", "tokens.txt", "--images", "nowhere"), 66, "nowhere: does not exist"),
        (("flickr8k", "tokens.txt", "--images-out", "i.jsonl"), 2, "needs --images DIR"),
        (
            (
                "flickr8k",
                "tokens.txt",
                "--images",
                "photos",
                "--images-out",
                "x.jsonl",
                "-o",
                "x.jsonl.gz",
            ),
            2,
            "must differ from -o",
        ),
        (
            (
                *("flickr8k", "tokens.txt", "--images", "photos", "-o", "x.jsonl"),
                *("--images-out", "x.jsonl.part"),
            ),
            2,
            "is a name that vg may use",
        ),
        (("flickr8k", "tokens.txt", "-o", "tokens.txt"), 73, "is an input of this command"),
        (
            ("flickr8k", "tokens.txt", "-o", "nowhere/c.jsonl"),
            73,
            "does not exist; create it first",
        ),
        (("flickr30k-entities", "."), 66, "Annotations: does not exist"),
        (("coco", "tokens.txt"), 65, "tokens.txt: the file: expected [, got '1'"),
        (("visual-genome", "tokens.txt"), 2, "nothing to write"),
        (("sbu", "tokens.txt", "Flickr_8k.devImages.txt"), 65, "6 URLs for 1 caption"),
        (("wikitext", "nowhere.txt"), 66, "nowhere.txt: cannot be read"),
        (("sentences", "nowhere.txt"), 66, "nowhere.txt: cannot be read"),
        (("openmoji", "tokens.txt", "-q"), 73, "tokens.txt: cannot be made"),
        (("nonsense",), 2, "No such command"),
        (
            ("sentences", "tokens.txt", "--language", "xx-zz"),
            2,
            "'xx-zz' is not one of am, ar, bg,",
        ),
    ],
)
def test_errors_name_what_and_where(
    vg: Runner, flickr: Path, args: tuple[str, ...], code: int, why: str
) -> None:
    before = sorted(flickr.iterdir())
    done = vg("prepare", *args, cwd=flickr)
    assert (done.returncode, done.stdout) == (code, b"")
    assert why in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert sorted(flickr.iterdir()) == before


def test_an_image_list_in_the_place_of_a_file_of_the_user_is_refused_before_any_row(
    vg: Runner, flickr: Path
) -> None:
    words = ("flickr8k", "tokens.txt", "--images", "photos", "-o", "x.jsonl")
    args = ("prepare", *words, "--images-out", "i.jsonl")
    for name in ("i.jsonl", "i.json"):
        (flickr / name).write_text("mine")
        before = sorted(flickr.iterdir())
        done = vg(*args, cwd=flickr)
        assert (done.returncode, done.stdout) == (73, b""), done.stderr
        assert name in done.stderr.decode()
        assert sorted(flickr.iterdir()) == before
        assert (flickr / name).read_text() == "mine"
        (flickr / name).unlink()
    for _ in range(2):
        assert vg(*args, cwd=flickr).returncode == 0
    (flickr / "i.jsonl").write_text("mine")
    (flickr / "x.jsonl").unlink()
    assert vg(*args, cwd=flickr).returncode == 73
    assert not (flickr / "x.jsonl").exists()


def test_entities_coco_and_visual_genome(vg: Runner, flickr: Path) -> None:
    for name, file, text in (
        ("Sentences", "1.txt", "[/EN#5/people A man] runs .\n"),
        (
            "Annotations",
            "1.xml",
            "<annotation><size><width>16</width><height>12</height></size><object><name>5</name><bndbox>"
            "<xmin>2</xmin><ymin>4</ymin><xmax>16</xmax><ymax>12</ymax></bndbox></object></annotation>",
        ),
    ):
        (flickr / name).mkdir()
        (flickr / name / file).write_text(text)
    done = vg(
        "prepare",
        "flickr30k-entities",
        ".",
        "--images",
        "photos",
        "--images-out",
        "i.jsonl",
        cwd=flickr,
    )
    assert jsonl(done.stdout) == [
        {
            "image": "1.jpg",
            "text": "A man runs .",
            "width": 8,
            "height": 6,
            "phrases": [
                {"start": 0, "end": 5, "type": "people", "id": "5", "boxes": [[1, 2, 8, 6]]}
            ],
        }
    ]
    assert jsonl((flickr / "i.jsonl").read_bytes()) == [
        {"image": "1.jpg", "path": str(flickr / "photos/1_693b08cb0e.jpg")}
    ]

    images = [{"id": 1, "file_name": "1_693b08cb0e.jpg", "width": 8, "height": 6}]
    annotations = [{"id": 5, "image_id": 1, "caption": "A red square."}]
    (flickr / "c.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    done = vg(
        "prepare",
        "coco",
        "-",
        "--as-split",
        "val",
        cwd=flickr,
        input=(flickr / "c.json").read_bytes(),
    )
    assert jsonl(done.stdout) == [
        {"image": "1_693b08cb0e.jpg", "text": "A red square.", "split": "val"}
    ]
    done = vg(
        "prepare", "coco", "c.json", "-o", "c.jsonl", cwd=flickr
    )  # its manifest would be c.json
    assert (done.returncode, done.stdout) == (73, b"")
    assert json.loads((flickr / "c.json").read_text())["images"] == images

    data = [
        {"image_id": n, "url": f"https://x.org/VG_100K/{n}.jpg", "coco_id": None if n != 2 else 5}
        for n in range(1, 4)
    ]
    (flickr / "image_data.json").write_text(json.dumps(data))
    (flickr / "r.json").write_text(
        json.dumps([{"id": n, "regions": [{"phrase": f"part of {n}"}]} for n in range(1, 4)])
    )
    done = vg(
        "prepare",
        "visual-genome",
        "image_data.json",
        "--limit",
        "1",
        "--images",
        "photos",
        "--images-out",
        "vg.jsonl",
        "--regions",
        "r.json",
        cwd=flickr,
    )
    assert jsonl(done.stdout) == [{"image": "vg_nococo/1", "text": "part of 1"}]
    assert done.stderr.decode().splitlines() == [
        "vg prepare: 1 image in vg.jsonl; left out: image of COCO: 1, image beyond --limit: 1",
        "vg prepare: 1 caption in stdout; left out: region of an image left out: 2",
    ]
    assert jsonl((flickr / "vg.jsonl").read_bytes()) == [
        {
            "image": "vg_nococo/1",
            "path": str(flickr / "photos/1_693b08cb0e.jpg"),
            "url": "https://x.org/VG_100K/1.jpg",
        }
    ]
    (flickr / "mine.jsonl").write_text("mine")
    words = ["image_data.json", "--regions", "r.json", "--images", "photos"]
    words += ["--images-out", "new.jsonl", "-o", "mine.jsonl"]
    assert vg("prepare", "visual-genome", *words, cwd=flickr).returncode == 73
    assert sorted(path.name for path in flickr.glob("new*")) == []  # neither is written
    done = vg("prepare", "visual-genome", "image_data.json", "--images-out", "-", cwd=flickr)
    assert [row["image"] for row in jsonl(done.stdout)] == ["vg_nococo/1", "vg_nococo/3"]


def test_one_of_karpathy_s_splits(vg: Runner, tmp_path: Path) -> None:
    images = [
        {"filename": f"{name}.jpg", "split": split, "sentences": [{"raw": name}]}
        for name, split in (("a", "restval"), ("b", "val"), ("c", "train"))
    ]
    (tmp_path / "d.json").write_text(json.dumps({"images": images}))
    for flags, names in (([], "abc"), (["--split", "train"], "ac"), (["--split", "val"], "b")):
        done = vg("prepare", "karpathy", "d.json", *flags, "-o", "-", cwd=tmp_path)
        assert "".join(json.loads(row)["text"] for row in done.stdout.splitlines()) == names


def test_captions_of_the_web(vg: Runner, tmp_path: Path) -> None:
    line = b"a red <unk>\thttp://x.org/1.jpg\n"
    done = vg(
        "prepare",
        "conceptual-captions",
        "-",
        "--as-split",
        "train",
        "--images-out",
        "i.jsonl",
        cwd=tmp_path,
        input=line,
    )
    assert jsonl(done.stdout) == [
        {
            "image": "cc/train/1",
            "text": "a red <unk>",
            "url": "http://x.org/1.jpg",
            "split": "train",
        }
    ]
    assert jsonl((tmp_path / "i.jsonl").read_bytes()) == [
        {"image": "cc/train/1", "url": "http://x.org/1.jpg"}
    ]
    (tmp_path / "u.txt").write_text("http://f.org/9_a.jpg\n")
    (tmp_path / "c.txt").write_text("A boat .\n")
    done = vg("prepare", "sbu", "u.txt", "c.txt", cwd=tmp_path)
    assert jsonl(done.stdout) == [
        {"image": "sbu/9_a.jpg", "text": "A boat .", "url": "http://f.org/9_a.jpg"}
    ]


def test_texts_pipe_into_each_other(vg: Runner, tmp_path: Path) -> None:
    text = b" = Tower = \n \n It stands on the rock . It is <unk> white . \n Two words \n"
    done = vg("prepare", "wikitext", "-", input=text)
    assert done.stdout == text
    assert done.stderr == (
        b"vg prepare: 4 lines in stdout\n"
        b"vg prepare: all of them: no filter is given, for example --drop-headings\n"
    )
    done = vg("prepare", "wikitext", "-", "--drop-headings", "--drop-short", "5", input=text)
    assert done.stderr.decode() == (
        "vg prepare: 1 line in stdout; left out: heading: 1, empty line: 1, line of "
        "fewer than 5 words: 1\n"
    )
    done = vg("prepare", "sentences", "-", "-o", "s.jsonl", input=done.stdout, cwd=tmp_path)
    assert jsonl((tmp_path / "s.jsonl").read_bytes()) == [
        {"text": "It stands on the rock ."},
        {"text": "It is <unk> white ."},
    ]
    assert (
        vg("prepare", "sentences", input=b"One. Two.\n\n\xff three").stdout
        == "One.\nTwo.\n\n\ufffd three\n".encode()
    )


def test_squad_pipes_into_sentences(vg: Runner) -> None:
    file = b'{"data": [{"paragraphs": [{"context": "One is here. Two is there.", "qas": []}]}]}'
    done = vg("prepare", "squad", "-", input=file)
    assert done.stdout == b"One is here. Two is there.\n\n", done.stderr
    assert (
        vg("prepare", "sentences", "-", "-q", input=done.stdout).stdout
        == b"One is here.\nTwo is there.\n\n"
    )


def test_emoji_are_drawn_listed_and_not_drawn_again(vg: Runner, tmp_path: Path) -> None:
    call = (
        "prepare",
        "openmoji",
        "png",
        "--limit",
        "3",
        "--size",
        "16",
        "--carriers",
        "1",
        "--images-out",
        "i.jsonl",
        "-o",
        "c.jsonl",
    )
    done = vg(*call, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    images = jsonl((tmp_path / "i.jsonl").read_bytes())
    assert [list(row) for row in images] == [["image", "path", "svg", "names"]] * 3
    assert all(
        Path(row["path"]).exists() and row["svg"].endswith(f"{row['image']}.svg") for row in images
    )
    assert jsonl((tmp_path / "c.jsonl").read_bytes())[:2] == [
        {"image": "1F947", "text": "1st place medal", "name": "1st place medal"},
        {"image": "1F947", "text": "a photo of a 1st place medal", "name": "1st place medal"},
    ]
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    assert vg(*call, cwd=tmp_path).returncode == 0
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def test_every_help_ends_with_examples(vg: Runner) -> None:
    listed = vg("prepare", "--help").stdout.decode().split("Commands:")[1].split("\n")
    # The second line of a summary has no name before it.
    names = [found[1] for line in listed if (found := re.match(r"  (\S+)", line))]
    assert names == [
        "flickr8k",
        "flickr30k-entities",
        "coco",
        "karpathy",
        "vqa",
        "vcr",
        "visual-genome",
        "visual-genome-boxes",
        "conceptual-captions",
        "sbu",
        "imagenet",
        "openmoji",
        "regions",
        "wikitext",
        "wikipedia",
        "squad",
        "sentences",
        "pairs",
        "tokenizer",
        "pdtb",
        "vua",
        "task",
        "minimal-pairs",
        "prompts",
        "norms",
        "wordnet",
        "vectors",
        "clusters",
        "vokens",
        "keys",
        "hdf5",
    ]
    assert not any(line.endswith("...") for line in listed)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("flickr8k x --splits .", b"1_693b08cb0e.jpg#0\tA caf\xe9 is open .\n"),
        ("conceptual-captions x", b"A caf\xe9 is open .\thttp://a.org/1.jpg\n"),
        ("sbu x y", b"A caf\xe9 is open .\n"),
        ("sentences x", b"A caf\xe9 is open .\n"),
        ("wikitext x", b"A caf\xe9 is open .\n"),
        ("pairs x z", b"A caf\xe9 is open .\n"),
    ],
)
def test_bytes_that_are_not_utf8_are_reported(
    vg: Runner, flickr: Path, call: str, text: bytes
) -> None:
    urls = b"http://static.flickr.com/1/1_a.jpg\n"
    (flickr / "x").write_bytes(urls if call.startswith("sbu") else text)
    (flickr / "y").write_bytes(text)
    (flickr / "z").write_bytes(b"Ein Haus\n")
    done = vg("prepare", *call.split(), cwd=flickr)
    assert (done.returncode, done.stdout.count(b"caf\xef\xbf\xbd is open")) == (0, 1)
    assert b"1 line had bytes that are not UTF-8, replaced" in done.stderr
