"""The words and the lines that users and developers read: the counts of `tests/wording.py` only
ever fall.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.wording import (
    ROOT,
    assignments,
    counts,
    files,
    find,
    long_lines,
    main,
    python_prose,
    undocumented,
)

# Highest allowed counts; `python tests/wording.py --ceilings` prints today's. Lower them as they
# fall, to 0.
CEILINGS = {
    "a (per)": 0,
    "stands": 0,
    "wanted": 0,
    "is no": 0,
    "behind": 0,
    "goes on": 0,
    "anew": 0,
    "tells": 0,
    "say whether": 0,
    "so many": 0,
    "suffice": 0,
    "most of": 0,
    "in the way": 0,
    "memory was short": 0,
    "dear": 0,
    "of no use": 0,
    "what (noun)": 0,
    "of (fragment)": 0,
    "Of a folder, …": 0,
    "that of": 0,
    "a file says": 0,
    "another one": 0,
    "beside": 0,
    "begin": 0,
    ", too": 0,
    "in place of": 0,
    "learnt": 0,
    "per cent": 0,
    ".9": 0,
    "lines over 100 columns": 0,
    "a, b = x, y": 36,
    "public names without docstring": 0,
}


@pytest.fixture(scope="module")
def today() -> dict[str, int]:
    return counts()


def places(name: str) -> list[str]:
    """Return FILE:LINE of all that one of the counts counts."""
    if name == "lines over 100 columns":
        found = long_lines()
    elif name == "a, b = x, y":
        found = assignments()[0]
    elif name == "public names without docstring":
        found = undocumented()
    else:
        found = [(hit.file, hit.line) for hit in find(files()) if hit.pattern == name]
    return [f"{file}:{line}" for file, line in found]


@pytest.mark.parametrize("name", CEILINGS)
def test_counts_only_fall(name: str, today: dict[str, int]) -> None:
    assert today[name] <= CEILINGS[name], f"one of {', '.join(places(name))} is new"


def test_every_count_has_a_ceiling(today: dict[str, int]) -> None:
    assert list(CEILINGS) == list(today)


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("Lines a step; one row an image; k vokens a token.", ["a (per)"] * 3),
        ("How many tokens a word has; this holds a line; label 1 is a caption; one at a time.", []),
        ("The id stands on line 3.", ["stands"]),
        ("A placeholder stands for the confidence.", []),
        ("a number was wanted", ["wanted"]),
        ("2.0 is no relevance, and x is none of them", ["is no"] * 2),
        ("There is no file; it is no longer there.", []),
        ("laid behind one another; goes on anew", ["behind", "goes on", "anew"]),
        ("Say whether an encoder tells two texts", ["tells", "say whether"]),
        ("too few to tell two heads apart", []),
        ("keeps the so many best", ["so many"]),
        ("where memory does not suffice", ["suffice"]),
        ("Most tokens a step; 64 is the most.", ["a (per)", "most of", "most of"]),
        ("an unfinished run is in the way: memory was short", ["in the way", "memory was short"]),
        (
            "Return what decides the rows; what is read. Files of what a run read.",
            ["what (noun)"] * 3,
        ),
        ("It shows what a photo is worth. What is a voken? They decide what images are found.", []),
        ("seed: of the draw. Shares | of the text", ["of (fragment)"] * 2),
        ("Of a folder the shards are read; the first of two.", ["Of a folder, …"]),
        ("Equal; of two the first wins.", ["of (fragment)"]),
        ("Settings are those of the paper, the width that of the run.", ["that of"] * 2),
        ("the manifest says that it is; it said so", ["a file says"] * 2),
        ("The paper says so, but that paper does not say why.", []),
        ("before another one, the last one and a larger one", ["another one"] * 3),
        ("one of them; each one; no one", []),
        ("beside the index, besides its name", ["beside"]),
        ("It begins with a word and began here; the beginning of a line", ["begin"] * 2),
        ("a row, too; not too long", [", too"]),
        ("in place of a word; sorted in place", ["in place of"]),
        ("learnt from 95 per cent", ["learnt", "per cent"]),
        ("man/*.1", []),
        ("above .9 of them; x.9 and 0.9, in .90 of (.5)", [".9"] * 3),
    ],
)
def test_patterns_find_what_they_name(text: str, patterns: list[str], tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text(text)
    assert sorted(hit.pattern for hit in find([tmp_path / "x.md"])) == sorted(patterns)


def test_prose_of_python_is_its_docstrings_messages_and_comments(tmp_path: Path) -> None:
    source = (
        'def behind(wanted):\n    """It is\n    no file."""\n    f("a b", f"x {wanted} '
        'y {z!r}")  # anew\n'
    )
    prose = python_prose(source)
    assert prose.text.replace("| ", "") == "It is no file. a b x X y X anew "
    assert prose.lines[prose.text.index("file")] == 3
    assert prose.lines[prose.text.index("anew")] == 4
    (tmp_path / "x.py").write_text(source)
    assert [(hit.line, hit.pattern) for hit in find([tmp_path / "x.py"])] == [
        (2, "is no"),
        (4, "anew"),
    ]


def test_pages_are_read_without_their_code(tmp_path: Path) -> None:
    (tmp_path / "x.html").write_text("<p>{% if a is none %}{{ b }} pictures a page{% endif %}</p>")
    (tmp_path / "x.js").write_text('const wanted = 1;\nsay("laid anew"); // it goes on\n')
    hits = find([tmp_path / "x.html", tmp_path / "x.js"])
    assert [(hit.line, hit.pattern) for hit in hits] == [
        (1, "a (per)"),
        (2, "goes on"),
        (2, "anew"),
    ]


def test_man_pages_are_read_without_their_marks(tmp_path: Path) -> None:
    (tmp_path / "x.1").write_text(".TP\n.B \\-k\nImages a token; it is \\(aqwanted\\(aq.\n")
    assert [hit.pattern for hit in find([tmp_path / "x.1"])] == ["a (per)", "wanted"]


# The limits of the documents that are read first, in words. Longer texts go to `man/reference.md`,
# or to the LOG.md next to the notes.
LIMITS = {"README.md": 1300, "examples/*/NOTES.md": 1000}
RELEASE = 300  # of a version in CHANGELOG.md


@pytest.mark.parametrize(
    ("file", "limit"),
    [
        (file, limit)
        for pattern, limit in LIMITS.items()
        for file in sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))
    ],
)
def test_documents_are_short(file: str, limit: int) -> None:
    words = len((ROOT / file).read_text(encoding="utf-8").split())
    assert words <= limit, f"{file} has {words} words, {limit} are allowed"


def test_releases_are_short() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.split(r"(?m)^## ", text)[1:]
    assert releases
    for release in releases:
        name = release.splitlines()[0]
        assert len(release.split()) <= RELEASE, f"{name} has {len(release.split())} words"


@pytest.mark.parametrize(
    ("word", "code", "said"),
    [("--help", 0, "usage: "), ("no/such/file", 2, "no/such/file does not exist")],
)
def test_usage(word: str, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([word])
    assert end.value.code == code
    assert said in "".join(capsys.readouterr())
