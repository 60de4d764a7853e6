"""Dual encoders: texts and pictures in one space, as CLIP, SigLIP and their kin learn it.

transformers' networks are loaded whole; a run of `vg pretrain clip` has a text tower, and in the
place of an image tower a small network over the features of a backbone.

Axes: B texts or pictures, t tokens, h and w positions of the grid of patches, E width of the space.

Source: Radford et al. 2021 (CLIP); Zhai et al. 2023 (SigLIP).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps, read_json
from vgtools.models.clip import in_tiles, load_teacher, packed_states
from vgtools.models.describe import CLIP
from vgtools.models.encoder import (
    TEXT_SIDES,
    Encoder,
    as_encoder,
    as_trained,
    check_layers,
    max_positions,
)
from vgtools.models.products import quicken
from vgtools.models.references import (
    ENCODER_FILES,
    check_whole,
    fingerprint,
    identity_of,
    load_network,
    load_tokenizer,
    pick_device,
    pick_dtype,
    quiet_transformers,
    resolve,
    safetensors_files,
    settings_of,
    tokenizer_settings,
    unusable,
)
from vgtools.models.runs import as_config, open_run
from vgtools.models.sealed import TOKENIZER_CONFIG, read_run
from vgtools.models.towers import read_clip

if TYPE_CHECKING:
    from PIL import Image
    from tokenizers import Tokenizer

KINDS = tuple(TEXT_SIDES)  # transformers' model types
_CAUSAL = (*CLIP, "metaclip_2")
RUN = "clip"  # kind of the runs of vg pretrain clip
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
MOST_SCALE = 100.0  # factor of cosines; Radford et al. 2021 (CLIP), section 2.5
_INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # by PIL's number


class Logits(NamedTuple):
    """How a model's cosines became its logits in training: `scale` * cosine + `bias`."""

    scale: float
    bias: float | None  # SigLIP has one, for its sigmoid; a softmax compares pictures: None


@dataclass(frozen=True)
class DualEncoder:
    """Texts and pictures in one space, frozen, in eval mode."""

    texts: Encoder  # its model is a `DualTexts`, its width E
    photos: nn.Module | None  # features of `backbone` -> space; None: they are in the space already
    backbone: Mapping[str, Any]  # "ref" and "fingerprint" of the network of the features
    image_width: int  # D of these features
    fingerprint: str  # all networks, with their settings
    logits: Logits


def is_dual(ref: str) -> bool:
    """Return whether a reference names a dual encoder or a hub's model, not another run of vg.

    Raises:
        DataError: a path that leads neither there nor to a finished run (66).
    """
    folder = Path(ref)
    if not folder.exists() and _HUB_NAME.fullmatch(ref):
        return True
    return has_towers(folder) or read_run(ref).get("kind") == RUN


def has_towers(folder: Path) -> bool:
    """Return whether a folder has a model of `KINDS`, or one side of it, by its configuration."""
    file = folder / "config.json"
    return file.is_file() and str(read_json(file).get("model_type")).startswith(KINDS)


def load_dual(ref: str, *, device: str = "cpu", dtype: str = "float32") -> DualEncoder:
    """Load a dual encoder with its tokenizer.

    Args:
        ref: hub name or directory of one of `KINDS`, or a run of `vg pretrain clip`.
        device: as `--device`.
        dtype: as `--dtype`, for the text tower.

    Raises:
        DataError: missing (66, 69); damaged, pickled, of another kind, or one side alone (65).
    """
    chosen = pick_device(device)
    if (Path(ref) / "run.json").is_file():
        return _of_run(ref, chosen, pick_dtype(dtype))
    folder, config, files = _opened(ref)
    model: Any
    if (read := read_clip(config, files)) is not None:
        model, weights = read
        check_whole(weights, [], folder)
        sha256 = identity_of(fingerprint(weights), settings_of(folder))
        scale = weights["logit_scale"]
        quicken(model)
    else:
        model = _towers(folder)
        sha256 = identity_of(fingerprint(model), settings_of(folder))
        scale = model.logit_scale
        model.vision_model = None  # Its pictures were embedded by `vg extract-image-feats`.
    tokenizer = as_trained(load_tokenizer(str(folder)), folder)
    texts = _text_side(DualTexts(model, tokenizer, folder), tokenizer, ref, sha256)
    texts.model.to(chosen, pick_dtype(dtype))
    bias = getattr(model, "logit_bias", None)
    logits = Logits(float(scale.exp()), None if bias is None else float(bias))
    backbone = {"ref": ref, "fingerprint": sha256}
    return DualEncoder(texts, None, backbone, texts.width, sha256, logits)


