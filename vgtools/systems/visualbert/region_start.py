"""A start for the regions of a VisualBERT before its pretraining: near the words they show.

VisualBERT draws the projection of its regions at random, and finds out in 10 epochs of COCO which
words they are. Where there is less data and time, `align` gives it a start: the projection alone
learns to bring a region near the input embeddings of the words of its captions. Which box shows
which word is not given: a word of a photo chooses among all its regions, and the regions that it
finds there have to be nearer than those in photos whose captions do not have it.

Small runs have a second obstacle. The published code starts the positions of regions as copies of
the text's, and all regions have position 0, which a BERT knows as the position of [CLS]; its
embedding can be twice as long as a word's. Every region then looks like [CLS], to which idle heads
attend. `align` gives regions the mean of the other positions.

Axes: I images of a step, W words, R regions of an image, D region feature, H hidden.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vgtools.images.regions import Regions
from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.systems.visualbert.captions import VisualBertCaptions, regions_of
from vgtools.systems.visualbert.model import VisualBert
from vgtools.training import processes

STEPS = 150  # steps of Adam
IMAGES = 256  # images per step
RATE = 1e-3  # first learning rate, which falls to 0

SHARPNESS = 10.0
TEMPERATURE = 0.1

_SAMPLE = 1024  # images whose features give the mean of all features
_SEED = 3  # the first of the generator's seeds; batches use 0 to 2


def word_weights(captions: VisualBertCaptions, vocabulary: int) -> Array:
    """Return log(N / images whose captions have the word), (V,) float32.

    It is 0 for a word that all images have and for a word that none has.
    """
    total = len(captions.images)
    counts = np.zeros(vocabulary, np.int64)
    for image in range(total):
        counts[words_of(captions, image)] += 1
    return np.log(total / np.where(counts, counts, total)).astype(np.float32)


def words_of(captions: VisualBertCaptions, image: int) -> Array:
    """Return the different tokens of an image's captions, sorted."""
    numbers = captions.of_image(image).tolist()
    return np.unique(np.concatenate([captions.of(number) for number in numbers]))


def alignment_loss(
    words: Tensor, regions: Tensor, mask: Tensor, has: Tensor, weights: Tensor
) -> Tensor:
    """Return how far words are from finding themselves in their own images.

    A word looks at the regions r of an image i by the cosines c_r and finds s_i = Σ_r
    softmax_r(SHARPNESS c_r) c_r there. Its loss is -log of the share of exp(s_i / TEMPERATURE) in
    the sum over image i and all images that do not have the word.

    Args:
        words: (W, H), centred.
        regions: (I, R, H), centred.
        mask: (I, R) bool, False at padding; each image has at least one region.
        has: (W, I) bool, whether an image's captions have the word.
        weights: (W,) weights of the words, not negative.

    Returns:
        Scalar, the weighted mean over the pairs of `has`.

    Source: Gupta et al. 2020 (Contrastive Learning for Weakly Supervised Phrase Grounding), section
        3: attention of words over regions, and noise contrastive estimation.
    Deviation: words are the static input embeddings, which do not learn; negatives are images, not
        captions.
    """
    cosines = torch.einsum("wh,irh->wir", F.normalize(words, dim=-1), F.normalize(regions, dim=-1))
    shares = (SHARPNESS * cosines).masked_fill(~mask, -torch.inf).softmax(-1)
    logits = (shares * cosines).sum(-1) / TEMPERATURE  # (W, I)
    others = logits.masked_fill(has, -torch.inf).logsumexp(1, keepdim=True)
    losses = torch.logaddexp(logits, others) - logits
    pairs = has * weights[:, None]
    return (losses * pairs).sum() / pairs.sum().clamp(min=1e-9)


