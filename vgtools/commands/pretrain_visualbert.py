"""`vg pretrain --system visualbert`: what its flags mean for `systems/visualbert.py`."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vgtools.commands.options import choice

if TYPE_CHECKING:
    import torch

    from vgtools.checkpoint import Encoder
    from vgtools.steps import Job
    from vgtools.systems.visualbert_data import Captions

KIND = "visualbert"
LOSSES = ("mlm", "sip")
# Li et al. 2020, appendix B (warm-up of 10 %, texts capped at 128); the rest is that of the published code for COCO.
DEFAULTS: dict[str, Any] = {"epochs": 10, "batch_size": 64, "lr": 5e-5, "warmup": 0.1}
FOREIGN = ("voken_tokens", "label", "control", "vokens", "feats", "shared_head", "pack", "cache", "compiled")


class Pretraining:
    """One pretraining of a VisualBERT on captions and the regions of their images.

    Args:
        flags: of the command.
        weights: of the losses, as given.
        text: the encoder; None where `flags.encoder` is a VisualBERT.
        folder: of the run.
        quiet: no progress.
    """

    def __init__(self, flags: Any, weights: dict[str, float], text: Encoder | None, folder: Path, quiet: bool) -> None:
        from vgtools.checkpoint import check_same, pick_dtype, read_run
        from vgtools.regions import backbone_of, open_regions
        from vgtools.systems import visualbert as system
        from vgtools.systems.visualbert_data import read_captions

        if flags.regions is None:
            raise typer.BadParameter(
                "visualbert looks at regions: X.npy of vg extract-image-feats --regions", param_hint="--regions"
            )
        if weights and "mlm" not in weights:
            raise typer.BadParameter("visualbert always learns mlm; its weight cannot be 0", param_hint="--weight")
        choice(flags.region_start, ("drawn", "words"), "--region-start")
        if flags.region_start == "words" and (flags.text_only or text is None):
            why = "a VisualBERT that goes on has its own start" if text is None else "no region is shown"
            raise typer.BadParameter(f"words: {why}", param_hint="--region-start")
        self._flags, self._weights, self._quiet = flags, weights or {"mlm": 1.0, "sip": 1.0}, quiet
        self._regions = regions = open_regions(flags.regions)
        self._backbone = backbone_of(regions)
        before = Path(flags.encoder or "", "run.json")
        if flags.encoder and before.is_file() and not flags.text_only:
            known = read_run(flags.encoder, KIND) if text is None else {}
            if "backbone" in known:
                check_same("region features of the backbone", self._backbone, known["backbone"], flags.regions)
        shape = system.VisualBertConfig(regions.width, flags.late_fusion)
        dtype = pick_dtype(flags.dtype)
        if text is None:
            self._model, self._text = system.load_visualbert(flags.encoder, shape, dtype=dtype, offline=flags.offline)
        else:
            self._model, self._text = system.make_visualbert(text, shape, dtype), text
        self._model.checkpointing = flags.gradient_checkpointing
        words = self._text.tokenizer
        look, pairs = None if flags.text_only else regions, "sip" in self._weights
        self._data = read_captions(flags.inputs, words, look, pairs)
        self._held = read_captions(flags.valid, words, look, pairs) if flags.valid else None

    def config(self) -> dict[str, Any]:
        """Return what decides the weights, beside the flags that every system has."""
        from vgtools.checkpoint import fingerprint, tokenizer_fingerprint

        return {
            "start": self._flags.shape or fingerprint(self._model),
            "tokenizer": tokenizer_fingerprint(self._text.tokenizer),
            "weights": self._weights,
            "regions": self._regions.manifest["files"],
            "region_start": self._flags.region_start,
            "text_only": self._flags.text_only,
            "late_fusion": self._flags.late_fusion,
            "inputs": [_digest(self._data)],
            "valid": [_digest(self._held)] if self._held else [],
        }

    def job(self, config: dict[str, Any], device: torch.device) -> Job:
        """Return the model with its batches."""
        from vgtools import steps
        from vgtools.checkpoint import as_encoder
        from vgtools.systems import visualbert as system
        from vgtools.systems import visualbert_data as data

        model, regions = self._model.to(device), None if config["text_only"] else self._regions
        recipe = data.recipe_for(
            self._text,
            pairs="sip" in config["weights"],
            longest=config["block"],
            seed=config["seed"],
            rate=config["mask_rate"],
        )
        schedule = steps.plan_for(len(self._data), config)
        width, held = model.config.regions_width, self._held

        def evaluate(size: int) -> dict[str, float]:
            assert held is not None
            return data.evaluate(model, held, regions, recipe, size, device)

        def finish() -> tuple[dict[str, Any], Encoder, dict[str, torch.Tensor]]:
            info = {"visualbert": dataclasses.asdict(model.config), "backbone": self._backbone, "captions": len(self._data)}
            final = as_encoder(system.to_transformers(model), self._text.tokenizer, self._text.ref)
            return info | {"images": len(self._data.images)}, final, {}

        def start() -> None:
            from vgtools.process import Progress
            from vgtools.systems import visualbert_start

            with Progress("pretrain: start of the regions", "steps", visualbert_start.STEPS, quiet=self._quiet) as bar:
                for _ in visualbert_start.align(model, self._data, self._regions, config["seed"]):
                    bar.advance(1)

        batches = data.make_batches(self._data, regions, width, recipe, schedule, device)
        first = start if config["region_start"] == "words" else None
        return steps.Job(model, batches, schedule, system.halve, evaluate if held else None, finish, first)

    def close(self) -> None:
        """Leave nothing behind."""


def _digest(captions: Captions) -> str:
    """Return the sha256 of captions as the model reads them."""
    found = hashlib.sha256("\0".join(captions.images).encode())
    for part in (captions.image, captions.ids, captions.starts):
        found.update(part.tobytes())
    return found.hexdigest()
