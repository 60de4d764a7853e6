"""`builtin:emoji`: a trained matcher and a bank of emoji, without a training and without a hub.

Its matcher: Tan & Bansal 2020, section 3.2.

`emoji.safetensors` holds both, packed by `make -C examples/vokenization builtin`: the matcher's
matrices as 8-bit integers with a factor per row, and the embeddings of the pictures in half
precision. Its text encoder is `builtin:minilm`, which comes with a package. The first use unpacks
all of it into the user's cache, as a run of `vg train-matcher` and an index of `vg build-index`
like any other. The pictures are OpenMoji's, CC BY-SA 4.0; so are the file and its vokens' pictures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vgtools.io import own
from vgtools.io.files import write_manifest
from vgtools.io.remote import cached
from vgtools.io.trust import file_hash
from vgtools.retrieval.build import make_index, serialize
from vgtools.retrieval.index import FLAT, METRIC, open_index

# A bank that is unpacked already needs no torch.
if TYPE_CHECKING:
    from torch import Tensor

NAME = "builtin:emoji"
LICENCE = "CC BY-SA 4.0; pictures of OpenMoji, https://openmoji.org"
_FILE = Path(__file__).with_name("emoji.safetensors")
_ENCODER = "builtin:minilm"
_FACTOR = ".factor"  # of the rows of a matrix
_IMAGES = "images"
_KEPT = ("config", "matcher", "backbone", "best", "encoder")  # entries of run.json


def bank() -> Path:
    """Return the index of the emoji, next to the run of its matcher; unpacked at the first use.

    Raises:
        DataError: the package of the text encoder is missing (69), or has another version (65).
    """
    return cached(f"{NAME} {file_hash(_FILE)} {file_hash(__file__)}", _unpack) / "emoji.faiss"


def run() -> Path:
    """Return the run of its matcher; as `bank` otherwise."""
    return bank().with_name("matcher")


def pack(matcher: str, index: str) -> bytes:
    """Return the file of a run and of its index."""
    import torch
    from safetensors.torch import save

    from vgtools.models.runs import open_run

    opened = open_run(matcher, "matcher")
    found = open_index(index)
    tensors: dict[str, Tensor] = {}
    for name, weight in opened.weights.items():
        if weight.ndim < 2:
            tensors[name] = weight
            continue
        factor = weight.abs().amax(1, keepdim=True) / 127
        tensors[name] = (weight / factor).round().to(torch.int8)
        tensors[name + _FACTOR] = factor
    images = found.vectors(np.arange(found.count))
    tensors[_IMAGES] = torch.as_tensor(images).to(torch.float16)
    facts = {key: opened.info[key] for key in _KEPT if key in opened.info}
    texts = {"run": json.dumps(facts), "ids": "\n".join(found.ids), "licence": LICENCE}
    packed: bytes = save(tensors, texts)
    return packed


def _unpack(folder: Path) -> None:
    """Write the run and the index into a folder."""
    from safetensors import safe_open

    from vgtools.models.encoder import load_encoder
    from vgtools.models.references import check_same, read_safetensors
    from vgtools.models.runs import open_run, save_run

    tensors = read_safetensors(_FILE)
    with safe_open(_FILE, "pt") as file:
        texts = file.metadata()
    facts = json.loads(texts["run"])
    encoder = load_encoder(_ENCODER)
    trained = facts.pop("encoder")
    check_same("encoder", trained, {"ref": _ENCODER, "fingerprint": encoder.fingerprint}, _FILE)
    images = tensors.pop(_IMAGES).float()
    save_run(folder / "matcher", "matcher", _matrices(tensors), facts, encoder)
    made = open_run(folder / "matcher", "matcher")
    place = folder / "emoji.faiss"
    emb = (images / images.norm(dim=1, keepdim=True)).numpy()
    own.atomic_write(place, bytes(serialize(make_index(emb))))
    own.atomic_write(place.with_suffix(".ids"), (texts["ids"] + "\n").encode())
    write_manifest(
        place,
        [place, place.with_suffix(".ids")],
        kind="index",
        config={"command": "build-index", "matcher": made.fingerprint},
        count=len(emb),
        dim=emb.shape[1],
        metric=METRIC,
        factory=FLAT,
        recall_at_1=None,
        matcher={"run": "matcher", "fingerprint": made.fingerprint},
        backbone=facts.get("backbone"),
        images=NAME,
        licenses={texts["licence"]: len(emb)},
    )


def _matrices(packed: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return weights in float32."""
    return {
        name: weight.float() * packed.get(name + _FACTOR, 1)
        for name, weight in packed.items()
        if not name.endswith(_FACTOR)
    }
