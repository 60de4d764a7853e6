"""Visual awareness (Zhang et al. 2019), section 2.1, figure 2: the sentence-image retriever.

    y = SRU(words)                                  last state of the last layer
    x = W . Weldon(conv1x1(feature map)) + b        both divided by their length

A sentence and an image are as near as the inner product of y and x. The network is from Engilberge
et al. 2018 ("Finding beans in burgers"), which the paper trains.

Axes: T words of the longest text, B texts, W width of a word vector, C images, P positions of a
feature map, D its channels, E width of the shared space.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from vgtools.models.products import affine
from vgtools.models.runs import Run, load_network
from vgtools.systems.visual_awareness.recipe import RetrieverConfig

KIND = "retriever"  # kind of the run


class Retriever(nn.Module):
    """Two paths into one space of unit vectors: sentences and images.

    Source: Zhang et al. 2019 (Visual awareness), section 2.1.
    Deviation: the image path starts at the backbone's last feature map; `pixels.PixelRetriever`
        puts the backbone before it, to learn with it.
    """

    def __init__(self, config: RetrieverConfig) -> None:
        super().__init__()
        self.config = config
        self.text = (SruPath if config.text == "sru" else StatePath)(config)
        self.image = ImagePath(config.image_width, config.dim, config.regions, config.dropout)
        if config.loss == "info_nce":
            # The scale is learned as its logarithm, so that it stays positive.
            self.log_scale = nn.Parameter(torch.tensor(math.log(14.0)))

    def embed_images(self, feats: Tensor) -> Tensor:
        """Return x of feature maps, (C, P, D) -> (C, E) unit vectors, float32."""
        return F.normalize(self.image(feats.float()), dim=1)

    def embed_texts(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Return y of texts.

        Args:
            words: (T, B, W) word vectors, any value after a text's end; with `config.text`
                "encoder" (1, B, W), the mean state of each text.
            lengths: (B,) int64 words of each text, at least 1.

        Returns:
            (B, E) unit vectors, float32.
        """
        return F.normalize(self.text(words.float(), lengths), dim=1)

    def forward(self, batch: RetrieverBatch) -> dict[str, Tensor]:
        """Return the loss of a batch under its name."""
        config = self.config
        # Without gradients the optimiser leaves the text path alone.
        with torch.set_grad_enabled(torch.is_grad_enabled() and batch.epoch >= config.text_from):
            texts = self.embed_texts(batch.words, batch.lengths)
        scores = self.embed_images(batch.feats) @ texts.T
        photos = torch.arange(len(scores), device=scores.device)
        wrong = photos[:, None] != batch.own
        if config.loss == "triplet":
            hardest = batch.epoch >= config.warm_epochs
            loss = triplet_loss(scores, batch.own, wrong, config.margin, hardest=hardest)
        else:
            # As in CLIP, a scale above 100 is cut off: training becomes unstable with it.
            scale = self.log_scale.clamp(max=math.log(100.0)).exp()
            loss = info_nce(scores, batch.own, wrong, scale)
        return {config.loss: loss}


class RetrieverBatch(NamedTuple):
    """Data of a step: B captions, their C distinct images, each of them once."""

    words: Tensor  # (T, B, W)
    lengths: Tensor  # (B,) int64
    feats: Tensor  # (C, P, D)
    own: Tensor  # (B,) int64 image of each caption
    epoch: int  # counted from 0


def load_retriever(path: str | Path, *, device: str = "cpu") -> tuple[Retriever, Run]:
    """Open a run of `vg train-matcher visual-awareness`: the network in eval mode, and the run.

    The words of its text path are opened by `vgtools.systems.visual_awareness.words.open_reader`.

    Raises:
        DataError: no finished run (66), of another kind or damaged (65), or from a later version
            (78).
    """
    return load_network(path, KIND, RetrieverConfig, Retriever, device)


# ------------------------------------------------------------------------------------------- paths


class ImagePath(nn.Module):
    """1x1 convolution of a feature map, Weldon pooling, dropout, projection (figure 2).

    Attributes:
        conv: the 1x1 convolution, as a linear map of each position, D -> E.
        fc: the projection, E -> E. Concept activation maps weigh the channels by it.
    """

    def __init__(self, width: int, dim: int, regions: int, dropout: float) -> None:
        super().__init__()
        self.conv = nn.Linear(width, dim)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(dim, dim)
        self.regions = regions

    def project(self, feats: Tensor) -> Tensor:
        """Return the map after the convolution, (C, P, D) -> (C, P, E)."""
        projected: Tensor = self.conv(feats)
        return projected

    def forward(self, feats: Tensor) -> Tensor:
        """Return (C, P, D) feature maps as (C, E) points of the shared space, of any length."""
        projected: Tensor = self.fc(self.dropout(weldon(self.project(feats), self.regions)))
        return projected


