"""Ask encoders, one after another, for all that evaluations need.

Axes: U units of an evaluation.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit, file_errors
from vgtools.io.names import is_separated, is_table, refuse_stream
from vgtools.io.streams import parse_json, read_jsonl, read_lines
from vgtools.measures import minimal_pairs, photos, prompts
from vgtools.measures.evaluation import Measure, Measured, content_of, rows_of
from vgtools.measures.masked_words import read_masked_words
from vgtools.measures.norms import read_norms
from vgtools.measures.pairs import read_pairs
from vgtools.measures.sentences import are_sentences, read_sentence_pairs
from vgtools.measures.subject import Reading, Subject

# The keys of rows, and the function that opens the evaluation.
BY_KEYS: dict[tuple[str, ...], Callable[[str], Measure | list[Measure]]] = {
    ("word", "value"): read_norms,
    ("sentence1", "sentence2", "score"): read_sentence_pairs,
    minimal_pairs.KEYS: minimal_pairs.read_minimal_pairs,
    prompts.KEYS: prompts.read_prompts,
}


def open_evaluations(
    paths: Sequence[str],
    feats: str | None = None,
    seed: int = 0,
    masked: Sequence[str] = (),
    thirds: str | None = None,
) -> list[Measure]:
    """Open the files of --on and --masked.

    Args:
        paths: the files of --on.
        feats: features of the photos that captions are of.
        seed: seed of the controls.
        masked: texts whose words are hidden.
        thirds: values by which these words are divided.

    Raises:
        DataError: a file cannot be read, holds no evaluation (65), or two have one name (usage);
            no file has captions for `feats` (usage).
    """
    for files in (paths, masked):
        refuse_alike([(path, os.path.basename(path)) for path in files])
    found = list[Measure]()
    for path in paths:
        if feats is not None and (_keys_of(path) or set()) >= {*photos.KEYS}:
            found += photos.read_photos(path, feats, seed)
        else:
            found += open_evaluation(path)
    if feats is not None and not any(isinstance(each, photos.Looks) for each in found):
        raise DataError("--feats: no file of --on has captions of photos", code=Exit.USAGE)
    return found + [read_masked_words(path, thirds) for path in masked]


def refuse_alike(files: Sequence[tuple[str, str]]) -> None:
    """Refuse files with the names of their evaluations, of which two are the same (usage)."""
    names = [name for _, name in files]
    for path, name in files:
        if names.count(name) > 1:
            why = f"two files are called {name}, the name of an evaluation; rename one"
            raise DataError(why, path, code=Exit.USAGE)


def open_evaluation(path: str) -> list[Measure]:
    """Open the evaluations that a file holds: the keys of its first row, or its first line, decide.

    Raises:
        DataError: a pipe (usage); it cannot be read, or has rows of no evaluation (65).
    """
    found = _keys_of(path)
    if found is None:
        first = next(read_lines(path), "")
        return [read_sentence_pairs(path) if are_sentences(first) else read_pairs(path)]
    for keys, read in BY_KEYS.items():
        if found >= set(keys):
            opened = read(path)
            return opened if isinstance(opened, list) else [opened]
    known = "; ".join(", ".join(keys) for keys in (*BY_KEYS, photos.KEYS))
    known += " with --feats"
    raise DataError(f"the row has the keys {', '.join(sorted(found))}; expected {known}", path, 1)


def _keys_of(path: str) -> set[str] | None:
    """Return the keys of a file's first row; None for lines of another form.

    Pairs are published as CSV and TSV too: these hold rows only if their first line names all keys
    of an evaluation.

    Raises:
        DataError: a pipe (usage), or it cannot be read.
    """
    refuse_stream(path)
    if is_table(path) and not is_separated(path):
        return next(({*row} for _, row in read_jsonl(path)), set())
    first = next(read_lines(path), "")
    if first.startswith("{"):
        return {*parse_json(first, path, 1)}
    if not is_separated(path):
        return None
    names = {name.strip(' "') for name in first.split("\t" if "\t" in first else ",")}
    return names if any(names >= {*keys} for keys in (*BY_KEYS, photos.KEYS)) else None


def words_of(evaluations: Sequence[Measure]) -> list[str]:
    """Return all words that evaluations are about, each once."""
    return sorted({w for each in evaluations for item in each.words for w in item})


def measure(
    evaluations: Sequence[Measure],
    refs: Sequence[str],
    reading: Reading,
    grounded: frozenset[str] | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> tuple[list[Measured], list[str]]:
    """Return the items of evaluations with the predictions of encoders, and their fingerprints.

    One encoder is in memory at a time, and the vectors of the others are in a temporary file: the
    words that all encoders know are certain only after the last.

    Args:
        evaluations: as `open_evaluations` returns them.
        refs: encoders or word vectors.
        reading: how they are read.
        grounded: words that are visually grounded.
        advance: called after each encoder with 1.

    Raises:
        DataError: an encoder cannot be opened, none can be asked for hidden tokens (78), or no
            space is left for the vectors.
    """
    answers = [list[Array | None]() for _ in evaluations]
    prints = list[str]()
    for ref in refs:
        subject = Subject(ref, reading)
        prints.append(subject.fingerprint)
        for evaluation, found in zip(evaluations, answers, strict=True):
            answer = evaluation.ask(subject)
            found.append(None if answer is None else _spooled(answer))
        advance(1)
    for name, places in rows_of(refs).items():
        if len({prints[place] for place in places}) < len(places):
            why = "its runs hold one model more than once: copies are not other seeds"
            raise DataError(why, name)
    measured = [_predicted(*pair, grounded) for pair in zip(evaluations, answers, strict=True)]
    return measured, prints


def _predicted(
    evaluation: Measure, answers: Sequence[Array | None], grounded: frozenset[str] | None
) -> Measured:
    asked = [np.isfinite(a.reshape(len(a), -1)).all(1) for a in answers if a is not None]
    if not asked:
        why = "needs a masked language model with its head; choose one that was trained with it"
        raise DataError(why, evaluation.items.name, code=Exit.CONFIG)
    known = np.logical_and.reduce(asked)
    predictions = [None if a is None else evaluation.predict(a, known) for a in answers]
    items = evaluation.items
    # Vectors are centred, and a regression is fitted, over the units that all encoders of this call
    # know: with others, one encoder has other predictions.
    shared = () if evaluation.alone else (known,)
    items = replace(items, content=content_of(items.content, [*items.keys], *shared))
    seen = None
    if grounded is not None and evaluation.words:
        seen = np.array([all(word in grounded for word in item) for item in evaluation.words])
    return Measured(items, predictions, seen)


def _spooled(array: Array) -> Array:
    """Return an array as a memory map of a temporary file, which nobody else sees."""
    if not array.size:
        return array
    with file_errors(tempfile.gettempdir(), reading=False), tempfile.TemporaryFile() as file:
        file.write(np.ascontiguousarray(array).data)
        file.flush()
        found: Array = np.memmap(file, array.dtype, "r", shape=array.shape)
    return found
