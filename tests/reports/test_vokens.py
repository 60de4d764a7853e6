"""Pages, sheets and lines: what is in them, once, escaped, and at the right place."""

from __future__ import annotations

import base64
import html
import json
import re
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFont
from rich.console import Console

from tests.tiny.report import check_policy
from vgtools.io.errors import DataError, Exit
from vgtools.reports import sheets, vokens
from vgtools.reports.page import ImageFile
from vgtools.reports.vokens import BankPictures, Sentence, ShownBank, Token

RED, GREEN, BLUE = (220, 30, 30), (20, 180, 40), (30, 60, 210)
SVG = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 9 9'><circle r='4'/></svg>"


def solid(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (300, 200)) -> Path:
    Image.new("RGB", size, colour).save(path)
    return path


def row(text: str, vokens: list[Any], scores: list[Any] | None = None) -> dict[str, Any]:
    """Return a voken row of the words of a text."""
    spans = [list(m.span()) for m in re.finditer(r"\S+", text)]
    return {"text": text, "spans": spans, "vokens": vokens, "scores": scores or [0.5] * len(spans)}


def sentence(
    text: str, vokens: list[int], scores: list[float] | None = None, line: int = 1
) -> Sentence:
    body = row(text, vokens, scores)
    parts = zip(body["spans"], vokens, body["scores"], strict=True)
    return Sentence(line, text, tuple(Token(s, e, (v,), (x,)) for (s, e), v, x in parts))


@pytest.fixture
def pictures(tmp_path: Path) -> BankPictures:
    """Return a bank of a red, a green and a blue picture, a drawing, and one whose file is not
    there.
    """
    places = {
        n: ImageFile(solid(tmp_path / f"{n}.png", c))
        for n, c in (("red", RED), ("green", GREEN), ("blue", BLUE))
    }
    (tmp_path / "d.svg").write_text(SVG)
    places["drawn"] = ImageFile(
        solid(tmp_path / "drawn.png", RED), tmp_path / "d.svg", "a circle, round"
    )
    places["lost"] = ImageFile(tmp_path / "lost.png")
    return BankPictures(ShownBank(["red", "green", "blue", "drawn", "lost"]), places)


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found[1])


# --------------------------------------------------------------------------------------------- rows


def write(path: Path, *rows: dict[str, Any] | str) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def test_rows_are_read_with_one_voken_or_several_a_token(tmp_path: Path) -> None:
    path = write(
        tmp_path / "v.jsonl",
        row("a b", [2, -1], [0.25, 0]),
        row("a", [[1, 0]], [[0.5, 0.25]]),
        row("", []),
    )
    first, second, third = vokens.read_sentences(path, 3)
    assert (first.line, first.text) == (1, "a b")
    assert list(first.tokens) == [Token(0, 1, (2,), (0.25,)), Token(2, 3, (-1,), (0,))]
    assert (first.tokens[0].voken, first.tokens[0].score, first.tokens[1].score) == (2, 0.25, None)
    assert list(second.tokens) == [Token(0, 1, (1, 0), (0.5, 0.25))]
    assert (third.line, third.text, list(third.tokens)) == (3, "", [])


