"""Training that includes the backbone: the retriever's image path from the pixels on (section 2.1).

Where `training.py` reads finished feature maps, this module reads photos: a random crop of each for
a step, the whole picture to evaluate. The first layers of the backbone stay as they are, the others
learn from some epoch on. The finished run holds the tuned network in `backbone/`, which
`vg extract-image-feats` opens for the feature maps of the index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vgtools.images.decoding import decode
from vgtools.images.featurizer import map_positions
from vgtools.images.region_features import whole_picture
from vgtools.images.sources import ImageError, Item
from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.models.backbone import Backbone, save_backbone
from vgtools.models.references import fingerprint, first_line, identity_of, settings_of
from vgtools.systems.visual_awareness.retriever import Retriever, RetrieverBatch
from vgtools.training.session import TrainingRun

BACKBONE = "backbone"  # folder of a run that holds the tuned network
_FROZEN = 8  # stages up to this stride never learn: the stem, layer1 and layer2 of a ResNet
_AREA = (0.08, 1.0)  # share of a photo that a crop covers
_RATIO = (3 / 4, 4 / 3)  # its width over its height


class BackboneSettings(NamedTuple):
    """How the backbone learns."""

    backbone_from: int  # epoch, counted from 0, from which it learns
    crop: int  # pixels per side of the crop that a step sees
    picture: int  # pixels per side of the squashed picture that is evaluated


def learned_names(model: nn.Module) -> list[str]:
    """Return the names of the parameters of a timm network that learn, in its late stages.

    Source: the published code of Engilberge et al. 2018, which keeps the first six blocks of a
        ResNet.
    """
    names = [name for name, _ in model.named_parameters()]
    stages: Sequence[dict[str, Any]] = getattr(model, "feature_info", [])
    early = tuple(f"{stage['module']}." for stage in stages if stage["reduction"] <= _FROZEN)
    last = max((i for i, name in enumerate(names) if name.startswith(early)), default=-1)
    return names[last + 1 :]


class PixelRetriever(nn.Module):
    """A retriever with its backbone: it embeds pixels where `Retriever` embeds feature maps.

    Args:
        retriever: made for the backbone's channels.
        backbone: the network of images; its statistics of norms stay, its weights in
            `learned_names` learn.
        first_epoch: epoch from which they learn.

    Source: Zhang et al. 2019 (Visual awareness), section 2.1.
    Deviation: norms keep the statistics that they were trained with.
    """

    mean: Tensor  # (3, 1, 1), of pixels from 0 to 255
    std: Tensor

    def __init__(self, retriever: Retriever, backbone: Backbone, first_epoch: int) -> None:
        super().__init__()
        self.retriever = retriever
        self.config = retriever.config
        self.backbone: nn.Module = backbone.model
        self.first_epoch = first_epoch
        learned = set(learned_names(self.backbone))
        for name, parameter in self.backbone.named_parameters():
            parameter.requires_grad_(name in learned)
        for key in ("mean", "std"):
            values = 255 * torch.tensor(backbone.preprocessing[key]).view(3, 1, 1)
            # These constants are in the backbone's own files, so checkpoints need not hold them.
            self.register_buffer(key, values, persistent=False)

    def train(self, mode: bool = True) -> PixelRetriever:
        """Set the mode of the retriever; the backbone's norms always keep their statistics."""
        super().train(mode)
        self.backbone.eval()
        return self

    def maps(self, pixels: Tensor) -> Tensor:
        """Return the feature maps of pixels from 0 to 255, (C, 3, S, S) -> (C, P, D)."""
        seen = (pixels.float() - self.mean) / self.std
        out = self.backbone.forward_features(seen)  # type: ignore[operator]
        return map_positions(self.backbone, out)[0]

    def embed_images(self, pixels: Tensor) -> Tensor:
        """Return x of pixels, (C, 3, S, S) -> (C, E) unit vectors."""
        return self.retriever.embed_images(self.maps(pixels))

    def embed_texts(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Return y of texts, as `Retriever.embed_texts`."""
        return self.retriever.embed_texts(words, lengths)

    def forward(self, batch: RetrieverBatch) -> dict[str, Tensor]:
        """Return the loss of a batch whose `feats` are pixels, (C, 3, S, S)."""
        learns = torch.is_grad_enabled() and batch.epoch >= self.first_epoch
        # Until its epoch the backbone runs without gradients, which also saves their memory.
        with torch.set_grad_enabled(learns):
            maps = self.maps(batch.feats)
        found: dict[str, Tensor] = self.retriever(batch._replace(feats=maps))
        return found


class DecodedPhotos:
    """Photos by row, as an array is indexed; they are read and decoded each time, in threads.

    Args:
        items: the photos, row by row.
        view: decoded photo and its row -> (3, S, S) uint8.
    """

    def __init__(self, items: Sequence[Item], view: Callable[[Image.Image, int], Array]) -> None:
        self._items = items
        self._view = view

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, rows: Array | slice) -> Array:
        """Return (n, 3, S, S) uint8.

        Raises:
            DataError: a photo cannot be read or decoded (65).
        """
        wanted: list[int] = np.arange(len(self._items))[rows].tolist()
        with ThreadPoolExecutor() as pool:
            return np.stack(list(pool.map(self._photo, wanted)))

    def _photo(self, row: int) -> Array:
        item = self._items[row]
        try:
            return self._view(decode(item.load()), row)
        except ImageError as error:
            why = f"{error}; replace it, or remove it and its captions"
            raise DataError(why, item.id) from None


class RetrieverPixels:
    """Photos and the backbone that learns from them; a `training.Pictures`.

    Args:
        items: the photos, row by row.
        backbone: the network to start with.
        settings: how it learns.
        regions: positions that its maps need at least.

    Raises:
        DataError: the backbone is not one of timm's, it does not take pictures of these sizes, or
            their maps have too few positions (usage).
    """

    def __init__(
        self, items: Sequence[Item], backbone: Backbone, settings: BackboneSettings, regions: int
    ) -> None:
        from timm.data import create_transform, str_to_pil_interp

        if hasattr(backbone.model, "pooled"):
            why = "is a CLIP or its kin; expected a network of timm to train"
            raise DataError(why, backbone.ref, code=Exit.USAGE)
        for flag, side in (("--crop", settings.crop), ("--picture", settings.picture)):
            _check_side(backbone, flag, side, regions)
        self._items = items
        self._backbone = backbone
        self._settings = settings
        self.width = backbone.width
        seen = whole_picture(backbone.preprocessing, settings.picture)
        squash = create_transform(**seen, is_training=False, use_prefetcher=True)
        self.whole = DecodedPhotos(items, lambda photo, row: np.asarray(squash(photo)))
        self._filter = str_to_pil_interp(backbone.preprocessing["interpolation"])

    def drawn(self, seed: int, epoch: int, first: int) -> DecodedPhotos:
        """Return random crops for a step: a function of the seed, the epoch, its first caption."""

        def view(photo: Image.Image, row: int) -> Array:
            # Threads finish in any order, so each photo has a generator of its own.
            rng = np.random.default_rng([seed, epoch, first, row])
            return random_crop(photo, self._settings.crop, rng, self._filter)

        return DecodedPhotos(self._items, view)

    def network(self, retriever: Retriever) -> PixelRetriever:
        """Return the retriever with the backbone before it."""
        return PixelRetriever(retriever, self._backbone, self._settings.backbone_from)

    def finish(self, run: TrainingRun) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Write the tuned backbone into a run; return its facts, and the retriever's weights."""
        parts: dict[str, dict[str, Tensor]] = {"backbone": {}, "retriever": {}}
        for name, tensor in run.best_weights().items():
            part, rest = name.split(".", 1)
            parts[part][rest] = tensor
        model = self._backbone.model
        model.load_state_dict(parts["backbone"])
        folder = run.path / BACKBONE
        save_backbone(folder, model)
        run.keep(BACKBONE)
        sha256 = identity_of(fingerprint(model), settings_of(folder))
        made = {"ref": str(folder), "fingerprint": sha256}
        return {"backbone": made, "best": run.best_record()}, parts["retriever"]


@torch.inference_mode()
def _check_side(backbone: Backbone, flag: str, side: int, regions: int) -> None:
    """Refuse a size of pictures that the backbone or the pooling cannot use."""
    # A black picture is enough, because only the shape of the result matters.
    black = next(backbone.model.parameters()).new_zeros(1, 3, side, side)
    try:
        out = backbone.model.forward_features(black)
    except (RuntimeError, AssertionError, ValueError) as error:  # The network has a fixed size.
        why = f"{flag} {side}: {backbone.ref} does not take pictures of that size"
        raise DataError(f"{why}: {first_line(error)}", code=Exit.USAGE) from None
    found = map_positions(backbone.model, out)[0].shape[1]
    if found < regions:
        why = f"{flag} {side}: {backbone.ref} gives {found} positions of a map"
        raise DataError(f"{why}, expected --regions {regions} or more", code=Exit.USAGE)


def random_crop(
    photo: Image.Image, side: int, rng: np.random.Generator, resample: Any = None
) -> Array:
    """Return a random part of a photo, squashed and in half of the cases mirrored.

    Args:
        photo: RGB.
        side: S, pixels per side of the result.
        rng: draws the part: 8 to 100 % of the area, 3:4 to 4:3; the largest such one in the
            middle where ten draws do not fit.
        resample: filter of Pillow.

    Returns:
        (3, S, S) uint8.

    Source: torchvision's RandomResizedCrop and RandomHorizontalFlip, as the published code of
        Engilberge et al. 2018 calls them.
    """
    width, height = next(_sizes(photo, rng))
    left = int(rng.integers(photo.width - width + 1))
    top = int(rng.integers(photo.height - height + 1))
    box = (left, top, left + width, top + height)
    seen = np.asarray(photo.resize((side, side), resample, box=box)).transpose(2, 0, 1)
    return seen[:, :, ::-1] if rng.random() < 0.5 else seen


def _sizes(photo: Image.Image, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Yield sizes of parts of a photo: the sizes among ten draws that fit, then the largest
    allowed.
    """
    low, high = map(math.log, _RATIO)
    for _ in range(10):
        area = photo.width * photo.height * rng.uniform(*_AREA)
        ratio = math.exp(rng.uniform(low, high))
        width = round(math.sqrt(area * ratio))
        height = round(math.sqrt(area / ratio))
        if 0 < width <= photo.width and 0 < height <= photo.height:
            yield width, height
    yield (
        max(1, min(photo.width, round(photo.height * _RATIO[1]))),
        max(1, min(photo.height, round(photo.width / _RATIO[0]))),
    )