def align(
    model: VisualBert, captions: VisualBertCaptions, regions: Regions, seed: int
) -> Iterator[float]:
    """Start a VisualBERT's regions near the words that they show; nothing else changes.

    The projected regions get the mean and the spread of the words' embeddings, and the mean of the
    text's positions but the first.

    Args:
        model: a model that was just made; on any device.

    Yields:
        The loss of each of `STEPS` steps. The model is changed when they end.

    Raises:
        DataError: no image has a region, or no word distinguishes images.

    Deviation: the paper and its code draw the projection at random. `vg pretrain` does so unless
        asked for this.
    """
    device = model.project.weight.device
    table = model.lm.get_input_embeddings().weight.detach()  # (V, H)
    weights = torch.from_numpy(word_weights(captions, len(table))).to(device)
    centre = (table * weights[:, None]).sum(0) / weights.sum().clamp(min=1e-9)  # (H,)
    rng = np.random.default_rng([_SEED, seed])
    counts = dict(zip(regions.images, regions.counts.tolist(), strict=True))
    scenes = enumerate(captions.images)
    usable = np.array([i for i, scene in scenes if any(counts[name] for name in scene)], np.int64)
    why = None
    if not len(usable):
        why = f"no image has a region in {regions.path}"
    elif not bool((weights > 0).any()):
        why = "all images have the same words"
    if why is not None:
        why += "; regions cannot start near their words, draw them (--region-start drawn)"
        raise DataError(why, captions.name)
    sample = [captions.images[i] for i in rng.permutation(usable)[:_SAMPLE].tolist()]
    rows = np.concatenate([regions.of(n).features for scene in sample for n in scene])  # (-, D)
    mean = torch.from_numpy(rows.mean(0, dtype=np.float64).astype(np.float32)).to(device)
    # Constant features have a spread of 0, by which nothing can be divided.
    spread = float((rows - rows.mean(0)).std()) or 1.0
    # Drawn on the CPU by numpy, the start is the same on every device.
    drawn = rng.normal(0, 0.02, (table.shape[1], model.config.regions_width)).astype(np.float32)
    matrix = torch.from_numpy(drawn).to(device).requires_grad_(True)  # (H, D)
    optimiser = torch.optim.Adam([matrix], lr=RATE)
    for step, images in zip(range(STEPS), _orders(rng, usable), strict=False):
        names = [captions.images[i] for i in images.tolist()]
        features, mask, _ = regions_of(regions, names, model.config.regions_width)
        bags = [words_of(captions, i) for i in images.tolist()]
        known, place = np.unique(np.concatenate(bags), return_inverse=True)
        has = torch.zeros((len(known), len(images)), dtype=torch.bool)
        has[place, np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])] = True
        tokens = torch.from_numpy(known.astype(np.int64)).to(device)
        words = table[tokens] - centre
        projected = ((features.to(device) - mean) / spread) @ matrix.T  # (I, R, H)
        loss = alignment_loss(words, projected, mask.to(device), has.to(device), weights[tokens])
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1 - step / STEPS)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        yield float(loss.detach())
    with torch.no_grad():
        # The loss uses cosines only, so the length of the projected regions is arbitrary: it is set
        # to the words' mean length, and the standardisation of the features moves into weight and
        # bias.
        matrix = matrix / spread
        projected = (torch.from_numpy(rows).to(device) - mean) @ matrix.T
        words = table[weights > 0] - centre
        ratio = words.square().sum(1).mean() / projected.square().sum(1).mean().clamp(min=1e-9)
        matrix = matrix * ratio.sqrt()
        model.project.weight.copy_(matrix)
        model.project.bias.copy_(centre - matrix @ mean)
        model.position.weight[0] = model.lm.bert.embeddings.position_embeddings.weight[1:].mean(0)
    # Processes may round differently, and all of them have to start from the same weights.
    processes.average([model.project.weight.data, model.project.bias.data])


def _orders(rng: np.random.Generator, images: Array) -> Iterator[Array]:
    """Yield the images of each step, forever; an epoch sees each once."""
    while True:
        yield from np.array_split(rng.permutation(images), -(-len(images) // IMAGES))