def test_rows_without_scores_can_be_shown(tmp_path: Path) -> None:
    bare = {"text": "a b", "spans": [[0, 1], [2, 3]], "vokens": [0, 1]}
    (found,) = vokens.read_sentences(write(tmp_path / "v.jsonl", bare), 2)
    assert list(found.tokens) == [Token(0, 1, (0,), (None,)), Token(2, 3, (1,), (None,))]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ('{"text": "a", "spa', "not valid JSON"),
        (row("a b", [0, 3]), "voken of token 1 is 3, the image bank has 3 rows"),
        (
            row("a b", [[0, 1], [0, 7]], [[1, 1], [1, 1]]),
            "voken of token 1 is 7, the image bank has 3 rows",
        ),
        (row("a", [0]) | {"spans": [[0, 9]]}, "not inside the text"),
        (row("a", ["x"]), '"vokens" entry 0'),
        (row("a", [-2]), '"vokens" entry 0'),
        (row("a b", [0]), '"vokens" has 1 entries'),
        ({"image": "x"}, "missing"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(tmp_path: Path, bad: Any, said: str) -> None:
    path = write(tmp_path / "v.jsonl", row("a", [0]), bad)
    with pytest.raises(DataError) as caught:
        list(vokens.read_sentences(path, 3))
    assert str(caught.value).startswith(f"{path}:2: ")
    assert said in str(caught.value)


def test_packed_vokens_are_refused() -> None:
    with pytest.raises(DataError, match="hold no text") as caught:
        next(vokens.read_sentences("v.npy"))
    assert caught.value.code == Exit.USAGE


def test_take_reads_no_further_than_asked_and_says_whether_there_is_more(tmp_path: Path) -> None:
    path = write(tmp_path / "v.jsonl", row("a", [0]), row("b", [0]), "{torn")
    assert [len(vokens.take(vokens.read_sentences(path), n)[0]) for n in (1, 2)] == [1, 2]
    assert vokens.take(vokens.read_sentences(path), 2)[1] is True
    whole = write(tmp_path / "w.jsonl", row("a", [0]), row("b", [0]))
    assert vokens.take(vokens.read_sentences(whole), 2)[1] is False
    assert vokens.take(vokens.read_sentences(whole), None)[1] is False


# ----------------------------------------------------------------------------------- bank, pictures


def edge(image: Image.Image) -> tuple[int, int]:
    return max(image.size), min(image.size)


def test_a_drawing_goes_in_as_it_is_and_a_photo_as_a_small_thumbnail(
    pictures: BankPictures,
) -> None:
    drawn, photo = pictures.uri(3, 64), pictures.uri(0, 64)
    assert drawn == "data:image/svg+xml;base64," + base64.b64encode(SVG.encode()).decode()
    assert photo is not None
    assert photo.startswith("data:image/webp;base64,")
    image = Image.open(BytesIO(base64.b64decode(photo.partition(",")[2])))
    assert image.size == (64, 43)
    assert np.abs(np.subtract(image.convert("RGB").getpixel((30, 20)), RED)).max() <= 6


def test_what_cannot_be_shown_is_counted_with_its_reason(
    pictures: BankPictures, tmp_path: Path
) -> None:
    (tmp_path / "red.png").write_text("<html>not found</html>")
    (tmp_path / "blue.png").write_bytes((tmp_path / "blue.png").read_bytes()[:200])
    (tmp_path / "d.svg").write_text("no drawing")
    pictures.bank.ids.append("unlisted")
    assert [pictures.uri(r, 64) for r in (0, 2, 3, 4, 5)] == [None] * 5
    assert pictures.uri(1, 64) is not None
    assert sorted(pictures.missing) == [0, 2, 3, 4, 5]
    assert pictures.missing[3].startswith("no SVG drawing in it: syntax error")
    assert "No such file" in pictures.missing[4]
    assert pictures.missing[5] == "not among the images"
    said = pictures.complaint(6)
    assert said is not None
    assert said.startswith("5 of 6 pictures cannot be shown and have a placeholder: red: ")
    assert said.endswith("; and 2 more")
    assert BankPictures(pictures.bank, {}).complaint(6) is None


# --------------------------------------------------------------------------------------------- page


def test_each_picture_is_in_the_page_once_however_often_it_is_used(pictures: BankPictures) -> None:
    sentences = [sentence("a b c", [0, 0, 1], line=n) for n in range(1, 101)]
    page = vokens.page(sentences, pictures, "v.jsonl").decode()
    assert page.count("data:image/webp") == 2
    assert page.count('<i class="pic p0"></i>') == 200 + 1  # and once among the most used
    assert len(page) < 120_000


def test_rows_with_the_same_picture_share_it(pictures: BankPictures) -> None:
    pictures.bank.ids.append("again")
    places = {**pictures.files, "again": pictures.files["red"]}
    page = vokens.page([sentence("a b", [0, 5])], BankPictures(pictures.bank, places), "v").decode()
    assert page.count("data:image/webp") == 1
    assert ".p0,.p5{background-image" in page


HOSTILE = [
    "<script>window.pwned=1</script>",
    "{{7*7}}",
    "\x1b]8;;http://x\x1b\\",
    "\u202egnp",
    '"onmouseover="x',
    "</style>",
    "&amp;",
]


def test_texts_and_ids_are_escaped_everywhere(pictures: BankPictures, tmp_path: Path) -> None:
    text = " ".join(HOSTILE)
    ids = [f"{bad}.png" for bad in HOSTILE]
    places = {i: ImageFile(tmp_path / "red.png", None, i) for i in ids}
    found = sentence(text, list(range(len(HOSTILE))) + [0] * (len(text.split()) - len(HOSTILE)))
    page = vokens.page(
        [found],
        BankPictures(ShownBank(ids, {"vg": "1", "matcher": {"run": HOSTILE[0]}}), places),
        HOSTILE[0],
    ).decode()
    assert len(re.findall(r"<script", page)) == 2  # the data and our own
    assert "49" not in page.partition("<body>")[2].partition("<script>")[0]
    assert "{{7*7}}" in page
    assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e]", page)
    assert html.unescape(page).count("\\u202egnp") >= 2
    assert page.count("<style>") == page.count("</style>") == 2
    assert ">&#34;onmouseover=&#34;x</span>" in page
    assert '"onmouseover="x' in [part[0] for part in data_of(page)["rows"][0]["parts"]]
    assert data_of(page)["pictures"]["0"]["id"] == ids[0]


