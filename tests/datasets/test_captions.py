"""Official captions → rows: Flickr8k, Flickr30k Entities, Conceptual Captions, SBU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiny.datasets import lists, stops_at
from vgtools.cli import run
from vgtools.datasets.captions import (
    conceptual_captions,
    flickr8k,
    flickr30k_entities,
    parse_entities,
    sbu,
)
from vgtools.io.errors import DataError, Exit, Tally

# ----------------------------------------------------------------------------------------- Flickr8k

TOKENS = "10_a.jpg#0\tA red kite .\n10_a.jpg#1\tÜber <b>the</b> \\sea\u2028 \n"
TOKENS += "11_b.jpg.1#0\ttwo\tcups\n12_c.jpg#0\t\n13_d.jpg#0\tA hill .\n"


def test_flickr8k_rows(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text(TOKENS, encoding="utf-8")
    assert list(flickr8k(tmp_path / "t.txt", Tally())) == [
        {"image": "10_a.jpg", "text": "A red kite ."},
        {"image": "10_a.jpg", "text": "Über <b>the</b> \\sea\u2028 "},
        {"image": "11_b.jpg", "text": "two\tcups"},
        {"image": "12_c.jpg", "text": ""},
        {"image": "13_d.jpg", "text": "A hill ."},
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            "10_a.jpg#1 A torn line",
            "x.txt:2: expected IMAGE#NUMBER, a tab, and the caption, got '10_a.jpg#1 A torn line'",
        ),
        ("10_a.jpg\tno number", "x.txt:2: expected IMAGE#NUMBER"),
        ("#0\tno image", "x.txt:2: expected IMAGE#NUMBER"),
        ("10_a.jpg#x\twords", "x.txt:2: expected IMAGE#NUMBER"),
        ("", "x.txt:2: expected IMAGE#NUMBER, a tab, and the caption, got ''"),
        ("10_a.jpg#0\tagain", "x.txt:2: duplicate '10_a.jpg#0' (first on line 1)"),
    ],
)
def test_flickr8k_bad_lines(tmp_path: Path, line: str, why: str) -> None:
    stops_at(tmp_path, flickr8k, f"10_a.jpg#0\tA red kite .\n{line}\n11_b.jpg#0\tA cup .\n", why)


def test_flickr8k_reads_its_own_lists(tmp_path: Path) -> None:
    lists(tmp_path, train="a.jpg")
    (tmp_path / "train.txt").write_text("1\n")
    tokens = tmp_path / "Flickr8k.token.txt"
    tokens.write_text("a.jpg#0\tA dog .\n")
    args = ["prepare", "flickr8k", str(tokens), "--splits", str(tmp_path), "-q"]
    assert run([*args, "-o", str(tmp_path / "c.jsonl")]) == 0
    assert json.loads((tmp_path / "c.jsonl").read_text())["split"] == "train"
    tokens.rename(tmp_path / "captions.txt")
    args[2] = str(tmp_path / "captions.txt")
    assert run([*args, "-o", str(tmp_path / "d.jsonl")]) == 65


# ----------------------------------------------------------------------------------------- Entities

SENTENCES = "[/EN#5/people A tall man] flies [/EN#6/other/scene a «kite» 🪁] .\n"
SENTENCES += "[/EN#0/notvisual It] is [/EN#9/scene a beach]\nplain words\n"
ANNOTATION = (
    "<annotation><filename>77.jpg</filename>"
    "<size><width>500</width><height>400</height><depth>3</depth></size>\n"
    "<object><name>5</name><name>8</name>"
    "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>100</xmax><ymax>400</ymax></bndbox></object>\n"
    "<object><name>5</name>"
    "<bndbox><xmin>300</xmin><ymin>20</ymin><xmax>340</xmax><ymax>44</ymax></bndbox></object>\n"
    "<object><name>9</name><scene>1</scene><nobndbox>0</nobndbox></object></annotation>"
)


def entities(
    folder: Path, sentences: str = SENTENCES, annotation: str | bytes = ANNOTATION
) -> Path:
    for name in ("Sentences", "Annotations"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "Sentences/77.txt").write_text(sentences, encoding="utf-8")
    (folder / "Annotations/77.xml").write_bytes(
        annotation if isinstance(annotation, bytes) else annotation.encode()
    )
    return folder


def test_entities_rows(tmp_path: Path) -> None:
    same = {"image": "77.jpg", "width": 500, "height": 400}
    assert list(flickr30k_entities(entities(tmp_path), Tally())) == [
        same
        | {
            "text": "A tall man flies a «kite» 🪁 .",
            "phrases": [
                {
                    "start": 0,
                    "end": 10,
                    "type": "people",
                    "id": "5",
                    "boxes": [[1, 2, 100, 400], [300, 20, 340, 44]],
                },
                {"start": 17, "end": 27, "type": "other/scene", "id": "6", "boxes": []},
            ],
        },
        same
        | {
            "text": "It is a beach",
            "phrases": [
                {"start": 0, "end": 2, "type": "notvisual", "id": "0", "boxes": []},
                {"start": 6, "end": 13, "type": "scene", "id": "9", "boxes": []},
            ],
        },
        same | {"text": "plain words", "phrases": []},
    ]


WORDS = st.text(
    alphabet=st.characters(blacklist_characters="[]\n\r", blacklist_categories=["Cs"]), min_size=1
)


@given(st.lists(st.tuples(WORDS, WORDS)))
def test_spans_cut_the_phrases_out_of_the_text(parts: list[tuple[str, str]]) -> None:
    line = "".join(f"[/EN#{i}/other {phrase}]{rest}" for i, (phrase, rest) in enumerate(parts))
    text, phrases = parse_entities(line)
    assert text == "".join(phrase + rest for phrase, rest in parts)
    assert [text[p["start"] : p["end"]] for p in phrases] == [phrase for phrase, _ in parts]


@pytest.mark.parametrize(
    ("sentences", "annotation", "why"),
    [
        ("fine\n[/EN#5/people A tall\n", ANNOTATION, "77.txt:2: a phrase is torn"),
        ("[/EN#/people A tall]\n", ANNOTATION, "77.txt:1: a phrase is torn"),
        (SENTENCES, ANNOTATION[:200], "77.xml:2: is not whole XML"),
        (
            SENTENCES,
            ANNOTATION.replace("<width>500</width>", ""),
            "77.xml: is not an Entities annotation",
        ),
        (SENTENCES, ANNOTATION.replace("<width>500", "<width>0"), "invalid size 0×400"),
        (
            SENTENCES,
            ANNOTATION.replace("<xmin>300", "<xmin>3.x"),
            "77.xml: is not an Entities annotation",
        ),
        (
            SENTENCES,
            '<!DOCTYPE a [<!ENTITY b "bb">]><annotation>&b;</annotation>',
            "77.xml: is not an Entities annotation (size",
        ),
        (
            SENTENCES,
            '<!DOCTYPE a [<!ENTITY b "bb">]><annotation>&b;</annotation>'.encode("utf-16"),
            "has a DOCTYPE",
        ),
        (SENTENCES, "", "77.xml:1: is not whole XML"),
    ],
)
def test_entities_bad_files(
    tmp_path: Path, sentences: str, annotation: str | bytes, why: str
) -> None:
    folder = entities(tmp_path, sentences, annotation)
    with pytest.raises(DataError) as caught:
        list(flickr30k_entities(folder, Tally()))
    assert why in str(caught.value)
    tally = Tally(skip=True)
    list(flickr30k_entities(folder, tally))
    assert len(tally.errors) == 1


def test_an_xml_bomb_is_refused_before_it_grows(tmp_path: Path) -> None:
    levels = "".join(
        f'<!ENTITY e{i} "{f"&e{i - 1};" * 10 if i else "boom" * 10}">' for i in range(12)
    )
    folder = entities(tmp_path, annotation=f"<!DOCTYPE x [{levels}]><annotation>&e11;</annotation>")
    with pytest.raises(DataError, match="has a DOCTYPE, which annotations do not have; refused"):
        list(flickr30k_entities(folder, Tally()))


def test_entities_are_distinguished_from_other_files_beside_them(tmp_path: Path) -> None:
    folder = entities(tmp_path)
    for odd in (
        "Sentences/._77.txt",
        "Sentences/.DS_Store",
        "Annotations/._77.xml",
        "Sentences/77.md",
    ):
        (folder / odd).write_bytes(b"\x00\x05\x16\x07")
    (folder / "Sentences/old").mkdir()
    (folder / "Sentences/old/77.txt").touch()
    tally = Tally()
    assert len(list(flickr30k_entities(folder, tally))) == 3
    assert not +tally.left_out


def test_entities_of_empty_folders(tmp_path: Path) -> None:
    for name in ("Sentences", "Annotations"):
        (tmp_path / name).mkdir()
    (tmp_path / "Sentences/.DS_Store").touch()
    with pytest.raises(DataError, match=r"Sentences.*holds no captions") as caught:
        list(flickr30k_entities(tmp_path, Tally()))
    assert caught.value.code == Exit.NO_INPUT


def test_entities_without_a_partner(tmp_path: Path) -> None:
    folder = entities(tmp_path)
    (folder / "Annotations/78.xml").write_text(ANNOTATION)
    tally = Tally()
    assert len(list(flickr30k_entities(folder, tally))) == 3
    assert tally.left_out == {"annotation without sentences": 1}
    (folder / "Annotations/77.xml").unlink()
    with pytest.raises(DataError, match=r"77.xml: cannot be read: No such file") as caught:
        list(flickr30k_entities(folder, Tally()))
    assert caught.value.code == Exit.NO_INPUT
    with pytest.raises(DataError, match=r"Sentences: does not exist"):
        list(flickr30k_entities(tmp_path / "Annotations", Tally()))


# ------------------------------------------------------------------------------------- web captions


def test_conceptual_captions(tmp_path: Path) -> None:
    file = tmp_path / "t.tsv"
    file.write_bytes("a cat ,\ttabbed\thttp://x.org/1.jpg\r\nÜ\thttps://x.org/2?a=b\n".encode())
    assert list(conceptual_captions(file, Tally(), "cc/train")) == [
        {"image": "cc/train/1", "text": "a cat ,\ttabbed", "url": "http://x.org/1.jpg"},
        {"image": "cc/train/2", "text": "Ü", "url": "https://x.org/2?a=b"},
    ]


@pytest.mark.parametrize(
    "line", ["no tab http://x.org", "a cat\tx.org/1.jpg", "http://x.org/1.jpg", ""]
)
def test_conceptual_captions_bad_lines(tmp_path: Path, line: str) -> None:
    stops_at(
        tmp_path,
        lambda file, tally: conceptual_captions(file, tally, "cc"),
        f"ok\thttp://x.org/1\n{line}\n",
        "x.txt:2: expected the caption, a tab, and a URL, got",
    )


def test_sbu_in_both_forms(tmp_path: Path) -> None:
    urls, captions = (
        ["http://f.org/1/9_a.jpg", "http://f.org/2/8_b.jpg", "http://f.org/1/9_a.jpg"],
        ["One .", "Two", "Three"],
    )
    wanted = [
        {"image": f"sbu/{u.rsplit('/', 1)[1]}", "text": c, "url": u}
        for u, c in zip(urls, captions, strict=True)
    ]
    (tmp_path / "u.txt").write_text("\n".join(urls))
    (tmp_path / "c.txt").write_text("\n".join(captions) + "\n")
    (tmp_path / "s.json").write_text(
        json.dumps({"image_urls": urls, "user_ids": ["x", "y", "z"], "captions": captions})
    )
    assert list(sbu(tmp_path / "u.txt", tmp_path / "c.txt", Tally())) == wanted
    assert list(sbu(tmp_path / "s.json", None, Tally())) == wanted
    (tmp_path / "c.txt").write_text("One .\n")
    with pytest.raises(
        DataError, match=r"u.txt: 3 URLs for 1 caption; both must be the files of one release"
    ):
        list(sbu(tmp_path / "u.txt", tmp_path / "c.txt", Tally()))
    (tmp_path / "s.json").write_text(
        json.dumps({"image_urls": ["nonsense", urls[1]], "captions": ["x", "y"]})
    )
    stops_at(
        tmp_path,
        lambda file, tally: sbu(file, None, tally),
        (tmp_path / "s.json").read_text(),
        "expected a URL and a text, got 'nonsense'",
        "s.json",
    )
    (tmp_path / "s.json").write_text("{}")
    with pytest.raises(DataError, match="0 URLs for 0 captions"):
        list(sbu(tmp_path / "s.json", None, Tally()))