def _of_run(ref: str, device: torch.device, dtype: torch.dtype) -> DualEncoder:
    run = open_run(ref, RUN)
    file = run.path / "run.json"
    tower = load_teacher(ref, states=True)
    texts = _text_side(DualTexts(tower.model), tower.tokenizer, ref, tower.fingerprint)
    config = as_config(PhotoConfig, run.info.get(RUN), RUN, file)
    photos = PhotoSide(config, tower.width)
    try:
        photos.load_state_dict({name: run.weights[name] for name in photos.state_dict()})
        scale = min(float(run.weights["log_scale"].exp()), MOST_SCALE)
    except (KeyError, RuntimeError) as error:
        raise unusable(f"network of {RUN}.safetensors", error, file) from None
    check_whole(photos, [], run.path / f"{RUN}.safetensors")
    texts.model.to(device, dtype)
    photos.eval().requires_grad_(False).to(device)
    backbone = run.info.get("backbone") or {}
    logits = Logits(scale, None)
    return DualEncoder(texts, photos, backbone, config.width, run.fingerprint, logits)


def load_towers(ref: str) -> tuple[Any, Path]:
    """Load both towers of a dual encoder of transformers, frozen, in eval mode, in float32.

    Returns:
        transformers' model, and its folder.

    Raises:
        DataError: as `load_dual`.
    """
    folder, *_ = _opened(ref)
    return _towers(folder), folder


def _opened(ref: str) -> tuple[Path, dict[str, Any], list[Path]]:
    """Return the folder of a dual encoder, its configuration and its files, checked."""
    if (Path(ref) / "run.json").is_file() and read_run(ref).get("kind") == RUN:
        made_by = (read_run(ref).get("backbone") or {}).get("ref")
        why = "is a run of vg pretrain clip, which reads features of a backbone; take --backbone"
        raise DataError(f"{why} {made_by} here, and the run for vg build-index --matcher", ref)
    folder = resolve(ref, ENCODER_FILES)
    config = read_json(folder / "config.json", "a transformers configuration")
    kind = config.get("model_type")
    if kind not in KINDS:
        one = str(kind).endswith(("_text_model", "_vision_model"))
        what = "one side of a model alone" if one else "no model of texts and pictures"
        why = f'config.json: "model_type": {kind!r:.40} is {what}; expected {", ".join(KINDS)},'
        raise DataError(f"{why} for example openai/clip-vit-base-patch32", folder)
    files = safetensors_files(folder)
    check_layers(config, folder)
    return folder, config, files


def _towers(folder: Path) -> Any:
    """Return both towers of a folder by transformers."""
    from transformers import AutoModel

    model, missing, unlike = load_network(AutoModel, folder, "dual encoder")
    # The space does not need a BERT's pooler, which only some checkpoints have.
    needed = [key for key in missing + unlike if ".pooler." not in key]
    check_whole(model, needed, folder)
    return quicken(model).eval().requires_grad_(False)


# ------------------------------------------------------------------------------------------- texts


