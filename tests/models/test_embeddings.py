"""Whole words of vocabularies and their vectors, from the files of a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

from tests.tiny import WIDTH, WORDS, save_encoder
from vgtools.io.errors import DataError
from vgtools.io.files import write_manifest
from vgtools.models.embeddings import input_embeddings, open_words, read_word_list, whole_words


def bpe(entries: list[str], ending: str | None = None) -> Tokenizer:
    vocabulary = {name: i for i, name in enumerate(entries)}
    more = {} if ending is None else {"end_of_word_suffix": ending}
    return Tokenizer(models.BPE(vocabulary, [], **more))


def test_whole_words_are_those_that_the_tokenizer_marks() -> None:
    clip = bpe(["the", "the</w>", "a</w>", "it's</w>", "1</w>", "<|endoftext|>", "Ġx</w>"], "</w>")
    assert whole_words(clip) == {"the": 1, "a": 2}
    byte_level = bpe(["the", "Ġthe", "Ġ", "ĠParis", "Ġparis", "Ġ2001", "▁no", "ĠÃ©"])
    assert whole_words(byte_level) == {"the": 1, "paris": 4, "no": 6}
    pieces = {"[PAD]": 0, "the": 1, "##the": 2, "Paris": 3, "ġa": 4, "x2": 5, "é": 6, "cat": 7}
    word_piece = Tokenizer(models.WordPiece(pieces, unk_token="[PAD]"))
    assert whole_words(word_piece) == {"the": 1, "cat": 7}
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁the", -1.0), ("the", -2.0)], 0))
    assert whole_words(unigram) == {"the": 1}


def test_the_vectors_of_an_encoder_are_its_own(tmp_path: Path) -> None:
    from transformers import BertModel

    folder = save_encoder(tmp_path / "encoder")
    table = open_words(str(folder))
    assert set(table.rows) == {word for word in WORDS if word.isalpha()}
    words = ["ban", "a", "lum"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [tokenizer.token_to_id(word) for word in words]
    model = BertModel.from_pretrained(folder)
    own = model.get_input_embeddings().weight[ids].detach().numpy()
    found = table.vectors(words)
    assert (found.dtype, found.shape) == (np.float64, (3, WIDTH))
    assert found.tolist() == own.astype(np.float64).tolist()


@pytest.mark.parametrize(
    "name",
    [
        "embeddings.word_embeddings.weight",
        "electra.embeddings.word_embeddings.weight",
        "text_model.embeddings.token_embedding.weight",
        "transformer.wte.weight",
        "shared.weight",
        "model.embed_tokens.weight",
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_table_is_found_by_its_name(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    table = torch.arange(6.0).reshape(3, 2)
    others = {
        "text_model.embeddings.position_embedding.weight": torch.ones(4, 2),
        "zz.encoder.layers.embed_tokens.weight": torch.zeros(3, 2),
        "embeddings.token_type_embeddings.weight": torch.ones(2, 2),
    }
    tensors = {name: table.to(dtype), **others}
    save_file(tensors, tmp_path / "model.safetensors")
    assert input_embeddings(tmp_path).tolist() == table.tolist()


def test_word_vectors_are_words(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save(tmp_path / "w.npy", array)
    (tmp_path / "w.ids").write_text("dog\nCat\ncat\n")
    files = [tmp_path / "w.npy", tmp_path / "w.ids"]
    write_manifest(tmp_path / "w.npy", files, kind="word-vectors")
    table = open_words(str(tmp_path / "w.npy"))
    assert table.rows == {"dog": 0, "cat": 2}
    assert table.vectors(["cat"]).tolist() == [[4, 5]]


def test_a_table_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "encoder")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = "embeddings.word_embeddings.weight"

    def said(change: dict[str, torch.Tensor]) -> str:
        save_file({k: v for k, v in (tensors | change).items() if v.numel()}, file)
        with pytest.raises(DataError) as caught:
            open_words(str(folder))
        return str(caught.value)

    assert "the embedding table 20 rows: they do not belong" in said({name: tensors[name][:20]})
    bad = tensors[name].clone()
    bad[3, 2] = torch.nan
    assert f"{name}: expected rows of finite numbers" in said({name: bad})
    assert "has no table of token embeddings" in said({name: torch.zeros(0)})
    assert "expected rows of finite numbers, got (4,)" in said({name: torch.ones(4)})
    file.write_bytes(b"x" * 30)
    with pytest.raises(DataError, match="is not a readable safetensors file"):
        open_words(str(folder))


def test_a_list_of_words(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("Dog\n\n cat \ndog\n")
    assert read_word_list(str(file)) == ["dog", "cat"]
    file.write_text("\n \n")
    with pytest.raises(DataError, match="holds no words; expected one per line"):
        read_word_list(str(file))
