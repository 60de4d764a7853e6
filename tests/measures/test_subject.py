"""Vectors of words and sentences against the models' own forward, one text at a time."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny import save_encoder, text
from vgtools.io.arrays import Array
from vgtools.measures.contexts import draw
from vgtools.measures.subject import Reading, Subject, unknown_id
from vgtools.models.encoder import Encoder, load_encoder
from vgtools.text.tokens import split_window, tokenize

# float32 states of a two-layer network, each sum in another order
_CLOSE = {"rtol": 0, "atol": 2e-5}


def states_of(encoder: Encoder, sentence: str) -> Array:
    """Return the last states of a sentence, read alone by the model's own forward in float64."""
    ids = encoder.prefix + tokenize(encoder.tokenizer, [sentence]).ids.tolist() + encoder.suffix
    with torch.no_grad():
        states = encoder.model(torch.tensor([ids])).last_hidden_state[0]
    found: Array = states[len(encoder.prefix) : len(ids) - len(encoder.suffix)].numpy()
    return found


@pytest.fixture
def encoder(tmp_path: Path) -> Encoder:
    save_encoder(tmp_path / "net", still=False)
    found = load_encoder(str(tmp_path / "net"))
    found.model.double()
    return found


def test_a_word_is_the_mean_of_its_tokens_last_states(tmp_path: Path, encoder: Encoder) -> None:
    words = ["bam", "bamde", "", "de", "☃"]
    found = Subject(str(tmp_path / "net"), Reading("alone")).words(words)
    for word, vector in zip(words, found, strict=True):
        if word in ("", "☃"):  # no token, and only the unknown token
            assert np.isnan(vector).all()
        else:
            expected = states_of(encoder, word).mean(0)
            np.testing.assert_allclose(vector, expected, **_CLOSE)


def test_a_sentence_longer_than_the_encoder_takes_is_read_in_windows(tmp_path: Path) -> None:
    save_encoder(tmp_path / "net", positions=32, still=False)
    subject = Subject(str(tmp_path / "net"), Reading("alone"))
    encoder = load_encoder(str(tmp_path / "net"))
    encoder.model.double()
    long = " ".join(text(30))
    ids = tokenize(encoder.tokenizer, [long]).ids.tolist()
    kept = list[Array]()
    for start, end, first, last in split_window(len(ids), encoder.max_tokens):
        row = encoder.prefix + ids[start:end] + encoder.suffix
        with torch.no_grad():
            states = encoder.model(torch.tensor([row])).last_hidden_state[0].numpy()
        kept += list(states[1:-1][first - start : last - start])
    assert len(kept) == len(ids) > 100
    found = subject.sentences([long, "bam"])
    np.testing.assert_allclose(found[0], np.mean(kept, 0), **_CLOSE)
    np.testing.assert_allclose(found[1], states_of(encoder, "bam").mean(0), **_CLOSE)


def test_input_vectors_are_means_of_rows_of_the_table(tmp_path: Path, encoder: Encoder) -> None:
    words = ["bam", "bamde", "☃"]
    found = Subject(str(tmp_path / "net"), Reading("input")).words(words)
    table = encoder.model.get_input_embeddings().weight.detach().numpy()
    for word, vector in zip(words[:2], found, strict=False):
        ids = tokenize(encoder.tokenizer, [word]).ids
        np.testing.assert_allclose(vector, table[ids].mean(0), rtol=1e-6)
    assert np.isnan(found[2]).all()


def test_vectors_in_contexts_are_means_over_sentences_read_alone(
    tmp_path: Path, encoder: Encoder
) -> None:
    lines = ["Bam dem, bam fim ☃.", "fim bamx bam", "x fimbam gom-dem", "dem"] * 2
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    words = ["bam", "dem", "fim", "gom", "kim"]
    contexts = draw(str(tmp_path / "text.txt"), words, 100, 0)
    subject = Subject(str(tmp_path / "net"), Reading("contexts", contexts))
    found = subject.words(["kim", "fim", "dem", "bam"])
    assert np.isnan(found[0]).all()
    for word, vector in zip(["fim", "dem", "bam"], found[1:], strict=True):
        means = list[Array]()
        for line in lines:
            tokens = tokenize(encoder.tokenizer, [line])
            states = states_of(encoder, line)
            for begin, end in (match.span() for match in re.finditer(rf"(?i)\b{word}\b", line)):
                own = [
                    i
                    for i, (a, b) in enumerate(tokens.spans.tolist())
                    if a < end and b > begin and tokens.ids[i] != unknown_id(encoder.tokenizer)
                ]
                means.append(states[own].mean(0))
        assert len(means) == {"fim": 4, "dem": 6, "bam": 6}[word]
        np.testing.assert_allclose(vector, np.mean(means, 0), **_CLOSE)