def test_the_policy_names_exactly_what_the_page_holds_and_nothing_outside(
    pictures: BankPictures,
) -> None:
    check_policy(vokens.page([sentence("a", [0])], pictures, "v").decode())


def test_tokens_lie_in_their_text_with_gaps_joints_and_words(pictures: BankPictures) -> None:
    text = "un-do  it."
    tokens = [(0, 2, 0, 0.1), (3, 5, 1, 0.6), (7, 9, 2, 1.1), (9, 10, -1, 0.0)]
    found = Sentence(7, text, tuple(Token(s, e, (v,), (x,)) for s, e, v, x in tokens))
    rest = [
        ["un", 0, 0.1, "un-do"],
        "-",
        ["do", 1, 0.6, "un-do"],
        "  ",
        ["it", 2, 1.1],
        [".", None, None],
    ]
    assert vokens.parts_of(found) == rest
    page = vokens.page([found], pictures, "v").decode()
    assert re.findall('<b class="q(.*?)"', page) == ["0", "5", "10"]  # in tenths of the range
    pieces = Sentence(
        1, "abcd", tuple(Token(s, e, (0,), (0.5,)) for s, e in ((0, 2), (2, 3), (2, 4)))
    )
    # Byte pieces of one character overlap; no gap is between them.
    assert [part[0] for part in vokens.parts_of(pieces)] == ["ab", "c", "cd"]
    ranked = Sentence(1, "a b", (Token(0, 1, (2, 1), (0.54321, 0.5)), Token(2, 3, (0,), (None,))))
    assert vokens.parts_of(ranked) == [
        ["a", 2, 0.543, None, [[2, 0.543], [1, 0.5]]],
        " ",
        ["b", 0, None],
    ]


def test_a_page_holds_no_spaces_between_tokens(pictures: BankPictures) -> None:
    tokens = [(1, 3), (3, 4), (5, 6), (8, 9)]
    found = Sentence(1, " ab, c  d ", tuple(Token(*t, (0,), (0.5,)) for t in tokens))
    page = vokens.page([found], pictures, "v").decode()
    parts = [part if part == "" else part[0] for part in data_of(page)["rows"][0]["parts"]]
    assert parts == [" ", "ab", "", ",", "c", " ", "d", " "]  # the second space is of two
    # Without its script the page has the text as it is.
    (line,) = re.findall(r'<p class="s" dir="auto">(.*?)</p>', page, re.S)
    assert re.sub("<.*?>", "", line) == " ab, c  d "


def test_a_page_of_nothing_and_of_empty_lines_is_a_page(pictures: BankPictures) -> None:
    assert "There is no sentence here." in vokens.page([], pictures, "v").decode()
    page = vokens.page(
        [Sentence(1, "", ()), sentence("\u2003 a", [-1], line=2)], pictures, "v", more=True
    ).decode()
    assert "an empty line" in page
    assert "2 sentences, 1 token, 0 pictures, 1 token without. The file continues" in page
    assert 'id="s2"' in page


