"""Translation models: their sizes, and a search whose result depends on the sentence alone."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models

from tests.tiny import save_encoder
from tests.tiny.translation import network, save_model, tokenizer
from vgtools.io.errors import DataError
from vgtools.models import seq2seq
from vgtools.models.encoder import load_seq2seq
from vgtools.models.seq2seq import GREEDY, Decoding, new_seq2seq, shift_right, translate
from vgtools.text.subwords import SPECIAL


def vocabulary(size: int) -> Tokenizer:
    """Return a tokenizer of a size."""
    entries = [*SPECIAL, *(f"w{i}" for i in range(size - 4))]
    bpe = tokenizer()
    bpe.model = models.WordLevel({name: i for i, name in enumerate(entries)}, unk_token="<unk>")
    return bpe


@pytest.mark.parametrize(
    ("shape", "entries", "learnt", "fixed"),
    [
        ("transformer-base", 40_000, 64_618_496, 1_048_576),
        ("transformer-small", 4_000, 1_174_528, 65_536),
    ],
)
def test_the_parameters_of_a_shape(shape: str, entries: int, learnt: int, fixed: int) -> None:
    """Source: Vaswani et al. 2017, table 3 (65 M); the numbers are summed in the design."""
    with torch.device("meta"):
        net = new_seq2seq(shape, vocabulary(entries))
    counts = {True: 0, False: 0}
    for parameter in net.parameters():
        counts[parameter.requires_grad] += parameter.numel()
    assert counts == {True: learnt, False: fixed}
    config = net.config
    assert (config.dropout, config.activation_function) == (0.1, "relu")
    ids = (config.pad_token_id, config.decoder_start_token_id, config.eos_token_id)
    assert ids == (0, 1, 2)


@pytest.mark.parametrize("name", ["<pad>", "<s>", "</s>"])
def test_a_tokenizer_that_lacks_a_token_is_refused(name: str) -> None:
    bpe = vocabulary(20)
    entries = {t: i for t, i in bpe.get_vocab().items() if t != name}
    other = Tokenizer(models.WordLevel({t: i for i, t in enumerate(entries)}, unk_token="<unk>"))
    with pytest.raises(DataError, match=f"bpe: the tokenizer has no .*{name}") as caught:
        new_seq2seq("transformer-small", other, "bpe")
    assert caught.value.code == 78


def test_a_tokenizer_that_ends_no_text_is_refused() -> None:
    entries = {name: i for i, name in enumerate([*SPECIAL, "a"])}
    bare = Tokenizer(models.WordLevel(entries, unk_token="<unk>"))
    with pytest.raises(DataError, match="the tokenizer has no </s> after a text"):
        new_seq2seq("transformer-small", bare)


def test_the_decoder_reads_what_comes_before() -> None:
    labels = torch.tensor([[7, 8, 2], [9, 2, -100], [2, -100, -100]])
    read = shift_right(labels, network().config)
    assert read.tolist() == [[1, 7, 8], [1, 9, 2], [1, 2, 0]]
    assert labels[1, 2] == -100


def log_probability(net: Any, source: list[int], target: tuple[int, ...]) -> float:
    """Return that of a whole translation, in float64."""
    read = torch.tensor([[1, *target[:-1]]])
    with torch.no_grad():
        logits = net(input_ids=torch.tensor([source]), decoder_input_ids=read).logits[0]
    each = logits.double().log_softmax(-1)
    return float(sum(each[i, token] for i, token in enumerate(target)))


@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0])
def test_enough_beams_find_the_best_of_all_translations(penalty: float) -> None:
    torch.manual_seed(5)
    net = new_seq2seq("transformer-small", vocabulary(7)).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(4 if parameter.requires_grad and parameter.ndim > 1 else 1)
    most = 3  # tokens with the end: source 2 + extra 1
    tokens = [token for token in range(7) if token != 2]
    wholes = [
        (*body, 2) for length in range(most) for body in itertools.product(tokens, repeat=length)
    ]
    for source in ([5, 2], [6, 2]):
        scored = {t: log_probability(net, source, t) / len(t) ** penalty for t in wholes}
        best = max(scored, key=scored.__getitem__)
        how = Decoding(beams=100, length_penalty=penalty, extra=1)
        found = translate(net, [source], how, 1)
        assert found == [[token for token in best if token not in (0, 1, 2)]]


def sources(count: int = 9) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [[*rng.integers(4, 60, size=rng.integers(1, 9)).tolist(), 2] for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("how", [GREEDY, Decoding(extra=6)])
def test_a_translation_depends_on_its_sentence_alone(how: Decoding) -> None:
    net = network()
    texts = sources()
    alone = [translate(net, [text], how, 1)[0] for text in texts]
    assert len({tuple(row) for row in alone}) > 4
    for size in (2, 4, 9):
        assert translate(net, texts, how, size) == alone
    assert translate(net, [[], *texts[:1], []], how, 2) == [[], alone[0], []]
    longest = [len(text) + how.extra - 1 for text in texts]  # the end is not returned
    assert all(len(row) <= most for row, most in zip(alone, longest, strict=True))
    assert any(len(row) == most for row, most in zip(alone, longest, strict=True))
    # The positions of the model bound it, too.
    far = translate(net, [texts[0]], Decoding(beams=1, extra=10_000), 1)[0]
    assert len(far) <= 254


def test_a_file_of_generation_settings_changes_neither_search_nor_output(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    texts = sources(3)
    how = Decoding(beams=2)
    expected = translate(load_seq2seq(str(folder)).model, texts, how, 3)
    file = folder / "generation_config.json"
    odd = {"return_dict_in_generate": True, "stop_strings": ["a"], "max_time": 1e-9}
    odd |= {"num_beam_groups": 2, "num_return_sequences": 2, "num_beams": 2}
    file.write_text(json.dumps(json.loads(file.read_text()) | odd))
    assert translate(load_seq2seq(str(folder)).model, texts, how, 3) == expected


def test_a_lack_of_memory_halves_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network()
    texts = sources()
    expected = translate(net, texts, GREEDY, 9)
    sizes = []
    plain = seq2seq.generate

    def generate(net: Any, ids: torch.Tensor, *rest: Any) -> list[list[int]]:
        sizes.append(len(ids))
        if len(ids) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(net, ids, *rest)

    monkeypatch.setattr(seq2seq, "generate", generate)
    net.train()
    assert translate(net, texts, GREEDY, 9) == expected
    assert sizes == [9, 4, 2, 2, 2, 2, 1]
    assert net.training


def test_one_sentence_too_many_names_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def generate(*given: Any) -> list[list[int]]:
        raise MemoryError

    monkeypatch.setattr(seq2seq, "generate", generate)
    with pytest.raises(DataError, match="one sentence of 3 tokens and 4 beams") as caught:
        translate(network(), [[5, 6, 2]], Decoding(), 4)
    assert caught.value.code == 70


def test_a_saved_model_is_the_same_again(tmp_path: Path) -> None:
    save_model(tmp_path / "model")
    again = load_seq2seq(str(tmp_path / "model"))
    texts = sources(3)
    assert translate(again.model.eval(), texts, GREEDY, 3) == translate(network(), texts, GREEDY, 3)
    assert again.max_tokens == 255
    assert again.suffix == [2]
    assert math.isclose(float(again.model.model.shared.weight[0].detach().abs().sum()), 0)


def test_weights_after_the_decoder_make_another_model(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_model(tmp_path / "m")
    before = load_seq2seq(str(folder))
    assert load_seq2seq(str(folder)).identity == before.identity
    weights = load_file(folder / "model.safetensors")
    weights["final_logits_bias"] = before.model.final_logits_bias + 1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    after = load_seq2seq(str(folder))
    assert torch.equal(after.model.final_logits_bias, before.model.final_logits_bias + 1)
    assert after.fingerprint == before.fingerprint
    assert after.identity != before.identity


def test_what_does_not_translate_is_refused(tmp_path: Path) -> None:
    save_encoder(tmp_path / "bert")
    with pytest.raises(DataError, match="is not a usable translation model"):
        load_seq2seq(str(tmp_path / "bert"))
    save_model(tmp_path / "model")
    config = tmp_path / "model/config.json"
    text = config.read_text()
    config.write_text(text.replace('"eos_token_id": 2', '"eos_token_id": null'))
    with pytest.raises(DataError, match='lacks "eos_token_id"'):
        load_seq2seq(str(tmp_path / "model"))


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("odd", ["99999", "-1", '"x"', "[[2, 99999]]"])
def test_tokens_outside_the_vocabulary_are_refused(tmp_path: Path, file: str, odd: str) -> None:
    path = save_model(tmp_path / "model") / file
    key = '"decoder_start_token_id": '
    path.write_text(re.sub(rf"{key}\d+", key + odd, path.read_text()))
    with pytest.raises(DataError, match=r"decoder_start_token_id|list") as caught:
        load_seq2seq(str(tmp_path / "model"))
    assert caught.value.code in (65, 78)
