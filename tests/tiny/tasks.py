"""Official files of tiny downstream tasks, which a tiny encoder can learn, built by the tests."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from tests.tiny import WORDS
from vgtools.tasks.finetune import Learner
from vgtools.tasks.table import Task, find_task

YES, NO = "bam", "dun"  # the word that decides the label


AnyLearner = TypeVar("AnyLearner", bound=Learner)


def learner_of(
    kind: type[AnyLearner], task: str | Task, ref: object, *more: Any, **settings: Any
) -> AnyLearner:
    """Return a learner on the CPU."""
    found = find_task(task) if isinstance(task, str) else task
    plain = {"dtype": "float32", "batch_size": 8, "max_length": 40, "stride": None, "limit": None}
    return kind(found, str(ref), plain | settings, torch.device("cpu"), *more)


def sentences(count: int, seed: int = 0, longest: int = 10) -> list[tuple[str, int]]:
    """Return sentences with their label, which one word of them decides."""
    rng = np.random.default_rng(seed)
    plain = [w for w in WORDS if w not in (YES, NO)]
    found = []
    for i in range(count):
        words = list(rng.choice(plain, rng.integers(1, longest)))
        words.insert(int(rng.integers(0, len(words) + 1)), (NO, YES)[i % 2])
        found.append((" ".join(words), i % 2))
    return found


def save_sst2(folder: Path, train: int = 24, dev: int = 11, test: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    for name, count, seed in (("train", train, 0), ("dev", dev, 1)):
        rows = [f"{text}\t{label}\n" for text, label in sentences(count, seed)]
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    if test:
        rows = [f"{i}\t{text}\n" for i, (text, _) in enumerate(sentences(test, 2))]
        (folder / "test.tsv").write_text("index\tsentence\n" + "".join(rows))
    return folder


def save_stsb(folder: Path, count: int = 16) -> Path:
    folder.mkdir(exist_ok=True)
    for name, seed in (("train", 0), ("dev", 1)):
        rows = [
            f"{i}\t{text}\t{NO}\t{5.0 * label}\n"
            for i, (text, label) in enumerate(sentences(count, seed))
        ]
        (folder / f"{name}.tsv").write_text("index\tsentence1\tsentence2\tscore\n" + "".join(rows))
    return folder


def save_read(folder: Path, count: int = 40) -> Path:
    """Write READ's training file: texts with a line end, targets of -0.5 and 0.5."""
    folder.mkdir(exist_ok=True)
    rows = [
        f'{i},,,"{text}\n",{label - 0.5},0\n' for i, (text, label) in enumerate(sentences(count))
    ]
    header = "id,url_legal,license,excerpt,target,standard_error\n"
    (folder / "train.csv").write_text(header + "".join(rows))
    return folder


def save_mnli(folder: Path, count: int = 9) -> Path:
    folder.mkdir(exist_ok=True)
    labels = ("entailment", "neutral", "contradiction")
    for name, seed in (("train", 0), ("dev_matched", 1), ("dev_mismatched", 2)):
        rows = [
            f"{i}\t{text}\t{YES}\t{labels[i % 3]}\n"
            for i, (text, _) in enumerate(sentences(count, seed))
        ]
        (folder / f"{name}.tsv").write_text(
            "index\tsentence1\tsentence2\tgold_label\n" + "".join(rows)
        )
    return folder


def save_codah(folder: Path, count: int = 8) -> Path:
    folder.mkdir(exist_ok=True)
    for name, seed in (("train", 0), ("dev", 1)):
        lines = []
        for i, (text, _) in enumerate(sentences(count, seed)):
            endings = [NO] * 4
            endings[i % 4] = YES
            lines.append("\t".join(["i", text, *endings, str(i % 4)]) + "\n")
        (folder / f"{name}.tsv").write_text("".join(lines))
    return folder


def save_tags(folder: Path, count: int = 16) -> Path:
    """Write VUAN: every other word has a tag, metaphor if it begins with b, d or f."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, split in enumerate(("train", "dev")):
        rows = []
        for text, _ in sentences(count, seed):
            tags = [("literal", "metaphor")[word[0] in "bdf"] for word in text.split(" ")]
            rows.append(
                {"text": text, "tags": [tag if i % 2 == 0 else None for i, tag in enumerate(tags)]}
            )
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def squad(questions: Sequence[dict[str, Any]], version: str = "1.1") -> dict[str, Any]:
    """Return SQuAD's JSON.

    A question is `context`, `question`, `answer` (None: unanswerable), `start` if it is not found.
    """
    paragraphs = []
    for i, q in enumerate(questions):
        answer = q["answer"]
        given = (
            []
            if answer is None
            else [
                {"text": answer, "answer_start": q.get("start", max(0, q["context"].find(answer)))}
            ]
        )
        row: dict[str, Any] = {
            "id": q.get("id", f"q{i}"),
            "question": q["question"],
            "answers": given,
        }
        if version == "2.0":
            row["is_impossible"] = answer is None
        paragraphs.append({"context": q["context"], "qas": [row]})
    return {"version": version, "data": [{"title": "t", "paragraphs": paragraphs}]}


def save_squad(folder: Path, version: str = "1.1", count: int = 8, longest: int = 10) -> Path:
    """Write questions whose answer is the word after `bam`.

    In 2.0 a context without one has none.
    """
    folder.mkdir(exist_ok=True)
    for name, seed in (("train", 0), ("dev", 1)):
        found = []
        for text, label in sentences(count, seed, longest):
            words = [*text.split(), "fen"]
            has = bool(label) or version == "1.1"
            if not label and version == "1.1":
                words[words.index(NO)] = YES
            answer = words[words.index(YES) + 1] if has else None
            context = " ".join(words)
            start = context.index(f"{YES} {answer}") + len(YES) + 1 if has else 0
            found.append({"context": context, "question": YES, "answer": answer, "start": start})
        (folder / f"{name}-v{version}.json").write_text(json.dumps(squad(found, version)))
    return folder


def save_swag(path: Path, rows: Sequence[Sequence[str]]) -> Path:
    with open(path, "w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    return path


def save_own(folder: Path, count: int = 16) -> None:
    """Write tables of one's own, one for each kind, and what some are evaluated on."""
    found = sentences(count)
    pairs = [(text, NO, ["no", "yes"][label], 0.5 * label) for text, label in found]
    save_swag(folder / "own.csv", [("a", "b", "label", "n"), *pairs])
    _save_rows(folder / "own.dev.jsonl", [{"a": a, "b": b, "label": y} for a, b, y, _ in pairs])
    words = [[(word, "B-X" if word == YES else "O") for word in text.split()] for text, _ in found]
    lines = ("".join(f"{word}\t{tag}\n" for word, tag in row) for row in words)
    (folder / "own.conll").write_text("\n".join(lines))
    tags = [{"text": [w for w, _ in row], "tags": [tag for _, tag in row]} for row in words]
    _save_rows(folder / "own.tags.jsonl", tags)
    made = [{"text": text, "choices": [NO, YES], "label": label} for text, label in found]
    _save_rows(folder / "own.choices.jsonl", made)
    columns = {"question": [YES] * count, "context": [text for text, _ in found]}
    columns["answers"] = [[text.split()[0]] for text, _ in found]
    parquet.write_table(pa.table(columns), folder / "own.answers.parquet")


def _save_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