class DualTexts(nn.Module):
    """The text side: tokens of texts of one length -> unit vectors in the space.

    Args:
        model: transformers' dual encoder, or CLIPTextModelWithProjection.
        tokenizer: its tokenizer.
        folder: its folder, with the tokenizer's settings, which decide how texts are padded.

    Raises:
        DataError: it was trained with padding, and the tokenizer lacks its token (65).
    """

    def __init__(
        self, model: Any, tokenizer: Tokenizer | None = None, folder: Path | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.config = getattr(model.config, "text_config", model.config)
        self._whole = model.config.model_type in KINDS
        self._size = self._padding = 0
        self._left = False
        if model.config.model_type.startswith("siglip"):
            assert tokenizer is not None
            assert folder is not None
            # SigLIP was trained on texts of full length: padding is read as any other token.
            self._size = max_positions(self.config)
            settings = tokenizer_settings(folder)
            mark = settings.get("pad_token")
            mark = mark.get("content") if isinstance(mark, Mapping) else mark
            padding = self.config.pad_token_id if mark is None else tokenizer.token_to_id(str(mark))
            if padding is None:
                why = f'"pad_token": the tokenizer has no token {mark!r:.40}'
                raise DataError(why, folder / TOKENIZER_CONFIG)
            self._padding = int(padding)
            self._left = settings.get("padding_side", "right") == "left"

    @property
    def padding(self) -> tuple[int, int, bool]:
        """The length that texts are padded to, or 0; with which token; whether on the left."""
        return self._size, self._padding, self._left

    @property
    def device(self) -> torch.device:
        """Where texts are embedded."""
        device: torch.device = self.model.device
        return device

    def get_input_embeddings(self) -> nn.Module:
        """Return the table of tokens."""
        table: nn.Module = self.model.text_model.get_input_embeddings()
        return table

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens' own embeddings (B, t, E) and the texts' (B, E), unit vectors.

        A text has the embedding of transformers' `get_text_features`, a token its own last state
        through the same last norm and projection.

        Args:
            ids: (B, t) int64, special tokens included.
        """
        size = ids.shape[1]
        first = 0
        if self._size > size:
            first = self._size - size if self._left else 0
            ids = F.pad(ids, (first, self._size - size - first), value=self._padding)
        if self._whole:
            out = self.model.get_text_features(input_ids=ids)
            whole = out.pooler_output
        else:
            out = self.model(input_ids=ids)
            whole = out.text_embeds
        project = getattr(self.model, "text_projection", None) or self.model.text_model.head
        tokens = project(out.last_hidden_state[:, first : first + size])
        return F.normalize(tokens.float(), dim=-1), F.normalize(whole.float(), dim=-1)

    @property
    def is_causal(self) -> bool:
        """Whether a token sees only those before it."""
        return self.model.config.model_type in _CAUSAL

    def can_pack(self, ids: Array, ends: Array) -> bool:
        """Return whether `packed` gives the embeddings of `forward`: a CLIP's, of usual texts.

        A text that names the mark of its end is read from there.

        Args:
            ids: (T,) tokens of the texts, one after another, special tokens included.
            ends: (B,) the last token of each.
        """
        if not self.is_causal:
            return False
        mark = self.config.eos_token_id
        # transformers' CLIP takes a 2, which old configurations have, for the highest id.
        highest = mark == 2 and self.model.config.model_type in CLIP
        marks = ids >= ids[ends].min() if highest else ids == mark
        return bool(marks[ends].all()) and int(marks.sum()) == len(ends)

    def packed(
        self,
        ids: Tensor,
        positions: Tensor,
        runs: Sequence[tuple[int, int]],
        shared: int = 0,
        whole: bool = False,
    ) -> Tensor:
        """Return the unit vectors of texts without padding, one per token, (T, E).

        Args:
            ids: (T,), as the next two for `packed_states`.
            positions: (T,).
            runs: (count, length) of texts of one length.
            shared: tokens at the start of all texts that are the same; they are left out.
            whole: one per text, (B, E): its last token's.
        """
        states = packed_states(self.model.text_model, ids, positions, runs, shared, whole)
        return F.normalize(in_tiles(self.model.text_projection, states).float(), dim=-1)


def _text_side(model: DualTexts, tokenizer: Tokenizer, ref: str, sha256: str) -> Encoder:
    """Return the text side as an encoder of width E.

    Raises:
        DataError: the tokenizer does not belong to it (65).
    """
    encoder = as_encoder(model.eval(), tokenizer, ref, sha256)
    ids = torch.tensor([[*encoder.prefix, *encoder.suffix] or [0]])
    # Settings of a configuration that are read only when a text is must fail here.
    try:
        with torch.no_grad():
            width = model(ids)[1].shape[1]
    except Exception as error:
        raise unusable("dual encoder", error, ref) from None
    return dataclasses.replace(encoder, width=width)


# ---------------------------------------------------------------------------------------- pictures


@dataclass(frozen=True)
class PhotoConfig:
    """The network over image features of a run of `vg pretrain clip`; stored in `run.json`."""

    width: int  # D
    hidden: int = 512
    dropout: float = 0.3  # also the dropout of the captions' states


def photo_network(config: PhotoConfig, dim: int) -> nn.Sequential:
    """Return the network from image features (C, D) to the space (C, E)."""
    return nn.Sequential(
        nn.Linear(config.width, config.hidden),
        nn.ReLU(),
        nn.Dropout(config.dropout),
        nn.Linear(config.hidden, dim),
    )


def root(feats: Tensor) -> Tensor:
    """Return the root of features, sign kept, which tames the few large channels."""
    return feats.sign() * feats.abs().sqrt()


class PhotoSide(nn.Module):
    """The image side of a run of `vg pretrain clip`: features (C, D) -> (C, E)."""

    def __init__(self, config: PhotoConfig, dim: int) -> None:
        super().__init__()
        self.photo = photo_network(config, dim)

    def forward(self, feats: Tensor) -> Tensor:
        """Return (C, E), not normalised."""
        return self.photo(root(feats))  # type: ignore[no-any-return]


class DualImages(nn.Module):
    """The image side of transformers' dual encoders, with the face of a timm network.

    Args:
        model: as `load_towers` returns it.
        folder: its folder, with the preprocessing.

    Raises:
        DataError: the preprocessing is missing (66), or no picture can go through it (65).
    """

    def __init__(self, model: Any, folder: Path) -> None:
        super().__init__()
        self.kind = model.config.model_type
        if self.kind == "siglip2":
            why = "is a SigLIP 2 of any resolution, whose pictures differ in shape; take one of a"
            raise DataError(f"{why} fixed one, as google/siglip2-base-patch16-224", folder)
        if not getattr(model.vision_model, "use_head", True):
            raise DataError("has no head that pools its patches", folder)
        model.text_model = None  # Pictures need no texts.
        self.model = model
        self._processor = _load_processor(folder)
        config = model.config.vision_config
        self._side = int(config.image_size)
        self._patch = int(config.patch_size)
        try:
            shapes = {self._prepared(size).shape for size in ((90, 70), (70, 90))}
            if len(shapes) > 1:
                why = "its pictures differ in shape; expected a crop, or a height and a width"
                raise DataError(why, folder)
            self.preprocessing = _timm_settings(self._processor, shapes.pop(), folder)
            dumps(self.preprocessing)  # refuses now a value that no manifest can hold
            with torch.no_grad():
                black = torch.zeros((1, *self.preprocessing["input_size"]))
                self.num_features = int(self.pooled(black).shape[1])
        except DataError:
            raise
        except Exception as error:  # transformers checks its settings in its own ways, or not
            raise unusable("preprocessing", error, folder) from None

    def _prepared(self, size: tuple[int, int]) -> Array:
        from PIL import Image

        return self.prepare(Image.new("RGB", size))

    def prepare(self, image: Image.Image) -> Array:
        """Return the (3, H, W) uint8 picture that transformers' own processor makes of an image."""
        found = self._processor(image, do_rescale=False, do_normalize=False)
        return np.asarray(found["pixel_values"][0], np.uint8)

    def _features(self, pixels: Tensor) -> Any:
        other = tuple(pixels.shape[2:]) != (self._side, self._side)
        return self.model.get_image_features(pixel_values=pixels, interpolate_pos_encoding=other)

    def pooled(self, pixels: Tensor) -> Tensor:
        """Return (B, E), as transformers' `get_image_features` does, for (B, 3, H, W) pixels."""
        found: Tensor = self._features(pixels).pooler_output
        return found

    def forward_features(self, pixels: Tensor) -> Tensor:
        """Return the grid of patches in the space, (B, h, w, E).

        CLIP's patches go through the last norm and the projection of its class token, SigLIP's
        through its pooling head, each by itself.
        """
        last = self._features(pixels).last_hidden_state
        tower = self.model.vision_model
        if self.kind == "siglip":
            cells = tower.head(last.flatten(0, 1)[:, None])
        else:
            cells = self.model.visual_projection(tower.post_layernorm(last[:, 1:]))
        height, width = (side // self._patch for side in pixels.shape[2:])
        return cells.reshape(len(pixels), height, width, -1)  # type: ignore[no-any-return]


def _load_processor(folder: Path) -> Any:
    """Return transformers' processor of pictures, the one that computes with Pillow.

    Raises:
        DataError: there is none (66), or its settings are damaged (65).
    """
    from transformers import AutoImageProcessor

    if not any((folder / name).is_file() for name in _PROCESSORS):
        why = f"has no {_PROCESSORS[0]}, the preprocessing of its pictures; save one with"
        why += " AutoImageProcessor.from_pretrained(…).save_pretrained(DIR)"
        raise DataError(why, folder, code=Exit.NO_INPUT)
    with quiet_transformers():
        try:
            return AutoImageProcessor.from_pretrained(
                folder, backend="pil", local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # raised by the settings, in many ways
            raise unusable("preprocessing", error, folder) from None


_PROCESSORS = ("preprocessor_config.json", "processor_config.json")


def _timm_settings(processor: Any, shape: tuple[int, ...], folder: Path) -> dict[str, Any]:
    """Return the preprocessing as timm names it, and all settings of transformers' processor.

    Raises:
        DataError: pixels are not scaled to 0 … 1 and normalised (65).
    """
    settings = {
        key: value
        for key, value in sorted(processor.to_dict().items())
        if isinstance(value, str | int | float | list | dict) and not key.startswith("_")
    }
    scale: float = getattr(processor, "rescale_factor", 0.0) or 0.0
    scaled = processor.do_rescale and processor.do_normalize and abs(scale * 255 - 1) < 1e-9
    if not scaled:
        why = 'expected "do_rescale" by 1/255 and "do_normalize"'
        raise DataError(why, folder / _PROCESSORS[0])
    size = dict(processor.size)
    edge = size.get("shortest_edge")
    return {
        "input_size": shape,
        "interpolation": _INTERPOLATIONS[int(processor.resample)],
        "mean": tuple(processor.image_mean),
        "std": tuple(processor.image_std),
        "crop_pct": min(shape[1:]) / (edge or min(size["height"], size["width"])),
        "crop_mode": "center" if edge else "squash",
        "processor": settings,
    }