class SruPath(nn.Module):
    """Word vectors to the last state of an SRU."""

    def __init__(self, config: RetrieverConfig) -> None:
        super().__init__()
        self.sru = SRU(config.text_width, config.dim, config.layers, config.text_dropout)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Return (T, B, W) word vectors as (B, E): vectors after a text's end are not looked at."""
        packed = pack_padded_sequence(words, lengths.cpu(), enforce_sorted=False)
        states: Tensor = self.sru(packed.data, packed.batch_sizes.tolist())
        starts = F.pad(packed.batch_sizes.cumsum(0), (1, 0))[:-1].to(lengths.device)
        assert packed.unsorted_indices is not None  # enforce_sorted=False returns them.
        # Packed rows are sorted by step and, within a step, by falling length: the last state of a
        # text is in its last step, at the text's place in that order.
        return states[starts[lengths - 1] + packed.unsorted_indices]


class StatePath(nn.Module):
    """The mean state of a frozen encoder to the shared space.

    Deviation: not in Zhang et al. 2019, whose retriever reads word vectors.
    """

    def __init__(self, config: RetrieverConfig) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(config.text_width, config.dim),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.dim, config.dim),
        )

    def forward(self, means: Tensor, lengths: Tensor) -> Tensor:
        """Return (1, B, W) means as (B, E)."""
        projected: Tensor = self.mlp(means[0])
        return projected


def weldon(maps: Tensor, regions: int) -> Tensor:
    """Return, per channel, the mean of the n largest plus the mean of the n smallest activations.

    Args:
        maps: (..., P, E).
        regions: n, at most P.

    Returns:
        (..., E).

    Source: Durand et al. 2016 (WELDON); n = 15 in the published code of the retriever.
    """
    channels = maps.transpose(-1, -2).contiguous()  # topk is faster along the last axis.
    largest = channels.topk(regions, sorted=False).values
    smallest = channels.topk(regions, largest=False, sorted=False).values
    return largest.mean(-1) + smallest.mean(-1)


