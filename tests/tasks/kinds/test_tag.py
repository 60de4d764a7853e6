"""Tags of words: CoNLL files and rows, first tokens, windows, entities as conlleval counts them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny import save_encoder
from tests.tiny.examples import fails, read, tokenizer
from tests.tiny.tasks import learner_of
from vgtools.io.errors import DataError
from vgtools.tasks.dispatch import (
    encode,
    gather,
    majority,
    predictions,
    read_predictions,
    score_predictions,
)
from vgtools.tasks.finetune import Learner, collate, predict
from vgtools.tasks.kinds import tag
from vgtools.tasks.kinds.tag import IGNORED, TaggedExample, TaggedInputs, entities
from vgtools.tasks.table import find_task

NER = find_task("conll-2003")
NOUNS = find_task("vuan")

IOB1 = """-DOCSTART- -X- O O

Ann NNP I-NP I-PER
Bo NNP I-NP B-PER
met VBD I-VP O
EU NNP I-NP I-ORG
men NNS I-NP O

Rome NNP I-NP I-LOC
Paris NNP I-NP I-MISC
"""
IOB2 = IOB1.replace("I-PER", "B-PER").replace("I-ORG", "B-ORG").replace("I-LOC", "B-LOC")


def names(example: object) -> list[str]:
    assert isinstance(example, TaggedExample)
    return [NER.labels[number] for number in example.tags]


@pytest.mark.parametrize("text", [IOB1, IOB2, IOB1.replace(" ", "\t"), IOB1.replace("\n", "\r\n")])
def test_both_schemes_are_read_as_iob2(tmp_path: Path, text: str) -> None:
    found, stats = read("conll-2003", tmp_path, text, name="eng.train")
    assert [(e.id, e.text) for e in found] == [("0", "Ann Bo met EU men"), ("1", "Rome Paris")]
    assert names(found[0]) == ["B-PER", "B-PER", "O", "B-ORG", "O"]
    assert names(found[1]) == ["B-LOC", "B-MISC"]
    assert stats.documents == 1
    assert stats.labels == {"B-PER": 2, "O": 2, "B-ORG": 1, "B-LOC": 1, "B-MISC": 1}
    assert "1 lines mark the beginning of a document and are left out" in list(stats.report())


def test_an_entity_that_iob2_begins_with_i_is_read_and_counted(tmp_path: Path) -> None:
    found, stats = read("conll-2003", tmp_path, IOB2, name="eng.train")
    assert names(found[1]) == ["B-LOC", "B-MISC"]  # written as I-MISC
    said = "1 entities of IOB2 start with I-; they are read as if with B-"
    assert said in list(stats.report())
    for text in (IOB1, IOB2.replace("I-MISC", "B-MISC")):
        assert all("IOB2" not in line for line in read("conll-2003", tmp_path, text)[1].report())


def test_one_sentence_without_a_line_end_and_words_with_other_blanks(tmp_path: Path) -> None:
    text = "New\u00a0York NNP I-NP I-LOC\nis\u2028 VB I-VP O\n \t\n\n, , O O"
    found, _ = read("conll-2003", tmp_path, text)
    assert [e.text for e in found] == ["New\u00a0York is\u2028", ","]
    assert names(found[0]) == ["B-LOC", "O"]


def test_an_entity_of_many_words_stays_one() -> None:
    assert entities(["I-PER", "I-PER", "B-PER", "I-PER", "O", "I-LOC", "I-ORG"]) == [
        (0, 2, "PER"),
        (2, 4, "PER"),
        (5, 6, "LOC"),
        (6, 7, "ORG"),
    ]


def test_broken_columns_are_named(tmp_path: Path) -> None:
    bad = IOB1.replace("met VBD I-VP O", "met O")
    fails("conll-2003", tmp_path, bad, "expected 4 columns", "got 2", line=5)
    fails("conll-2003", tmp_path, "Ann\nBo\n", "expected 2 columns", line=1)
    unknown = IOB1.replace("I-ORG", "I-GPE")
    fails("conll-2003", tmp_path, unknown, "'I-GPE'", "B-PER (1)", line=6)
    fails("conll-2003", tmp_path, "", "is empty", "CoNLL columns")


ROWS = (
    '{"text": "the bam den", "tags": [null, "metaphor", "literal"]}\n'
    '{"text": "dun", "tags": ["literal"]}\n'
)


def test_rows_with_words_that_have_no_tag(tmp_path: Path) -> None:
    found, stats = read("vuan", tmp_path, ROWS, name="train.jsonl")
    assert [e.tags for e in found if isinstance(e, TaggedExample)] == [(-1, 1, 0), (0,)]
    assert stats.labels == {"literal": 2, "metaphor": 1}
    bare = '{"text": "the bam"}\n'
    assert read("vuan", tmp_path, bare, unlabelled=True)[0][0].label is None
    fails("vuan", tmp_path, ROWS + bare, '"tags" is missing', line=3)
    short = '{"text": "the bam", "tags": ["literal"]}\n'
    fails("vuan", tmp_path, short, '"tags" has 1 items, but "text" has 2 words', line=1)
    odd = '{"text": "the", "tags": ["funny"]}\n'
    fails("vuan", tmp_path, odd, "'funny' in \"tags\"", "literal (0), metaphor (1)", line=1)


def sentence(text: str, *tags: int, name: str = "0") -> TaggedExample:
    return TaggedExample(name, text, tags=tags)


def tagged(*examples: TaggedExample, max_length: int = 20) -> TaggedInputs:
    inputs = encode(NOUNS, examples, tokenizer(), max_length=max_length)
    assert isinstance(inputs, TaggedInputs)
    return inputs


def test_the_first_token_of_a_word_has_its_label() -> None:
    inputs = tagged(sentence("bamden the dun", 1, -1, 0))
    own = tokenizer()
    tokens = own.encode("bamden the dun")
    assert inputs.ids.tolist() == tokens.ids
    firsts = [i for i, span in enumerate(tokens.offsets) if span[0] in (0, 7, 11) and any(span)]
    assert np.flatnonzero(inputs.words >= 0).tolist() == firsts
    assert inputs.words[inputs.words >= 0].tolist() == [0, 1, 2]
    assert inputs.labels is not None
    wanted = np.full(len(tokens.ids), IGNORED)
    wanted[firsts] = [1, IGNORED, 0]
    assert inputs.labels.tolist() == wanted.tolist()


def test_each_word_of_a_long_sentence_is_read_once() -> None:
    words = ["the", "bam", "den"] * 9
    example = sentence(" ".join(words), *[0, 1, -1] * 9)
    inputs = tagged(example, sentence("dun", 1, name="1"), max_length=10)
    assert len(inputs) > 4
    assert inputs.lengths.max() <= 10
    assert sorted(inputs.words[inputs.words >= 0].tolist()) == sorted([*range(27), 0])
    outputs = np.zeros((len(inputs.ids), 2), np.float32)
    assert inputs.labels is not None
    outputs[inputs.labels == 1, 1] = 1
    first, second = predictions(NOUNS, [example, sentence("dun", 1, name="1")], inputs, outputs)
    assert first["prediction"] == first["label"] == ["literal", "metaphor", None] * 9
    assert second == {"id": "1", "prediction": ["metaphor"], "label": ["metaphor"]}


def test_the_loss_is_the_mean_over_words_with_a_label() -> None:
    inputs = tagged(sentence("the bam den", -1, 1, 0), sentence("dun", 1, name="1"))
    units = np.arange(2)
    batch = collate(inputs, units, 0, True)
    assert batch.whole == 3
    assert batch.labels is not None
    assert batch.labels.shape == batch.ids.shape
    logits = torch.randn(*batch.ids.shape, 2, generator=torch.Generator().manual_seed(1))
    found = float(tag.loss(logits, batch) / batch.whole)
    rows, places = torch.nonzero(batch.labels != IGNORED, as_tuple=True)
    double = logits.double()[rows, places].log_softmax(-1)
    wanted = -double[torch.arange(3), batch.labels[rows, places]].mean()
    assert found == pytest.approx(float(wanted), rel=1e-6)
    parts = [collate(inputs, units, 0, True, part=part, parts=2) for part in range(2)]
    losses = [
        float(tag.loss(logits[part : part + 1, : p.ids.shape[1]], p) / p.whole)
        for part, p in enumerate(parts)
    ]
    assert sum(losses) / 2 == pytest.approx(found, rel=1e-6)


def test_entities_are_scored_as_by_conlleval() -> None:
    """Worked by hand: of 5 entities 4 were said and 1 is right."""
    gold = ["B-PER I-PER O B-LOC B-LOC", "O B-ORG I-ORG O B-MISC"]
    said = ["B-PER I-PER O B-LOC I-LOC", "O B-ORG O I-MISC I-MISC"]
    rows = [
        {"id": str(i), "prediction": p.split(), "label": g.split()}
        for i, (p, g) in enumerate(zip(said, gold, strict=True))
    ]
    scores = score_predictions(NER, rows)
    assert scores == {
        "accuracy": pytest.approx(60),
        "precision": pytest.approx(25),
        "recall": pytest.approx(20),
        "f1": pytest.approx(200 / 9),
        "f1_PER": pytest.approx(100),
        "f1_ORG": pytest.approx(0),
        "f1_LOC": pytest.approx(0),
        "f1_MISC": pytest.approx(0),
        "headline": pytest.approx(200 / 9),
        "total": 2,
    }
    items = gather(NER, rows)
    twice = items.statistic(items.gold, items.predicted, np.array([[2.0, 0.0], [0.0, 1.0]]))
    assert twice.tolist() == pytest.approx([2 * 1 / (3 + 2), 0.0])


def test_accuracy_is_over_words_with_a_label() -> None:
    rows = [
        {"id": "a", "prediction": [None, "literal", "literal"], "label": [None, "literal", None]},
        {"id": "b", "prediction": ["literal"] * 3, "label": ["metaphor", "metaphor", "literal"]},
    ]
    assert score_predictions(NOUNS, rows)["accuracy"] == pytest.approx(50)
    with pytest.raises(DataError, match="'b' has 3 words; expected a tag for each"):
        score_predictions(NOUNS, [rows[0], rows[1] | {"prediction": ["literal", None]}])
    for tags, got in (
        (["literal"], "got a list of 1, 1"),
        (["literal", None, None], "got a list of 3, 1"),
    ):
        with pytest.raises(DataError, match=f"'b' has 3 words.*{got} of them tags"):
            score_predictions(NOUNS, [rows[0], rows[1] | {"prediction": tags}])
    every = [rows[0], rows[1] | {"prediction": "literal"}]
    assert score_predictions(NOUNS, every)["accuracy"] == pytest.approx(50)


def test_the_most_frequent_tag_stands_for_every_word() -> None:
    learnt = [sentence("the bam", 0, -1), sentence("dun den", 0, 1)]
    asked = [sentence("the bam den", 0, 1, -1), sentence("dun", 0, name="1")]
    found = majority(NOUNS, learnt, asked)
    assert found is not None
    assert found["accuracy"] == pytest.approx(200 / 3)


def test_a_row_of_predictions_may_be_scored_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    row = {"id": "0", "prediction": ["O", "B-LOC"], "label": ["O", "B-LOC"]}
    path.write_text(json.dumps(row) + "\n")
    assert score_predictions("conll-2003", read_predictions("conll-2003", path))["f1"] == 100


def test_it_learns_eight_sentences_by_heart(tmp_path: Path) -> None:
    tuner, encoder = learner_of(
        Learner, NOUNS, save_encoder(tmp_path / "encoder", positions=64)
    ).new(1)
    rng = np.random.default_rng(0)
    examples = []
    for number in range(8):
        words = rng.choice(["bam", "den", "dun", "fat", "gos"], 5).tolist()
        tags = [int(word in ("bam", "fat")) if i % 2 else -1 for i, word in enumerate(words)]
        examples.append(sentence(" ".join(words), *tags, name=str(number)))
    inputs = encode(NOUNS, examples, encoder.tokenizer, max_length=20)
    batch = collate(inputs, np.arange(8), tuner.pad, tuner.segments)
    optimizer = torch.optim.Adam(tuner.parameters(), 1e-3)
    tuner.eval()  # without dropout
    for _ in range(100):
        optimizer.zero_grad()
        tuner(batch)["task"].backward()
        optimizer.step()
    rows = predictions(NOUNS, examples, inputs, predict(tuner, inputs, 3))
    assert score_predictions(NOUNS, rows)["accuracy"] == 100