def test_the_page_says_what_made_it(pictures: BankPictures) -> None:
    facts = {
        "vg": "1",
        "matcher": {"run": "runs/m", "fingerprint": "0123456789abcdef"},
        "backbone": {"ref": "net"},
        "dim": 64,
    }
    page = vokens.page(
        [sentence("a b", [0, 3], [0.25, 0.75])],
        BankPictures(ShownBank(pictures.bank.ids, facts), pictures.files),
        "v",
        credit="Pictures: someone",
    ).decode()
    pairs = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page)
    assert pairs == [
        ("Image bank", "5 images"),
        ("Matcher", "runs/m (0123456789ab)"),
        ("Backbone", "net"),
        ("Shared space", "64 dimensions"),
        ("Relevance, not known to be calibrated; the line under a picture", "0.25 to 0.75"),
    ]
    assert "<p>Pictures: someone</p>" in page
    assert data_of(page)["pictures"]["3"] == {
        "id": "drawn",
        "look": "p3 art",
        "name": "a circle, round",
    }


def test_pictures_that_are_more_probably_wrong_are_dimmed(pictures: BankPictures) -> None:
    found = [sentence("a b c", [0, 1, 2], [0.9, 0.5, 0.49]), sentence("d", [0], [0.7], line=2)]
    page = vokens.page(found, pictures, "v", probable=True).decode()
    assert "<dt>Probability of being right; the line under a picture</dt>" in page
    assert (
        "<b>3</b> of 4 pictures are right with a probability of at least <b>0.50</b> and are shown "
        "at full strength; about <b>2</b> of them are expected to be right. The others are dimmed."
    ) in page
    assert re.findall('class="t low" data-v="(.)" title="(.*?)"', page) == [
        ("2", "c: blue, probability 0.49")
    ]
    assert re.findall('<b class="q(.*?)"', page) == ["9", "5", "5", "7"]  # tenths of certainty
    assert data_of(page)["least"] == 0.5
    plain = vokens.page(found, pictures, "v", probable=False).decode()
    assert "<dt>Relevance, not calibrated; the line under a picture</dt>" in plain
    assert "expected" not in plain.partition("<script")[0]
    assert 'class="t low"' not in plain


def test_a_sheet_dims_them_too(pictures: BankPictures) -> None:
    found = [sentence("one two", [0, 2], [0.9, 0.2])]
    bright, _ = vokens.sheet(found, pictures)
    dimmed, _ = vokens.sheet(found, pictures, probable=True)
    before, after = (np.asarray(Image.open(BytesIO(png))).astype(int) for png in (bright, dimmed))
    assert len(after) > len(before)  # by the line below
    red, blue = (np.abs(before - colour).max(2) <= 3 for colour in (RED, BLUE))
    top = after[: len(before)]
    assert (np.abs(top[red] - RED) <= 3).all()
    assert top[blue].min() > 180


def test_the_same_rows_give_the_same_bytes(pictures: BankPictures) -> None:
    rows = [sentence("a b c", [2, 0, 1])]
    assert vokens.page(rows, pictures, "v") == vokens.page(rows, pictures, "v")


# -------------------------------------------------------------------------------------------- sheet


def near(pixel: Any, colour: tuple[int, int, int]) -> bool:
    return bool(np.abs(np.subtract(pixel, colour)).max() <= 3)


def test_a_sheet_has_each_picture_above_its_token(pictures: BankPictures) -> None:
    png, lacking = vokens.sheet([sentence("one two three", [0, -1, 2])], pictures)
    image = Image.open(BytesIO(png))
    assert lacking == []
    assert image.width == 1600
    pixels = np.asarray(image).astype(int)
    red, blue = (np.argwhere(np.abs(pixels - c).max(2) <= 3) for c in (RED, BLUE))
    (top, left), (bottom, right) = red.min(0), red.max(0)
    assert (left, bottom - top + 1, right - left + 1) == (48, 120, 120)  # a square at the left edge
    assert (blue.min(0)[0], blue.max(0)[0]) == (top, bottom)  # in the same row
    assert blue.min(0)[1] - right > 40  # "two" has no picture: a gap with a word in it
    caption = pixels[bottom + 8 : bottom + 34]
    assert (caption[:, left:right].min(2) < 90).any()
    between = caption[:, right + 4 : blue.min(0)[1] - 4].min(2)
    assert 100 < between.min() < 200  # soft grey


