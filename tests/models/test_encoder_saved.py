"""Encoders that vg writes: transformers opens them, and reads texts as vg does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    LxmertConfig,
    LxmertModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

from tests.tiny import save_encoder
from tests.tiny.probe import save_visualbert
from vgtools.models.encoder import load_encoder, load_with_head, save_pretrained
from vgtools.models.weights import save_noisy

WORDS = ("a", "red", "dog", "looks", "green")
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}


def word_pieces() -> Any:
    """Return a tokenizer as BERT's."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    made = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    roles = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=made, **{f"{role}_token": token for role, token in roles.items()}
    )


def pieces_of_mpnet() -> Any:
    """Return a tokenizer as MPNet's, whose vocabulary has BERT's special tokens as words."""
    words = ["<s>", "<pad>", "</s>", "[UNK]", "[PAD]", "[MASK]", "[", "]", "mask", *WORDS, "<mask>"]
    made = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    roles = {"pad": "<pad>", "unk": "[UNK]", "cls": "<s>", "sep": "</s>", "bos": "<s>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        mask_token=AddedToken("<mask>", lstrip=True, special=True),
        eos_token="</s>",
        **{f"{role}_token": token for role, token in roles.items()},
    )


def bytes_with_a_blank_before() -> Any:
    """Return a tokenizer as some RoBERTas', to whose texts a blank is added."""
    words = ["<s>", "<pad>", "</s>", "<unk>", *pre_tokenizers.ByteLevel.alphabet(), "<mask>"]
    made = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    roles = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "bos": "<s>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        mask_token=AddedToken("<mask>", lstrip=True, special=True),
        eos_token="</s>",
        add_prefix_space=True,
        **{f"{role}_token": token for role, token in roles.items()},
    )


def sentence_pieces() -> Any:
    """Return a tokenizer as XLM-R's: white space before a mask is the mask's."""
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(f"▁{word}", -1.0 - n) for n, word in enumerate(WORDS)]
    made = Tokenizer(models.Unigram([*pieces, ("▁", -9.0), ("d", -9.5)], unk_id=3))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), False, False)
    roles = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "bos": "<s>"}
    mask = AddedToken("<mask>", lstrip=True, special=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        mask_token=mask,
        eos_token="</s>",
        **{f"{role}_token": token for role, token in roles.items()},
    )


@pytest.mark.parametrize(
    ("network", "config", "tokenizer"),
    [
        (BertModel, BertConfig(**SIZES), word_pieces()),
        (BertModel, BertConfig(pad_token_id=1, **SIZES), sentence_pieces()),
        (RobertaModel, RobertaConfig(pad_token_id=0, type_vocab_size=1, **SIZES), word_pieces()),
        # As multilingual encoders whose configuration has transformers' default.
        (BertModel, BertConfig(pad_token_id=0, **SIZES), sentence_pieces()),
        (MPNetModel, MPNetConfig(pad_token_id=1, **SIZES), sentence_pieces()),
        (MPNetModel, MPNetConfig(pad_token_id=1, **SIZES), pieces_of_mpnet()),
        (RobertaModel, RobertaConfig(pad_token_id=1, **SIZES), bytes_with_a_blank_before()),
        (
            DistilBertModel,
            DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=24, pad_token_id=1),
            sentence_pieces(),
        ),
    ],
    ids=[
        *("bert", "bert of sentence pieces", "roberta of word pieces"),
        *("bert of sentence pieces, default padding", "mpnet of sentence pieces", "mpnet"),
        *("roberta of bytes", "distilbert"),
    ],
)
@torch.no_grad()
def test_transformers_reads_texts_as_vg_does(
    tmp_path: Path, network: Any, config: Any, tokenizer: Any
) -> None:
    """Without settings next to it, transformers makes a tokenizer of the kind of the model."""
    config.vocab_size = len(tokenizer)
    network(config).save_pretrained(tmp_path / "given")
    tokenizer.save_pretrained(tmp_path / "given")
    encoder = load_encoder(str(tmp_path / "given"))
    save_pretrained(tmp_path / "saved", encoder)
    given, saved = (AutoTokenizer.from_pretrained(tmp_path / n) for n in ("given", "saved"))
    mask = tokenizer.mask_token
    for texts in (("a red dog",), ("a dog", "looks green"), (f"a {mask} dog{mask}",), ("zz",)):
        ids = encoder.tokenizer.encode(*texts).ids
        assert saved(*texts)["input_ids"] == given(*texts)["input_ids"] == ids
    for role in ("pad", "unk", "cls", "sep", "mask", "bos", "eos"):
        assert getattr(saved, f"{role}_token") == getattr(given, f"{role}_token")
    assert saved.model_max_length == encoder.max_tokens + 2
    long = saved(["a red dog " * 300, "a dog"], padding=True, truncation=True, return_tensors="pt")
    assert long["input_ids"].shape == (2, saved.model_max_length)
    opened = AutoModel.from_pretrained(tmp_path / "saved").eval()
    states = opened(**long).last_hidden_state
    expected = encoder.model(**long).last_hidden_state
    torch.testing.assert_close(states, expected)


def save_lxmert(folder: Path) -> Path:
    """Write a random LXMERT with a tokenizer."""
    text = save_encoder(folder.with_name("text"))
    tokenizer = Tokenizer.from_file(str(text / "tokenizer.json"))
    torch.manual_seed(0)
    config = LxmertConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=16, num_attention_heads=2,
        intermediate_size=24, l_layers=2, x_layers=1, r_layers=1, visual_feat_dim=4,
        max_position_embeddings=32,
    )  # fmt: skip
    LxmertModel(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("save", [save_visualbert, save_lxmert])
@torch.no_grad()
def test_the_text_encoder_of_a_larger_model_is_saved_as_a_bert(tmp_path: Path, save: Any) -> None:
    """Its weights must not have the names that they have in the larger model."""
    folder = str(save(tmp_path / "given"))
    ids = torch.tensor([[2, 5, 6, 7, 3]])
    tuned = load_with_head(folder, "SequenceClassification", 0, {"num_labels": 3})
    save_pretrained(tmp_path / "tuned", tuned)
    opened, report = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "tuned", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    torch.testing.assert_close(opened.eval()(ids).logits, tuned.model.eval()(ids).logits)
    states = load_encoder(str(tmp_path / "tuned")).model(ids).last_hidden_state
    torch.testing.assert_close(states, opened.base_model(ids).last_hidden_state)


@pytest.mark.parametrize("save", [save_visualbert, save_lxmert])
@torch.no_grad()
def test_noise_on_a_larger_model_is_read_again(tmp_path: Path, save: Any) -> None:
    folder = str(save(tmp_path / "given"))
    save_noisy(folder, tmp_path / "noisy", 1e-3, seed=0)
    ids = torch.tensor([[2, 5, 6, 7, 3]])
    noisy = load_encoder(str(tmp_path / "noisy")).model(ids).last_hidden_state
    clean = load_encoder(folder).model(ids).last_hidden_state
    assert 0 < (noisy - clean).abs().mean() < 0.15
