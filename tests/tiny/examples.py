"""Small official files, prediction rows and token sequences, as text and lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.tiny import WORDS
from vgtools.io.errors import DataError, Exit
from vgtools.tasks.dispatch import read_examples
from vgtools.tasks.examples import Example, ReadStats
from vgtools.tasks.sequences import TaskInputs


def write(folder: Path, text: str, name: str = "data.tsv") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def read(
    task: str, folder: Path, text: str, name: str = "data.tsv", **options: Any
) -> tuple[list[Example], ReadStats]:
    stats = ReadStats()
    return list(read_examples(task, write(folder, text, name), stats=stats, **options)), stats


def fails(
    task: str, folder: Path, text: str, *parts: str, line: int | None = None, **options: Any
) -> None:
    """Read a bad file; its error names the file, the line, what is there and what is expected."""
    with pytest.raises(DataError) as caught:
        read(task, folder, text, **options)
    message = str(caught.value)
    assert (caught.value.line, caught.value.code) == (line, Exit.DATA), message
    for part in ("data.", *parts):
        assert part in message, message


SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    '0,v1,77,"A man sits, alone. He","A man sits, alone.",He,gold,'
    'stands.,"flies, slowly.",melts.,sings.,2\n'
)


def squad(
    *qas: dict[str, Any], context: str = "Ann met Bo. Bo met Ann in Rome.", version: str = "1.1"
) -> str:
    return json.dumps(
        {
            "version": version,
            "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(qas)}]}],
        }
    )


def qa(name: str, *answers: tuple[str, int], **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "question": f"{name}?",
        "answers": [{"text": t, "answer_start": s} for t, s in answers],
        **more,
    }


def rows(*pairs: tuple[Any, Any], **more: list[Any]) -> list[dict[str, Any]]:
    """Return prediction rows of (prediction, label) pairs, ids 0, 1 …, with further keys."""
    return [
        {"id": str(i), "prediction": said, "label": gold}
        | {key: values[i] for key, values in more.items()}
        for i, (said, gold) in enumerate(pairs)
    ]


def tokenizer(roberta: bool = False) -> Tokenizer:
    marks = ["<pad>", "[UNK]", "<s>", "</s>"] if roberta else ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    own = Tokenizer(
        models.WordPiece({w: i for i, w in enumerate([*marks, *WORDS])}, unk_token="[UNK]")
    )
    own.normalizer = normalizers.BertNormalizer()
    own.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = (("</s>", 3), ("<s>", 2)) if roberta else (("[SEP]", 3), ("[CLS]", 2))
    own.post_processor = (
        processors.RobertaProcessing(*ends) if roberta else processors.BertProcessing(*ends)
    )
    return own


def token_rows(inputs: TaskInputs) -> list[list[int]]:
    return [
        inputs.ids[a:b].tolist() for a, b in zip(inputs.starts, inputs.starts[1:], strict=False)
    ]
