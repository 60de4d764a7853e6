"""Stand-ins for networks of the model hub, a few thousand random weights in published forms, and
for files that such a network makes.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.tiny import official
from tests.tiny.images import save_backbone

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SHAPE: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 512,
}  # fmt: skip


def tokenizer(marks: str) -> Tokenizer:
    """Return word pieces: the words of the captions, letters for all others.

    Args:
        marks: padding, unknown, first, last, mask.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = sorted({word.lower() for line in official.captions(400) for word in line.split()})
    names = marks.split()
    every = [*names, *words, *letters, *(f"##{letter}" for letter in letters), *".,?!'-"]
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(every))}
    found = Tokenizer(models.WordPiece(vocabulary, unk_token=names[1]))
    found.normalizer = normalizers.BertNormalizer()
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.add_special_tokens(names)
    found.post_processor = processors.BertProcessing((names[3], 3), (names[2], 2))
    return found


def masked_lm(folder: Path, kind: str) -> None:
    """Write a masked language model with its tokenizer: bert, roberta, albert or electra."""
    import torch
    import transformers

    marks = "<pad> <unk> <s> </s> <mask>" if kind == "roberta" else "[PAD] [UNK] [CLS] [SEP] [MASK]"
    words = tokenizer(marks)
    family = {"bert": "Bert", "roberta": "Roberta", "albert": "Albert", "electra": "Electra"}[kind]
    more = {"embedding_size": 8} if kind in ("albert", "electra") else {}
    size = words.get_vocab_size()
    config = getattr(transformers, f"{family}Config")(
        **SHAPE, **more, vocab_size=size, pad_token_id=0, initializer_range=0.2
    )
    torch.manual_seed(0)
    head = "ForPreTraining" if kind == "electra" else "ForMaskedLM"
    getattr(transformers, family + head)(config).save_pretrained(folder)
    words.save(str(folder / "tokenizer.json"))


def shape(path: Path, kind: str = "bert") -> None:
    """Write the sizes of a text encoder without its weights."""
    path.write_text(json.dumps({"model_type": kind, **SHAPE}))


def clip(folder: Path) -> None:
    """Write a text tower of CLIP's form."""
    from tests.tiny.clip import save_tower

    save_tower(folder)


def tower_shape(path: Path) -> None:
    """Write the sizes of such a tower without its weights."""
    from tests.tiny.clip import save_shape

    save_shape(path)


def visual_task(folder: Path, name: str) -> None:
    """Write VQA, VCR or NLVR2, and `regions.npy` by the detector of `official.lxmert`."""
    from tests.tiny import vtasks
    from vgtools.datasets.region_files import named_backbone

    pictures = getattr(vtasks, f"save_{name}")(folder)
    if name == "vqa":  # tests, without answers; those of NLVR2 have labels
        questions = [{"question_id": 7 + n, "image_id": 301, "question": "bam"} for n in range(2)]
        official.put_json(folder / "v2_OpenEnded_mscoco_test2015_questions.json",
                          {"questions": questions})  # fmt: skip
        pictures["test2015/COCO_test2015_000000000301.jpg"] = [0, 3]
    if name == "nlvr2":
        (folder / "test1.json").write_text((folder / "dev.json").read_text())
    known = named_backbone("bottom-up-attention")
    labels = {key: [*vtasks.OBJECTS, "image"] for key in pictures} if name == "vcr" else None
    path = folder / "regions.npy"
    vtasks.save_pictures(path, pictures, official.CHANNELS, labels, backbone=known)


def bank(folder: Path) -> None:
    """Write an index of Flickr8k's captions, and the features of its photos."""
    from vgtools.cli import run

    official.flickr8k(folder)
    official.fasttext(folder / "words.vec")
    save_backbone(folder / "network")
    for line in (
        "prepare flickr8k Flickr8k.token.txt --splits . --images images --images-out images.jsonl"
        " -o captions.jsonl",
        "prepare vectors words.vec -o words.npy",
        "extract-image-feats images.jsonl --backbone network -o feats.npy",
        "build-index captions.jsonl --vectors words.npy -o scene.faiss",
    ):
        with contextlib.chdir(folder):
            assert run([*line.split(), "-q"]) == 0, line


def voken_bank(path: Path) -> None:
    """Write an index of Flickr8k's photos that text is vokenized with, and its matcher."""
    from vgtools.cli import run

    folder = path.parent
    bank(folder)
    masked_lm(folder / "encoder", "bert")
    for line in (
        "train-matcher captions.jsonl feats.npy --encoder encoder --epochs 1 -o matcher",
        "build-index feats.npy --matcher matcher -o token.faiss",
    ):
        with contextlib.chdir(folder):
            assert run([*line.split(), "-q"]) == 0, line


# A name that rows of `tests/examples` use, where it is made, and by what.
MADE: dict[str, tuple[str, Callable[[Path], object]]] = {
    **{
        kind: (f"{kind}-tiny", functools.partial(masked_lm, kind=kind))
        for kind in ("bert", "roberta", "albert", "electra")
    },
    "clip": ("clip-tiny", clip),
    "resnet": ("resnet-tiny", save_backbone),
    "shape": ("bert-shape.json", shape),
    "roberta_shape": ("roberta-shape.json", functools.partial(shape, kind="roberta")),
    **{name: (name, functools.partial(visual_task, name=name)) for name in ("vqa", "vcr", "nlvr2")},
    "bank": ("bank", bank),
    "voken_bank": ("voken-bank/token.faiss", voken_bank),
    "tower_shape": ("tower-shape.json", tower_shape),
}