def test_a_sheet_wraps_and_marks_what_is_missing(pictures: BankPictures) -> None:
    one, _ = vokens.sheet([sentence("w " * 11, [1] * 11)], pictures)
    two, _ = vokens.sheet([sentence("w " * 12, [1] * 11 + [4])], pictures)
    heights = [Image.open(BytesIO(x)).height for x in (one, two)]
    assert heights[1] - heights[0] == 120 + 22 + 34
    image = Image.open(BytesIO(two))
    assert not near(image.getpixel((108, heights[1] - 120)), GREEN)
    assert list(pictures.missing) == [4]


def test_a_sheet_says_which_characters_its_font_lacks(
    pictures: BankPictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sheets, "fonts", lambda size: (ImageFont.load_default(size),))
    _, lacking = vokens.sheet([sentence("café 漢字 naïve", [0, 1, 2])], pictures)
    assert lacking == ["é", "ï", "字", "漢"]


def test_a_sheet_breaks_titles_and_cuts_captions_that_are_too_long(pictures: BankPictures) -> None:
    png, _ = vokens.sheet([sentence("x" * 3000, [0])], pictures)
    image = Image.open(BytesIO(png))
    assert image.width == 1600
    assert image.height > 20 * 30
    assert np.asarray(image)[:, -40:].min() == 255  # nothing runs over the edge


def test_a_sheet_too_high_for_memory_is_refused_before_it_is_drawn(pictures: BankPictures) -> None:
    with pytest.raises(DataError, match="a lower --limit"):
        vokens.sheet([sentence("a", [0], line=n) for n in range(300)], pictures)


# -------------------------------------------------------------------------------- terminal and pipe


def test_lines_for_a_pipe() -> None:
    found = Sentence(
        3, "a\tb \x1b[31m", (Token(0, 3, (1, 0), (0.5, 0.25)), Token(4, 9, (-1,), (0.0,)))
    )
    assert vokens.tsv(found, ["x", "y\u202e"]) == (
        "3\ta\\tb\t0\t3\t1\t1\ty\\u202e\t0.5000\n3\ta\\tb\t0\t3\t2\t0\tx\t0.2500\n3\t\\x1b[31m\t4\t9\t1\t-1\t-\t-\n"
    )
    assert vokens.tsv(found, None).splitlines()[0] == "3\ta\\tb\t0\t3\t1\t1\t-\t0.5000"
    assert vokens.tsv(Sentence(1, "", ()), None) == ""


def shown(found: Sentence, ids: list[str] | None, width: int = 60, **options: Any) -> str:
    out = StringIO()
    vokens.table(
        found,
        ids,
        Console(file=out, width=width, markup=False, highlight=False, emoji=False, **options),
    )
    return out.getvalue()


def test_a_table_for_a_terminal() -> None:
    found = Sentence(
        2,
        "A dog.",
        (Token(0, 1, (-1,), (0.0,)), Token(2, 5, (1, 0), (0.75, 0.5)), Token(5, 6, (0,), (0.125,))),
    )
    lines = [line.rstrip() for line in shown(found, ["sky.jpg", "dogs/1.jpg"]).splitlines()]
    assert lines == [
        "2  A dog.",
        "token   voken   image        score",
        "──────────────────────────────────",
        "A           -",
        "dog         1   dogs/1.jpg   0.750",
        "            0   sky.jpg      0.500",
        ".           0   sky.jpg      0.125",
        "",
    ]


@pytest.mark.parametrize("width", [20, 34, 60])
def test_a_table_fits_its_terminal_and_obeys_its_text(width: int) -> None:
    found = Sentence(
        1,
        "[red]x[/] \x1b]8;;http://h\x07 :smile:",
        (Token(0, 9, (0,), (0.5,)), Token(10, 24, (0,), (0.5,))),
    )
    text = shown(found, ["photos/2009/a-very-long-name-of-an-image.jpg"], width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]x[/]" in text
    if width == 60:
        assert ":smile:" in text
    assert "\x1b[" not in shown(
        found, ["a"], width, force_terminal=True, no_color=True, color_system=None
    )
