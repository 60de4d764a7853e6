"""A teacher without CLIP's weights: a text tower that learns from captions and image features.

The states of a caption's END and the features of its photo, through a network of two layers, meet
in one space. The features, of any backbone, stay as they are.

Axes: B captions, t tokens, C distinct photos of the captions, N photos of the features, D image
feature, E width of the space.

Source: Hsu et al. 2022 (XDBERT), section 2.2; Radford et al. 2021 (CLIP), section 2.3.
Deviation: CLIP's image encoder also learns.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vgtools.analysis.recall import both_ways
from vgtools.io.arrays import Array
from vgtools.io.artifact import Features, open_features
from vgtools.io.errors import DataError, Exit, amount, plain
from vgtools.io.files import dumps
from vgtools.io.inputs import Inputs
from vgtools.io.splits import refuse_held_out
from vgtools.io.streams import read_jsonl
from vgtools.models.devices import to_device
from vgtools.models.dual import MOST_SCALE, PhotoConfig, photo_network, root
from vgtools.models.encoder import Encoder
from vgtools.models.precision import autocast
from vgtools.models.references import fingerprint, identity_of, pick_dtype
from vgtools.models.runs import start_facts
from vgtools.tasks.finetune import make_batches
from vgtools.text.tokens import row_starts, tokenize, tokenizer_fingerprint
from vgtools.training import processes
from vgtools.training.session import Job, Pretraining
from vgtools.training.steps import plan_for, steps_by_length

KIND = "clip"
LOSS = "info_nce"
_FIRST_SCALE = 1 / 0.07  # first scale of the logits
_WINDOW = 50  # steps whose captions are sorted by length together
_AT_ONCE = 512  # captions or photos that are embedded at a time, without gradients


# ---------------------------------------------------------------------------------------- captions


@dataclass(frozen=True)
class ClipCaptions:
    """Captions as token ids, START and END included, and the photo of each."""

    ids: Array  # (T,) int32, ids of all captions
    starts: Array  # (B + 1,) int64
    images: Array  # (B,) int64, rows of the features
    digest: str  # sha256 of the rows
    empty: int  # captions without a token, left out
    cut: int  # captions that are read in part

    def __len__(self) -> int:
        return len(self.images)

    @property
    def lengths(self) -> Array:
        """Return (B,) tokens of each, marks included."""
        return np.diff(self.starts)

    def padded(self, numbers: Array) -> tuple[Array, Array]:
        """Return (b, t) ids and (b,) lengths of some captions; padding is id 0."""
        lengths = self.lengths[numbers]
        place = np.arange(lengths.max())
        real = place < lengths[:, None]
        ids = np.zeros(real.shape, np.int64)
        ids[real] = self.ids[(self.starts[numbers][:, None] + place)[real]]
        return ids, lengths


def read_captions(
    path: str, features: Features, encoder: Encoder, train: bool = False
) -> ClipCaptions:
    """Read rows {"image", "text"}, to learn from (`train`) or to evaluate on.

    Raises:
        DataError: a row is not of this form, its photo has no features, or it is to learn from and
            has a split to evaluate on; or no caption has a token (65).
    """
    row_of = {name: i for i, name in enumerate(features.ids)}
    digest = hashlib.sha256()
    texts = list[str]()
    images = list[int]()
    for line, row in read_jsonl(path, {"image": str, "text": str}):
        if train:
            refuse_held_out(row, path, line)
        if row["image"] not in row_of:
            why = f"the image {row['image']!r:.80} has no features among the {len(row_of)} of"
            why += " --feats; extract them, or leave the caption out"
            raise DataError(why, path, line)
        digest.update(dumps([row["image"], row["text"]]))
        texts.append(row["text"])
        images.append(row_of[row["image"]])
    tokens = tokenize(encoder.tokenizer, texts)
    sizes = np.diff(tokens.starts)
    some = np.flatnonzero(sizes)
    if not len(some):
        raise DataError('holds no caption; expected rows {"image": ID, "text": …}', path)
    kept = np.minimum(sizes[some], encoder.max_tokens)
    marks = len(encoder.prefix) + len(encoder.suffix)
    starts = row_starts(kept + marks)
    ids = np.empty(starts[-1], np.int32)
    for number, size, begin in zip(some.tolist(), kept.tolist(), starts[:-1].tolist(), strict=True):
        row_ids = tokens.row(number)[0][:size]
        ids[begin : begin + size + marks] = [*encoder.prefix, *row_ids, *encoder.suffix]
    cut = int((sizes > encoder.max_tokens).sum())
    empty = len(texts) - len(some)
    return ClipCaptions(ids, starts, np.array(images)[some], digest.hexdigest(), empty, cut)


# ------------------------------------------------------------------------------------------- model


class ClipBatch(NamedTuple):
    """Captions of a step and their photos, each photo once."""

    ids: Tensor  # (B, t) int64
    lengths: Tensor  # (B,) int64, marks included
    feats: Tensor  # (C, D) float32
    own: Tensor  # (B,) int64, column of each caption's photo


class Contrastive(nn.Module):
    """A text tower and a network over image features, with one space.

    Args:
        tower: transformers' CLIPTextModelWithProjection.
        config: settings of the network.
        dtype: type of matrix products (autocast); weights stay float32.

    Source: Radford et al. 2021 (CLIP), section 2.3 and figure 3.
    """

    def __init__(self, tower: Any, config: PhotoConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.tower = tower
        self.photo = photo_network(config, int(tower.config.projection_dim))
        self.dropout = nn.Dropout(config.dropout)
        self.log_scale = nn.Parameter(torch.tensor(math.log(_FIRST_SCALE)))

    def embed_texts(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return (B, E) unit vectors, float32, of captions (B, t) with (B,) lengths."""
        with autocast(ids.device, self.dtype):
            hidden = self.tower.text_model(input_ids=ids).last_hidden_state
            last = hidden[torch.arange(len(ids), device=ids.device), lengths - 1]  # END
            return F.normalize(self.tower.text_projection(self.dropout(last)).float(), dim=1)

    def embed_photos(self, feats: Tensor) -> Tensor:
        """Return (C, E) unit vectors, float32, of features (C, D)."""
        with autocast(feats.device, self.dtype):
            return F.normalize(self.photo(root(feats)).float(), dim=1)

    def forward(self, batch: ClipBatch) -> dict[str, Tensor]:
        """Return the loss under its name."""
        texts = self.embed_texts(batch.ids, batch.lengths)
        photos = self.embed_photos(batch.feats)
        # As in CLIP: a larger scale makes the training unstable.
        scale = self.log_scale.clamp(max=math.log(MOST_SCALE)).exp()
        return {LOSS: info_nce(texts, photos, batch.own, scale)}


