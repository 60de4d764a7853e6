"""Wikipedia's dump: pages, paragraphs, page views."""

from __future__ import annotations

import bz2
import gzip
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from vgtools.cli import run
from vgtools.datasets.wikipedia import page_views, paragraphs, wikipedia
from vgtools.io.errors import DataError, Tally

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">
  <siteinfo><sitename>Wikipedia</sitename><namespaces>
    <namespace key="0" case="first-letter" />
    <namespace key="6" case="first-letter">Datei</namespace>
    <namespace key="14" case="first-letter">Kategorie</namespace>
  </namespaces></siteinfo>
"""


def page(title: str, markup: str, space: int = 0, more: str = "") -> str:
    return (
        f"<page><title>{escape(title)}</title><ns>{space}</ns><id>7</id>{more}<revision><id>1</id>"
        "<contributor><username>x</username><id>3</id></contributor>"
        f'<text xml:space="preserve">{escape(markup)}</text></revision></page>\n'
    )


def save(path: Path, *pages: str) -> str:
    data = (HEAD + "".join(pages) + "</mediawiki>\n").encode()
    path.write_bytes(bz2.compress(data) if path.suffix == ".bz2" else data)
    return str(path)


PAGES = (
    page("Salz & Pfeffer", "'''Salz''' ist [[Stoff|ein Stoff]].\n\n[[Datei:a.jpg|mini|Bild]]\n"
         "== Lage ==\nIm {{lang|de|Meer}} <ref>Buch</ref>viel.\n[[Kategorie:Stoffe]]"),
    page("Rede", "Hallo!", space=1),
    page("Pfeffer", "#WEITERLEITUNG [[Salz]]", more='<redirect title="Salz" />'),
    page("Leer", "{{Vorlage|a=1}}"),
    page("See", "Ein See [http://x.org hier]&nbsp;tief."),
)  # fmt: skip


@pytest.mark.parametrize("name", ["d.xml", "d.xml.bz2"])
def test_articles_become_paragraphs(tmp_path: Path, name: str) -> None:
    tally = Tally()
    rows = list(wikipedia(save(tmp_path / name, *PAGES), tally))
    assert [row["text"] for row in rows] == [
        "Salz ist ein Stoff.", "Im viel.", "", "Ein See hier tief.", "",
    ]  # fmt: skip
    assert rows[0]["title"] == "Salz & Pfeffer"
    assert dict(tally.left_out) == {
        "page that is not an article": 1, "redirect": 1, "article without a paragraph": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("A ''b'' '''c'''.", ["A b c."]),
        ("* an item\n# another\n: indented\nText.", ["Text."]),
        ("{|\n! head\n|-\n| cell\n|}\nText.", ["Text."]),
        ("A [[dog]]s, [[:Category:Dogs|dogs]] [[File:x.png|thumb|A [[cat]].]].", ["A dogs, dogs."]),
        ("'''Ulm''' ({{IPA|x}}; born 5) is {{convert|5|km}} long ({{lang|y}}).",
         ["Ulm (born 5) is long."]),
        ("x&nbsp;&amp; y <!-- no --><br/>z<math>a^2</math>", ["x & y z"]),
        ("== Head ==\n----\n\n=== {{x}} ===\nLast", ["Last"]),
        ("<nowiki>[[a]]</nowiki> b<ref name=q/>.", ["[[a]] b."]),
        ("<div class=x>One\nTwo</div>", ["One", "Two"]),
        ("costs 3 .5 and , so", ["costs 3 .5 and, so"]),
        ("half &#xD83D; &#x110000; &nosuch; a", ["half ? &#x110000; &nosuch; a"]),
        ("unclosed {{ braces [[ and '''bold", ["unclosed {{ braces [[ and '''bold"]),
    ],
)  # fmt: skip
def test_markup_becomes_plain_text(markup: str, expected: list[str]) -> None:
    assert paragraphs(markup) == expected


def test_a_page_is_taken_if_it_was_read_often_enough(tmp_path: Path) -> None:
    hour, day = tmp_path / "h.gz", tmp_path / "d.bz2"
    hour.write_bytes(
        gzip.compress(b"de See 4 0\nde.m See 5 0\nen See 99 0\nde Salz_&_Pfeffer 9 0\n")
    )
    day.write_bytes(
        bz2.compress(b"de.wikipedia See 12 desktop 11 A11\nfr.wikipedia See 1 x 9 A9\n")
    )
    views = page_views([str(hour), str(day)], "de")
    assert views == {"See": 20, "Salz_&_Pfeffer": 9}
    dump = save(tmp_path / "d.xml", *PAGES)
    tally = Tally()
    rows = list(wikipedia(dump, tally, whole=True, views=views, least=20))
    assert rows == [{"text": "Ein See hier tief.", "title": "See"}]
    assert tally.left_out["article with fewer than 20 views"] == 2
    (least9,) = [list(wikipedia(dump, Tally(), whole=True, views=views, least=9))]
    assert [row["text"] for row in least9] == ["Salz ist ein Stoff. Im viel.", "Ein See hier tief."]
    assert list(wikipedia(dump, Tally(), views=Counter(), least=1)) == []
    hour.write_bytes(gzip.compress(b"de See many 0\n"))
    with pytest.raises(DataError, match="expected PROJECT TITLE VIEWS BYTES"):
        page_views([str(hour)], "de")
    with pytest.raises(DataError, match="no views of the project 'xx'"):
        page_views([str(day)], "xx")
    day = tmp_path / "d"
    day.write_bytes(b"en A " + b"9" * 5000 + b" 0\n")
    with pytest.raises(DataError, match="1: expected PROJECT TITLE VIEWS BYTES"):
        page_views([str(day)], "en")


def test_what_is_not_a_dump_is_refused(tmp_path: Path) -> None:
    whole = bz2.compress((HEAD + "".join(PAGES) * 3).encode())
    path = tmp_path / "d.xml.bz2"
    for data, why in (
        (whole[:-20], "cut off"),
        (bz2.compress((HEAD + PAGES[0]).encode()), "is not whole XML"),
        (b"plain", "cut off or damaged"),
        (bz2.compress(b"<a><b/></a>"), "has no pages"),
        (bz2.compress(b"<a><page><id>x</id></page></a>"), "as its id, got 'x'"),
        (bz2.compress(b'<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>'), "DOCTYPE"),
    ):
        path.write_bytes(data)
        with pytest.raises(DataError, match=why):
            list(wikipedia(str(path), Tally()))
    assert (
        run(["prepare", "wikipedia", str(tmp_path / "no.bz2"), "-o", str(tmp_path / "x.txt")]) == 66
    )
    for flag in ("--least-views", "--project"):  # without --page-views they would do nothing
        assert run(["prepare", "wikipedia", str(path), flag, "5"]) == 2
    views = ["--page-views", str(tmp_path / "v")]
    assert run(["prepare", "wikipedia", str(path), *views, *views]) == 2


def test_without_the_parser_its_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mwparserfromhell", None)
    assert run(["prepare", "wikipedia", save(tmp_path / "d.xml", *PAGES)]) == 69
    assert "pip install 'vgtools[wikipedia]'" in capfd.readouterr().err


def test_the_command_writes_text_in_flat_memory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dump = save(tmp_path / "d.xml.bz2", *PAGES)
    assert run(["prepare", "wikipedia", dump, "-o", str(tmp_path / "w.txt")]) == 0
    expected = "Salz ist ein Stoff.\nIm viel.\n\nEin See hier tief.\n\n"
    assert (tmp_path / "w.txt").read_text() == expected
    assert "redirect: 1" in capfd.readouterr().err
    # 20 MB of pages that are no articles: what is held is a chunk, not the dump.
    large = save(tmp_path / "large.xml", *[page("x", "y" * 20_000, space=1)] * 1000, *PAGES)
    tracemalloc.start()
    assert len(list(wikipedia(large, Tally()))) == 5
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
