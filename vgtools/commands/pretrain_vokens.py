"""`vg pretrain` with text and vokens: what its flags mean for `systems/voken_lm.py`."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vgtools.commands.options import choice

if TYPE_CHECKING:
    import torch

    from vgtools.blocks import Packed
    from vgtools.checkpoint import Encoder
    from vgtools.io import Features
    from vgtools.steps import Job

KIND = "voken_lm"
LOSSES = ("mlm", "voken_cls", "voken_reg", "voken_ctr")
# Tan & Bansal 2020 (Vokenization), section 4.2; epochs and batch of the published code for Wiki103. Its warm-up of 10,000 steps
# would be all of a small corpus's training: a share stands here, --warmup 10000 is the published code's.
DEFAULTS: dict[str, Any] = {"epochs": 40, "batch_size": 256, "lr": 2e-4, "warmup": 0.05}
FOREIGN = ("regions", "region_start", "text_only", "late_fusion")  # flags of another system


class Pretraining:
    """One pretraining of a masked language model, with vokens where there are some.

    Args:
        flags: of the command.
        weights: of the losses, as given.
        text: the encoder.
        folder: of the run.
        quiet: no progress.
    """

    def __init__(self, flags: Any, weights: dict[str, float], text: Encoder, folder: Path, quiet: bool) -> None:
        for value, allowed, flag in (
            (flags.voken_tokens, ("all", "masked", "unmasked"), "--voken-tokens"),
            (flags.label, ("all", "first"), "--label"),
            (flags.pack, ("stream", "document"), "--pack"),
            (flags.control or "random", ("random", "shuffle", "reverse", "tokens"), "--control"),
        ):
            choice(value, allowed, flag)
        self._flags, self._text, self._bank = flags, text, _features(flags.feats, weights)
        self._kept = Path(flags.cache) if flags.cache is not None else folder.with_name(f"{folder.name}.packed")
        self._store = _Store(text, self._kept, quiet)
        self._digests = [[self._store.digest(path) for path in paths] for paths in (flags.inputs, flags.valid or ())]
        if not weights:
            learned = flags.control == "tokens" or any(map(self._store.has_vokens, flags.inputs))
            weights = {"mlm": 1.0, "voken_cls": 1.0} if learned else {"mlm": 1.0}
        self._weights = weights

    def config(self) -> dict[str, Any]:
        """Return what decides the weights, beside the flags that every system has."""
        from vgtools.checkpoint import tokenizer_fingerprint

        own = ("voken_tokens", "label", "control", "vokens", "shared_head", "pack")
        return {name: getattr(self._flags, name) for name in own} | {
            "start": self._flags.shape or self._text.fingerprint,
            "tokenizer": tokenizer_fingerprint(self._text.tokenizer),
            "weights": self._weights,
            "feats": self._bank and self._bank.manifest["files"],
            "inputs": self._digests[0],
            "valid": self._digests[1],
        }

    def job(self, config: dict[str, Any], device: torch.device) -> Job:
        """Return the model with its batches."""
        import torch

        from vgtools import parallel, steps
        from vgtools.checkpoint import fingerprint, pick_dtype
        from vgtools.systems import voken_lm as system

        text, bank = self._text, self._bank
        with parallel.in_turn():
            data = [[self._store.open(path) for path in paths] for paths in (self._flags.inputs, self._flags.valid or ())]
        given = len(bank.ids) if bank is not None else config["vokens"]
        learned = bool(config["weights"].keys() - {"mlm"})
        count = system.count_vokens(data[0], data[1], text, learned, config["control"], given)
        recipe = system.Recipe.of(
            text.tokenizer, vokens=count, block=config["block"], on=config["voken_tokens"], label=config["label"],
            control=config["control"], seed=config["seed"], rate=config["mask_rate"],
        )  # fmt: skip
        corpus, held = (system.corpus_of(files, text, recipe, config["pack"]) for files in data)
        width = bank.array.shape[1] if bank is not None else 0
        shape = system.VokenLMConfig(tuple(config["weights"]), count, width, shared_head=bool(config["shared_head"]))
        torch.manual_seed(config["seed"])
        table = torch.from_numpy(bank.array.astype("float32")) if bank is not None else None
        model = system.VisuallySupervisedLM(text.model, shape, table, pick_dtype(config["dtype"])).to(device)
        if self._flags.gradient_checkpointing:
            save = getattr(model.lm, "activation_checkpointing_enable", None) or model.lm.gradient_checkpointing_enable
            save({"use_reentrant": False})
        if self._flags.compiled:
            model.lm.base_model.compile()
        schedule = steps.plan_for(len(corpus), config)

        def finish() -> tuple[dict[str, Any], Encoder, dict[str, torch.Tensor]]:
            final = dataclasses.replace(text, fingerprint=fingerprint(model.lm.base_model))
            info = {"voken_lm": dataclasses.asdict(shape), "tokens": corpus.tokens, "blocks": len(corpus)}
            return info, final, model.own_weights()

        def evaluate(size: int) -> dict[str, float]:
            return system.evaluate(model, held, recipe, size, device)

        batches = system.make_batches(corpus, recipe, schedule, device)
        return steps.Job(model, batches, schedule, system.halve, evaluate if held else None, finish)

    def close(self) -> None:
        """Remove the packed inputs, unless they are to be kept; what else lies there stays."""
        if self._flags.cache is None:
            for file in self._kept.glob("[0-9a-f]" * 16 + ".*"):
                file.unlink()
            with contextlib.suppress(OSError):  # something else lies there, or nothing was packed
                self._kept.rmdir()


def _features(path: str | None, weights: dict[str, float]) -> Features | None:
    from vgtools.io import open_features

    if path is None and weights.keys() & {"voken_reg", "voken_ctr"}:
        raise typer.BadParameter("voken_reg and voken_ctr compare with the images' features", param_hint="--feats")
    return None if path is None else open_features(path)


class _Store:
    """The packed inputs of a run."""

    def __init__(self, text: Encoder, folder: Path, quiet: bool) -> None:
        self.text, self.folder, self.quiet = text, folder, quiet
        self._piped: Packed | None = None

    def open(self, path: str) -> Packed:
        """Return an input in the packed form."""
        from vgtools.blocks import pack
        from vgtools.io import Progress

        if path == "-" and self._piped is not None:
            return self._piped
        with Progress("pretrain: packing", "tokens", quiet=self.quiet) as bar:
            return pack(path, self.folder, self.text.tokenizer, progress=bar)

    def digest(self, path: str) -> str:
        """Return the sha256 of an input; what comes from a pipe is packed for that."""
        from vgtools.io import sha256_file

        if path != "-":
            return sha256_file(path)
        self._piped = self.open(path)
        return hashlib.sha256(self._piped.tokens.data).hexdigest()

    def has_vokens(self, path: str) -> bool:
        """Say whether an input has vokens."""
        from vgtools.blocks import has_vokens

        return has_vokens(path) if self._piped is None or path != "-" else bool((self._piped.tokens[:, 1] >= 0).any())