def info_nce(texts: Tensor, photos: Tensor, own: Tensor, scale: Tensor | float) -> Tensor:
    """Return how badly captions find their photos and photos their captions, on average.

    A photo's target is spread evenly over all of its captions.

    Args:
        texts: (B, E) unit vectors.
        photos: (C, E) unit vectors of distinct photos, each of which has a caption.
        own: (B,) column of each caption's photo.
        scale: factor of the cosines.

    Returns:
        Scalar: the mean of two cross entropies, over captions and over photos.

    Source: Radford et al. 2021 (CLIP), section 2.3 and figure 3.
    Deviation: there each photo has one caption.
    """
    logits = scale * texts @ photos.T  # (B, C)
    to_photo = F.cross_entropy(logits, own)
    # These are the log probabilities of each caption for its photo.
    mine = logits.log_softmax(0).gather(1, own[:, None])[:, 0]
    # A photo's target is spread over its captions in the batch, one over their number for each.
    share = 1 / own.bincount(minlength=len(photos))[own].to(mine.dtype)
    return (to_photo - (share * mine).sum() / len(photos)) / 2


# ------------------------------------------------------------------------------------------ recall


@torch.no_grad()
def evaluate(
    model: Contrastive, captions: ClipCaptions, features: Array, device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """Measure how well captions find their photos, and photos their captions, among all held out.

    Returns:
        As `vgtools.analysis.recall.both_ways`: R@1, 5 and 10 in percent and the median rank with
        95 % intervals, and chance.
    """
    was_training = model.training
    model.eval()
    bank, own = np.unique(captions.images, return_inverse=True)
    parts = np.array_split(bank, -(-len(bank) // _AT_ONCE))
    photos = torch.cat([model.embed_photos(_rows(features, part, device)) for part in parts])
    texts = photos.new_empty(len(captions), photos.shape[1])
    # Captions of similar length share a batch, which needs little padding.
    order = np.argsort(captions.lengths, kind="stable")
    for part in np.array_split(order, -(-len(order) // _AT_ONCE)):
        ids, lengths = (torch.from_numpy(x).to(device) for x in captions.padded(part))
        texts[torch.from_numpy(part).to(device)] = model.embed_texts(ids, lengths)
    model.train(was_training)

    def blocks() -> Iterator[tuple[Array, Array]]:
        for rows in texts.split(_AT_ONCE):
            cosines = (rows @ photos.T).cpu().numpy()
            yield cosines, cosines

    measured = both_ways(blocks(), own.reshape(-1))
    del measured["without"]  # This is always 0, because each caption has a token.
    return {"photos": len(bank), **measured}


def _rows(features: Array, rows: Array, device: torch.device | str) -> Tensor:
    return to_device(np.asarray(features[rows], np.float32), device)


# ---------------------------------------------------------------------------------------- training


@dataclass
class ClipPretraining(Pretraining):
    """One pretraining of a text tower on captions and image features.

    `inputs` is one file of rows {"image", "text"}, and `valid` one or none, of other photos.

    Raises:
        DataError: several processes (usage); fewer than two photos, or photos both to learn from
            and to evaluate on (65), or as `open_features` and `read_captions`.

    Source: Hsu et al. 2022 (XDBERT), section 2.2.
    """

    kind = KIND

    tower: Encoder  # tower to start from
    feats: str  # file of the features of all photos

    def __post_init__(self) -> None:
        if processes.world() > 1:
            why = "pretrain clip is single-process: the photos of a step are one another's"
            why += " negatives, which several processes would not share; start it without torchrun"
            raise DataError(why, code=Exit.USAGE)
        self._start = identity_of(fingerprint(self.tower.model), self.tower.settings)
        # The files are hashed before they are read: a file that changes meanwhile then does not
        # match its hash.
        self.files = Inputs([*self.inputs, self.feats, *self.valid])
        self._features = open_features(self.feats)
        self._captions = self._read(self.inputs[0], train=True)
        self._held = self._read(self.valid[0], train=False) if self.valid else None
        photos = set(self._captions.images.tolist())
        if len(photos) < 2:
            why = "has captions of one photo; at least 2 are needed, to tell them apart"
            raise DataError(why, self.inputs[0])
        if self._held is not None and (both := photos.intersection(self._held.images.tolist())):
            why = f"{amount(len(both), 'photo')} of it are also to learn from, so that recall would"
            raise DataError(f"{why} measure memory; split by photo", self.valid[0])
        width = self._features.array.shape[1]
        self._model = Contrastive(self.tower.model, PhotoConfig(width), pick_dtype(self.dtype))

    def _read(self, path: str, train: bool) -> ClipCaptions:
        captions = read_captions(path, self._features, self.tower, train)
        if captions.empty or captions.cut:
            left_out = f"{amount(captions.empty, 'caption')} without a token left out"
            cut = f"{captions.cut} cut to {self.tower.max_tokens} tokens"
            self.session.note(f"{plain(path)}: {left_out}, {cut}")
        return captions

    def config(self) -> dict[str, Any]:
        """Return the settings that decide the weights, in addition to the flags."""
        return {
            "start": self._start,
            "tokenizer": tokenizer_fingerprint(self.tower.tokenizer),
            "weights": dict(self.weights),
            "clip": dataclasses.asdict(self._model.config),
            "features": self._features.manifest["files"],
            "inputs": [self._captions.digest],
            "valid": [self._held.digest] if self._held else [],
        }

    def job(self, config: Mapping[str, Any], device: torch.device) -> Job:
        """Return the model with its batches."""
        model = self._model.to(device)
        captions = self._captions
        plan = plan_for(len(captions), config)

        def build(numbers: Array) -> ClipBatch:
            return collate(captions, self._features.array, numbers, device)

        def judge(batch_size: int) -> dict[str, Any]:
            assert self._held is not None
            return evaluate(model, self._held, self._features.array, device)

        def finish() -> tuple[dict[str, Any], Encoder, dict[str, Tensor]]:
            info = {
                "clip": dataclasses.asdict(model.config),
                "backbone": self._features.made_by,
                "captions": len(captions),
                "photos": len(np.unique(captions.images)),
                "left_out": {"empty": captions.empty, "cut": captions.cut},
                **start_facts(self.tower),
            }
            sha256 = fingerprint(model.tower)
            state = model.state_dict()
            beside = {k: t for k, t in state.items() if not k.startswith("tower.")}
            return info, dataclasses.replace(self.tower, fingerprint=sha256), beside

        def cut(epoch: int) -> list[Array]:
            size = config["batch_size"]
            return steps_by_length(captions.lengths, size, config["seed"], epoch, _WINDOW)

        batches = make_batches(cut, build, plan.steps)
        # A batch cannot be cut, because its photos are one another's negatives.
        measure = judge if self._held is not None else None
        return Job(model, batches, plan, lambda batch: (batch,), measure, finish)


def collate(
    captions: ClipCaptions, features: Array, numbers: Array, device: torch.device | str = "cpu"
) -> ClipBatch:
    """Build the batch of some captions."""
    ids, lengths = captions.padded(numbers)
    photos, own = np.unique(captions.images[numbers], return_inverse=True)
    found = [torch.from_numpy(x).to(device) for x in (ids, lengths, own.reshape(-1))]
    return ClipBatch(found[0], found[1], _rows(features, photos, device), found[2])
