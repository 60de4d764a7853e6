"""CLIP's tokenizer: the published list of merges, pairs, what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.tiny.clip import clip_tokenizer
from tests.tiny.lm import make_tokenizer, save_tokenizer
from vgtools.io.errors import DataError, Exit
from vgtools.models.references import builtin_path, load_tokenizer
from vgtools.tasks.sequences import special_tokens
from vgtools.text import clip_bpe

START, END = 49406, 49407


def test_the_published_list_gives_the_published_ids() -> None:
    tokenizer = load_tokenizer("builtin:clip-bpe")
    assert tokenizer.get_vocab_size() == 49_408
    assert tokenizer.encode("a photo of a cat").ids == [START, 320, 1125, 539, 320, 2368, END]
    assert tokenizer.encode('!"?').ids == [START, 0, 11727, END], "id 0 is a real token"
    assert tokenizer.encode("").ids == [START, END]
    assert tokenizer.token_to_id(clip_bpe.START) == START
    assert tokenizer.token_to_id(clip_bpe.END) == END


TEXTS = [
    "A Dog's  toy,\tit's 1234\n — don't!!",
    "e\u0301\u00df\u4e2d \U0001f642\x00",
    " <|endoftext|> 'LL'll ",
]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_read_as_transformers_reads_them(text: str) -> None:
    from transformers import CLIPTokenizer

    tokenizer = load_tokenizer("builtin:clip-bpe")
    model = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    other = CLIPTokenizer(vocab=model["vocab"], merges=merges)
    assert tokenizer.encode(text).ids == other(text)["input_ids"]


def test_each_text_of_a_pair_is_between_its_own_marks() -> None:
    tokenizer = clip_tokenizer()
    the = tokenizer.token_to_id("the</w>")
    a = tokenizer.token_to_id("a</w>")
    assert tokenizer.encode("the", "A a").ids == [514, the, 515, 514, a, a, 515]
    found = special_tokens(tokenizer)
    assert found.single == ([514], [515])
    assert found.pair == ([514], [515, 514], [515])
    assert not found.segments


def test_a_saved_tokenizer_is_the_same_one(tmp_path: Path) -> None:
    tokenizer = clip_tokenizer()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(str(tmp_path)).to_str() == tokenizer.to_str()
    (tmp_path / "tokenizer.json").unlink()
    tokenizer.model.save(str(tmp_path))  # vocab.json and merges.txt
    again = load_tokenizer(str(tmp_path))
    assert again.encode("The cat", "the").ids == tokenizer.encode("The cat", "the").ids


def test_another_list_of_merges_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bpe_simple_vocab_16e6.txt.gz"
    file.write_bytes(gzip.compress(b"# other\na b\n"))
    with pytest.raises(DataError, match=r"sha256 .* expected 924691ac.*open-clip-torch") as error:
        clip_bpe.open_merges(file)
    assert error.value.code == Exit.DATA
    with pytest.raises(DataError) as error:
        clip_bpe.open_merges(tmp_path / "none")
    assert error.value.code == Exit.NO_INPUT


def test_the_tokenizer_of_another_model_has_no_marks(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(save_tokenizer(tmp_path)))
    with pytest.raises(DataError, match=r"has no <\|startoftext\|>") as error:
        clip_bpe.frame_texts(tokenizer, tmp_path)
    assert error.value.code == Exit.DATA
    assert make_tokenizer().encode("a").ids == load_tokenizer(str(tmp_path)).encode("a").ids


def test_the_builtin_is_the_package_s_file() -> None:
    assert builtin_path("builtin:clip-bpe").name == "bpe_simple_vocab_16e6.txt.gz"
