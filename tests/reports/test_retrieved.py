"""Pages, sheets and lines of retrieved images: several strategies of the same texts."""

from __future__ import annotations

import html
import json
import re
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from tests.tiny.report import check_policy
from vgtools.io.errors import DataError
from vgtools.reports import retrieved
from vgtools.reports.page import ImageFile
from vgtools.reports.retrieved import Hits, RetrievedFile, RetrievedText, read_texts, source_names
from vgtools.reports.vokens import BankPictures, ShownBank

COLOURS = {"red": (220, 30, 30), "green": (20, 180, 40), "blue": (30, 60, 210)}
HOSTILE = ["<script>window.pwned=1</script>", '"onclick="x', "{{7*7}}", "\u202egnp", "\x1b[2J"]


@pytest.fixture
def pictures(tmp_path: Path) -> BankPictures:
    """Return a bank of a red, a green and a blue picture, and one whose file is not there."""
    places = {}
    for name, colour in COLOURS.items():
        Image.new("RGB", (300, 200), colour).save(tmp_path / f"{name}.png")
        places[name] = ImageFile(tmp_path / f"{name}.png")
    return BankPictures(ShownBank([*COLOURS, "lost"], {"keys": "captions"}), places)


def text(line: int, words: str, *hits: dict[int, float], own: str | None = None) -> RetrievedText:
    return RetrievedText(line, words, tuple(Hits(tuple(h), tuple(h.values())) for h in hits), own)


def sources(*names: str, bank: ShownBank | None = None) -> list[RetrievedFile]:
    return [RetrievedFile(f"{name}.jsonl", name, bank) for name in names]


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


# --------------------------------------------------------------------------------------------- rows


def test_texts_of_several_files_are_read_line_by_line(tmp_path: Path) -> None:
    a = write(
        tmp_path / "a.jsonl",
        {"text": "x", "images": [1, 0], "scores": [0.5, 0.25], "image": "red"},
        {"text": "", "images": [], "scores": []},
    )
    b = write(tmp_path / "b.jsonl", {"text": "x", "images": [2]}, {"text": "", "images": []})
    found = list(read_texts([RetrievedFile(a, "a"), RetrievedFile(b, "b")]))
    assert found == [
        RetrievedText(1, "x", (Hits((1, 0), (0.5, 0.25)), Hits((2,), (None,))), "red"),
        RetrievedText(2, "", (Hits((), ()), Hits((), ())), None),
    ]


def test_files_of_other_texts_or_fewer_are_refused(tmp_path: Path) -> None:
    one, two = {"text": "x", "images": []}, {"text": "y", "images": []}
    a = RetrievedFile(write(tmp_path / "a.jsonl", one, two), "a")
    b = RetrievedFile(write(tmp_path / "b.jsonl", one, one), "b")
    c = RetrievedFile(write(tmp_path / "c.jsonl", one), "c")
    with pytest.raises(DataError, match=r"b\.jsonl:2: has another text than .*a\.jsonl"):
        list(read_texts([a, b]))
    for order in ([a, c], [c, a]):
        with pytest.raises(DataError, match=r"c\.jsonl: ends before line 2 of other rows"):
            list(read_texts(order))
    bank = ShownBank(["only"])
    d = RetrievedFile(write(tmp_path / "d.jsonl", {"text": "x", "images": [1]}), "d", bank)
    with pytest.raises(DataError, match=r"d\.jsonl:1: .*the image bank has 1 rows"):
        list(read_texts([d]))


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/wiki.scene.jsonl", "wiki.object.jsonl.gz"], ["scene", "object"]),
        (["x/r.jsonl"], ["r"]),
        (["scene.jsonl", "o.b.jsonl"], ["scene", "o.b"]),
        (["a/r.jsonl", "b/r.jsonl"], ["a/r.jsonl", "b/r.jsonl"]),
        (["a.1.x.jsonl", "a.2.y.jsonl"], ["1.x", "2.y"]),
    ],
)
def test_a_strategy_is_called_by_what_tells_its_file_apart(
    paths: list[str], names: list[str]
) -> None:
    assert source_names(paths) == names


# --------------------------------------------------------------------------------------------- page


def page_of(
    texts: list[RetrievedText], pictures: list[BankPictures], names: list[str], **more: Any
) -> str:
    made = retrieved.page(texts, pictures, "r.jsonl", sources=sources(*names), **more)
    return made.decode()


def test_a_page_holds_each_picture_once_with_scores_and_the_own_one_framed(
    pictures: BankPictures,
) -> None:
    other = BankPictures(ShownBank(["blue", "red"]), pictures.files)
    texts = [
        text(1, "a dog", {0: 0.75, 1: 0.5}, {1: 2.0, 0: 1.0}, own="red"),
        text(2, "", {}, {}),
        text(3, "a dog", {0: 0.25}, {}),
    ]
    page = page_of(texts, [pictures, other], ["scene", "keyword"])
    check_policy(page)
    assert page.count("data:image/webp") == 3
    assert ".p0-0,.p1-1{background-image" in page
    assert re.findall(r"</button><span>([^<]*)</span>", page) == [
        "0.750",
        "0.500",
        "2",
        "1",
        "0.250",
    ]
    assert page.count('<li class="own">') == 2
    assert (
        "3 texts, 3 pictures, 3 rows without images. Framed: the text's own picture."
        in html.unescape(page)
    )
    assert page.count("<h2>scene</h2>") == page.count("<h2>keyword</h2>") == 3
    assert "<dt>scene</dt><dd>4 images, found by captions</dd>" in page
    assert 'title="1. red, 0.750, the text&#39;s own image"' in page
    single = page_of([text(1, "a", {0: 1.0})], [pictures], ["scene"], more=True)
    assert "<h2>" not in single
    assert "The file continues" in single
    assert "There is no text here" in page_of([], [pictures], ["scene"])


