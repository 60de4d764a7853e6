"""What the text path reads: known words, unknown ones, word pieces, states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny import save_encoder
from tests.tiny.retriever import save_retriever
from vgtools.io.errors import DataError
from vgtools.models.encoder import Encoder, load_encoder
from vgtools.models.runs import open_run
from vgtools.systems.visual_awareness.words import (
    LONGEST,
    PieceReader,
    StateReader,
    WordReader,
    encoder_reader,
    open_reader,
    words_of,
)

TABLE = np.arange(8, dtype=np.float32).reshape(4, 2)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return load_encoder(str(save_encoder(tmp_path_factory.mktemp("encoder") / "e")))


def test_unknown_words_are_left_out_and_counted() -> None:
    reader = WordReader({"a": 0, "dog": 1, "NATO": 2, "runs": 3}, TABLE)
    found = reader.read(["A dog, runs!", "NATO yeti", "", "yeti Yeti", "dog"])
    assert found.starts.tolist() == [0, 3, 4, 4, 4, 5]
    assert found.items.tolist() == [0, 1, 3, 2, 1]
    assert (found.unknown, found.cut) == (3, 0)
    assert found.asking.tolist() == [0, 1, 4]


@pytest.mark.parametrize("name", ["UNK", "<unk>"])
def test_a_table_s_own_vector_takes_the_place_of_unknown_words(name: str) -> None:
    found = WordReader({"dog": 0, name: 3}, TABLE).read(["a dog", "..."])
    assert found.items.tolist() == [3, 0]
    assert found.unknown == 1
    assert found.asking.tolist() == [0], "without a word there is nothing unknown either"


def test_texts_are_padded_with_zeros_after_their_ends() -> None:
    reader = WordReader({"a": 1, "b": 2, "c": 3}, TABLE)
    texts = reader.read(["a b c", "c", "b a"])
    words, lengths = reader.inputs(texts, np.array([2, 1, 0]))
    assert lengths.tolist() == [2, 1, 3]
    expected = [[4, 5], [6, 7], [2, 3]], [[2, 3], [0, 0], [4, 5]], [[0, 0], [0, 0], [6, 7]]
    assert words.tolist() == [*expected]


def test_a_text_of_too_many_words_is_cut_and_counted() -> None:
    found = WordReader({"a": 0, "b": 1}, TABLE).read(["b " + "a " * LONGEST, "b"])
    assert np.diff(found.starts).tolist() == [LONGEST, 1]
    assert found.items[[0, -1]].tolist() == [1, 1]
    assert found.cut == 1


def test_word_pieces_are_looked_up_in_the_encoder_s_own_table(encoder: Encoder) -> None:
    reader = PieceReader(encoder)
    texts = reader.read(["bam dor", "", "x"])
    ids = encoder.tokenizer.encode("bam dor", add_special_tokens=False).ids
    assert texts.items[: len(ids)].tolist() == ids
    words = reader.inputs(texts, np.array([0]))[0]
    table = encoder.model.get_input_embeddings().weight
    assert torch.equal(words[:, 0], table[ids])
    assert texts.asking.tolist() == [0, 2]


def test_states_are_the_mean_of_a_text_s_tokens(encoder: Encoder) -> None:
    reader = StateReader(encoder, 2)
    texts = reader.read(["bam dor x", "", "x"])
    assert texts.asking.tolist() == [0, 2]
    words, lengths = reader.inputs(texts, np.array([0, 2]))
    assert lengths.tolist() == [1, 1]
    ids = [2, *encoder.tokenizer.encode("bam dor x", add_special_tokens=False).ids, 3]
    with torch.inference_mode():
        states = encoder.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    expected = torch.cat(states[-2:], 2)[0, 1:-1].mean(0)
    torch.testing.assert_close(words[0, 0], expected, rtol=2e-3, atol=2e-3)  # of float16


def test_the_words_that_captions_need() -> None:
    assert words_of(["A dog", "a NATO"]) == {"A", "a", "dog", "NATO", "nato", "UNK", "<unk>"}


def test_a_run_opens_what_it_was_trained_with(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "e")
    run = save_retriever(tmp_path / "run", folder)
    reader = open_reader(open_run(run, "retriever"))
    assert isinstance(reader, PieceReader)
    other = save_encoder(tmp_path / "other", seed=1)
    for file in other.iterdir():
        file.replace(run / "encoder" / file.name)
    with pytest.raises(DataError, match="damaged or from another run"):
        open_reader(open_run(run, "retriever"))


def test_either_reader_of_an_encoder(encoder: Encoder) -> None:
    assert isinstance(encoder_reader(encoder, "sru", 2), PieceReader)
    assert isinstance(encoder_reader(encoder, "encoder", 2), StateReader)