class SRU(nn.Module):
    """Simple recurrent units in layers; their gates see the input only.

        z = x W;  f = sigmoid(x W_f + b_f);  r = sigmoid(x W_r + b_r)
        c_t = f_t c_{t-1} + (1 - f_t) z_t
        h_t = x' + (tanh(c_t) - x') r_t,    x' = x, or x W_x where the widths differ

    Every product of a layer is one matrix product over all words; only c_t is a loop.

    Args:
        width: W.
        dim: E, of every layer.
        layers: how many.
        dropout: in training, one mask for all words of a text: on x before the product (not on
            x'), and on r but in the last layer.

    Source: Lei et al. 2018 (SRU), as the published code of Engilberge et al. 2018 calls it:
        tanh, no rescaling, zero biases.
    """

    def __init__(self, width: int, dim: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dim = dim
        self.dropout = dropout
        widths = [width] + [dim] * (layers - 1)
        self.weights = nn.ParameterList(torch.empty(w, dim * (3 + (w != dim))) for w in widths)
        self.biases = nn.ParameterList(torch.zeros(2 * dim) for _ in widths)
        for weight in self.weights:
            bound = math.sqrt(3 / len(weight))
            nn.init.uniform_(weight, -bound, bound)

    def forward(self, words: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the states of the last layer.

        Args:
            words: (N, W) first words of all texts, then second words, and so on: as
                `pack_padded_sequence` sorts them, the longest text first, without padding.
            sizes: (T,) texts that have a first word, a second word, and so on; they sum to N.

        Returns:
            (N, E).
        """
        texts = torch.cat([torch.arange(size) for size in sizes]).to(words.device)
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            more = weight.shape[1] - 3 * self.dim
            padded = F.pad(bias, (self.dim, more))
            product = affine(self._drop(words, texts), weight, padded)
            # A single split is used, because its gradient is a single concatenation.
            inputs, gates, skip = product.split([self.dim, 2 * self.dim, more], 1)
            forget, reset = gates.sigmoid().split(self.dim, 1)
            states = scan(inputs, forget, sizes)
            skipped = skip if more else words
            seen = reset if i == last else self._drop(reset, texts)
            words = torch.addcmul(skipped, states.tanh() - skipped, seen)
        return words

    def _drop(self, x: Tensor, texts: Tensor) -> Tensor:
        """Mask the same channels of all words of a text."""
        if not self.training or not self.dropout:
            return x
        mask = F.dropout(x.new_ones(int(texts.max()) + 1, x.shape[1]), self.dropout)
        return x * mask[texts]


def scan(inputs: Tensor, forget: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return c_t = f_t c_{t-1} + (1 - f_t) z_t of all words, with c_{-1} = 0.

    Args:
        inputs: (N, E), z, packed as `SRU.forward` describes.
        forget: (N, E), f.
        sizes: (T,) texts at each step.

    Returns:
        (N, E).
    """
    states: Tensor = _Scan.apply(inputs, forget, list(sizes))
    return states


class _Scan(torch.autograd.Function):
    """The recurrence: one operation per step in either direction, where autograd would take six."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, forget: Tensor, sizes: list[int]) -> Tensor:
        states = torch.empty_like(inputs)
        before = torch.zeros_like(inputs[: sizes[0]])
        for z, f, out in _steps(sizes, inputs, forget, states):
            before = torch.lerp(z, before[: len(z)], f, out=out)
        ctx.save_for_backward(inputs, forget, states)
        ctx.sizes = sizes
        return states

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, None]:
        inputs, forget, states = ctx.saved_tensors
        gradient = outer[0].clone()
        steps = list(_steps(ctx.sizes, gradient, forget))
        # Backwards in time, each step passes f times its gradient to the step before; only the
        # first `len(after)` texts of that step have a next word.
        for (before, _), (after, f) in zip(steps[-2::-1], steps[:0:-1], strict=True):
            before[: len(after)].addcmul_(f, after)
        difference = inputs.neg()  # c_{t-1} - z_t
        later = difference.split(ctx.sizes)[1:]
        for part, state in zip(later, states.split(ctx.sizes), strict=False):
            part += state[: len(part)]
        return gradient * (1 - forget), gradient * difference, None


def _steps(sizes: Sequence[int], *packed: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Return the rows of each step of packed tensors, as views."""
    return zip(*(tensor.split(sizes) for tensor in packed), strict=True)


# ------------------------------------------------------------------------------------------ losses


def triplet_loss(
    scores: Tensor, own: Tensor, wrong: Tensor, margin: float = 0.2, *, hardest: bool = True
) -> Tensor:
    """Return by how much own pairs fail to beat the hardest wrong pairs of the batch, both ways.

    For each caption, these are the hardest wrong caption of its image and its hardest wrong image.
    A photo's other captions are not wrong. Without a wrong pair there is no loss.

    Args:
        scores: (C, B) scores of images and captions.
        own: (B,) int64 image of each caption.
        wrong: (C, B) bool, the caption is not one of the image.
        margin: alpha.
        hardest: False takes the mean over all wrong pairs instead.

    Returns:
        Scalar >= 0, summed over captions and both directions.

    Source: Zhang et al. 2019 (Visual awareness), section 2.1, eq 1. The margin, the second
        direction and the sum are from the published code of Engilberge et al. 2018.
    """
    true = scores[own, torch.arange(len(own), device=own.device)]
    captions = (scores[own], wrong[own])  # (B, B): row i is the image of caption i
    images = (scores.T, wrong.T)  # (B, C)
    total = scores.new_zeros(())
    for others, negative in (captions, images):
        if hardest:
            # A caption without a wrong pair has -inf here, and a loss of 0.
            worst = others.masked_fill(~negative, -torch.inf).amax(1)
            total = total + F.relu(margin - true + worst).sum()
        else:
            excess = F.relu(margin - true[:, None] + others) * negative
            total = total + (excess.sum(1) / negative.sum(1).clamp(min=1)).sum()
    return total


def info_nce(scores: Tensor, own: Tensor, wrong: Tensor, scale: Tensor) -> Tensor:
    """Return the cross entropy of choosing a caption's image, and its image's caption.

    Args:
        scores: (C, B) scores of images and captions.
        own: (B,) int64 image of each caption.
        wrong: (C, B) bool, the caption is not one of the image; others of the image do not count.
        scale: scalar, factor of the scores.

    Returns:
        Scalar, mean over captions and both directions.

    Deviation: not in Zhang et al. 2019, which takes `triplet_loss`.
    """
    logits = scale * scores
    rows = torch.arange(len(own), device=own.device)
    true = logits[own, rows]
    rivals = ~wrong[own]  # the photo's other captions, and the caption itself
    rivals[rows, rows] = False
    captions = logits[own].masked_fill(rivals, -torch.inf)
    # Column b of the logits has all images for caption b, row b of `captions` all captions for its
    # image; the true pair is in both.
    entropy = captions.logsumexp(1) + logits.logsumexp(0) - 2 * true
    return entropy.mean() / 2
