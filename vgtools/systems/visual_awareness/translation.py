"""Translation with retrieved images: its learner, and the translator of streams of sentences.

Axes: B sentences of a batch, K images of a sentence.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vgtools.io.arrays import Array
from vgtools.io.artifact import Features, open_features
from vgtools.io.errors import DataError, Exit
from vgtools.io.streams import Window
from vgtools.models.encoder import Encoder, load_seq2seq, max_positions
from vgtools.models.references import check_same, fingerprint
from vgtools.models.seq2seq import Decoding, translate
from vgtools.systems.visual_awareness.fusion import Fusion, fusion_of, open_fusion
from vgtools.systems.visual_awareness.tasks import FusedLearner
from vgtools.tasks.sequences import InputsWithRows
from vgtools.tasks.translation import TranslationLearner, Translator
from vgtools.text.retrieved import StreamedImages, gather
from vgtools.text.subwords import encode_all

# ---------------------------------------------------------------------------------------- learning


class FusedTranslator(Translator):
    """An encoder-decoder whose decoder reads states that are fused with images.

    Args:
        encoder: the network with its tokenizer.
        kind: kind of the task.
        fusion: fusion of states and images.
        dtype: type of matrix products (autocast); weights stay float32.

    Source: Zhang et al. 2019, sections 2.5 and 3.1.
    """

    def __init__(
        self, encoder: Encoder, kind: str, fusion: Fusion, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(encoder, kind, dtype)
        self.fusion = fusion
        fusion.attach(encoder.model)

    def outputs(self, batch: Any) -> Tensor:
        """Return logits, as `Translator`, of a batch with images."""
        with self.fusion.show(batch.slots, batch.slot_mask):
            return super().outputs(batch)


class FusedTranslationLearner(FusedLearner, TranslationLearner):
    """Learner of translation with retrieved images of the sentences.

    Source: Zhang et al. 2019, section 3.1.
    """

    def new(self, seed: int) -> tuple[FusedTranslator, Encoder]:
        """Return the model with its fusion, and its tokenizer."""
        encoder = self.start.open(seed)
        ref = None if self.start.shape else self.ref
        fusion = self.fusing.fusion_for(encoder.model, self.images, ref)
        return FusedTranslator(encoder, self.task.kind, fusion, self.dtype), encoder

    def shown(
        self, tuner: FusedTranslator, inputs: InputsWithRows, units: Array
    ) -> AbstractContextManager[Any]:
        """Return a context in which units are decoded in view of their images."""
        return tuner.fusion.show(*self.images.gather(inputs.of(units), self.device))


# ----------------------------------------------------------------------------------------- streams


@dataclass(frozen=True)
class TranslationModel:
    """A translation model with its tokenizer, and the fusion in it, if it has one."""

    encoder: Encoder
    fusion: Fusion | None
    features: Features | None = None  # features of the images that the fusion looks at
    feats_path: str = ""

    def config(self) -> dict[str, Any]:
        """Return the settings that decide the translations, in addition to the search."""
        config: dict[str, Any] = {"model": self.encoder.identity}
        if self.fusion is not None and self.features is not None:
            config["fusion"] = fingerprint(self.fusion)
            config["features"] = self.features.manifest["files"]
        return config


def open_model(ref: str, feats: str | None, device: torch.device) -> TranslationModel:
    """Open a translation model for a device.

    Args:
        ref: hub name, directory, or model of a run of `vg finetune translation`.
        feats: features of images; None for a model that looks at none.
        device: where it translates.

    Raises:
        DataError: as `load_seq2seq` and `open_fusion`; the model looks at images and `feats` is
            missing, or the reverse (usage), or they are of another backbone (65).
    """
    looks = fusion_of(ref) is not None
    if looks != (feats is not None):
        why = "looks at images: expected --feats X.npy" if looks else "looks at no images"
        raise DataError(why if looks else f"{why}; leave out --feats", ref, code=Exit.USAGE)
    encoder = load_seq2seq(ref)
    net = encoder.model.eval().requires_grad_(False).to(device)
    if feats is None:
        return TranslationModel(encoder, None)
    features = open_features(feats)
    fusion, backbone = open_fusion(ref)
    check_same("backbone", features.backbone, backbone, feats)
    fusion.eval().requires_grad_(False).to(device).attach(net)
    return TranslationModel(encoder, fusion, features, feats)


@dataclass
class StreamTranslator:
    """Translates the windows of one stream.

    Args:
        model: the model that translates.
        path: path of the stream.
        how: the search.
        batch_size: sentences per batch; affects rounding only.
        dtype: type of matrix products.
        index: index of the images that rows name, see `StreamedImages`.

    Source: Zhang et al. 2019, section 3.1; Vaswani et al. 2017, section 6.1 (the search).
    """

    model: TranslationModel
    path: str
    how: Decoding
    batch_size: int
    dtype: torch.dtype = torch.float32
    index: str | None = None
    _cut: int = field(init=False, default=0)
    _images: StreamedImages | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.model.features is not None:
            files = (self.model.feats_path, self.index)
            self._images = StreamedImages(self.path, self.model.features, *files)

    def config(self) -> dict[str, Any]:
        """Return the settings that decide the translations, in addition to the search."""
        images = {} if self._images is None else {"images": self._images.fingerprint}
        return {**self.model.config(), **images}

    def __call__(self, window: Window) -> list[str]:
        """Return the translation of each line, none of which has a line end in it.

        The translation of an empty line is empty.

        Raises:
            DataError: a row has no text, or none of the images that the model looks at (65).
        """
        rows = window.rows()
        images = None if self._images is None else self._images.rows(rows, window.first)
        tokenizer = self.model.encoder.tokenizer
        most = max_positions(self.model.encoder.model.config)
        sources, cut = encode_all(tokenizer, [row["text"] for row in rows], most)
        self._cut += cut
        found = translate(
            self.model.encoder.model,
            # Special tokens alone would still be translated to something; an empty line has to stay
            # empty.
            [s if row["text"].strip() else s[:0] for s, row in zip(sources, rows, strict=True)],
            self.how,
            self.batch_size,
            shown=lambda numbers: self._shown(None if images is None else images[numbers]),
            dtype=self.dtype,
        )
        return [text.replace("\n", " ") for text in tokenizer.decode_batch(found)]

    def take_cut(self) -> int:
        """Return how many sentences were longer than the model reads since this was asked last."""
        count = self._cut
        self._cut = 0
        return count

    def _shown(self, images: Array | None) -> AbstractContextManager[Any]:
        """Return a context in which the model sees the (B, K) images of a batch."""
        fusion = self.model.fusion
        if fusion is None or self._images is None or images is None:
            return nullcontext()
        device = fusion.image.weight.device
        shown = gather(self._images.array, images)
        features, mask = (torch.from_numpy(array).to(device) for array in shown)
        return fusion.show(features, mask)