def test_texts_names_and_ids_are_escaped(pictures: BankPictures) -> None:
    ids = [f"{bad}.png" for bad in HOSTILE]
    bank = BankPictures(ShownBank(ids), dict.fromkeys(ids, pictures.files["red"]))
    hits = dict.fromkeys(range(len(ids)), 0.5)
    page = page_of([text(1, " ".join(HOSTILE), hits, hits)], [bank, bank], [*HOSTILE[:2]])
    check_policy(page)
    assert "<script>window" not in page
    assert 'onclick="x' not in page
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert "{{7*7}}" in page


def test_a_missing_picture_is_a_placeholder(pictures: BankPictures) -> None:
    page = page_of([text(1, "a", {3: 0.5, 0: 0.4})], [pictures], ["x"])
    assert page.count('class="pic gone"') == 1
    assert pictures.complaint(2) == (
        "1 of 2 pictures cannot be shown and have a placeholder: lost: not among the images"
    )


# -------------------------------------------------------------------------------------------- sheet


def pixels(sheet: bytes, colour: tuple[int, int, int]) -> tuple[int, int, int, int] | None:
    """Return the box of a colour on a sheet."""
    image = np.asarray(Image.open(BytesIO(sheet)).convert("RGB"))
    y, x = np.nonzero((image == colour).all(2))
    return (x.min(), y.min(), x.max() + 1, y.max() + 1) if len(x) else None


def test_two_strategies_of_four_images_are_side_by_side(pictures: BankPictures) -> None:
    texts = [text(1, "a dog", {0: 0.5, 1: 0.4}, {2: 3.0, 0: 2.0, 1: 2.0, 3: 1.0})]
    sheet, lacking = retrieved.sheet(texts, [pictures] * 2, sources=sources("scene", "object"))
    assert lacking == []
    image = Image.open(BytesIO(sheet))
    assert image.width == 1600
    blue, green = pixels(sheet, COLOURS["blue"]), pixels(sheet, COLOURS["green"])
    assert blue is not None
    assert green is not None
    left, top, right, bottom = blue
    assert (right - left, bottom - top) == (173, 173)  # (1504 - 60) / 2, three gaps of 10, four
    assert left == 48 + 722 + 60  # the second half
    assert green[1] == top  # on one line
    # Three strategies: the third is below the first.
    third = [text(1, "a dog", {0: 0.5}, {1: 0.5}, {2: 0.5, 3: 0.4, 0: 0.3, 1: 0.2})]
    sheet, _ = retrieved.sheet(third, [pictures] * 3, sources=sources("a", "b", "c"))
    blue, red = pixels(sheet, COLOURS["blue"]), pixels(sheet, COLOURS["red"])
    assert blue is not None
    assert red is not None
    assert blue[0] == red[0] == 48
    assert blue[1] > red[1] + 173


def test_sixteen_images_are_on_one_line_and_more_on_the_next(pictures: BankPictures) -> None:
    bank = BankPictures(
        ShownBank([str(i) for i in range(17)]),
        {str(i): pictures.files["blue" if i in (15, 16) else "red"] for i in range(17)},
    )
    texts = [text(1, "a", dict.fromkeys(range(17), 0.5))]
    sheet, _ = retrieved.sheet(texts, [bank], sources=sources("x"))
    blue = pixels(sheet, COLOURS["blue"])
    red = pixels(sheet, COLOURS["red"])
    assert blue is not None
    assert red is not None
    tile = (1504 - 150) // 16
    assert blue[0] == 48
    assert blue[2] == 48 + 15 * (tile + 10) + tile
    assert red[3] - red[1] == tile
    assert blue[3] > red[3]


# -------------------------------------------------------------------------------- terminal and pipe


def test_lines_and_a_table(pictures: BankPictures) -> None:
    both = sources("scene", "key\tword", bank=pictures.bank)
    one = text(7, "a\tdog", {1: 0.75}, {})
    assert retrieved.tsv(one, both) == (
        "7\tscene\t1\t1\tgreen\t0.7500\ta\\tdog\n7\tkey\\tword\t-\t-\t-\t-\ta\\tdog\n"
    )
    bare = retrieved.tsv(text(1, "a", {1: 0.5}), sources("x"))
    assert bare == "1\tx\t1\t1\t-\t0.5000\ta\n"
    out = StringIO()
    retrieved.table(one, both, Console(file=out, width=60, markup=False))
    lines = [line.split() for line in out.getvalue().splitlines() if line.strip()]
    assert lines[0] == ["7", "a\\tdog"]
    assert lines[1] == ["strategy", "row", "image", "score"]
    assert lines[3] == ["scene", "1", "green", "0.750"]
