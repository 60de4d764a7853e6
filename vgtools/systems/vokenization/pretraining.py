"""Pretraining of a visually supervised language model: text and vokens become a `Job`."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vgtools.io import (
    DataError,
    Exit,
    Inputs,
    Progress,
    arrives_once,
    open_features,
    plain,
    sha256_file,
)
from vgtools.io.errors import about, amount
from vgtools.models.encoder import Encoder
from vgtools.models.references import fingerprint, pick_dtype
from vgtools.systems.vokenization import objectives
from vgtools.systems.vokenization.voken_lm import (
    Recipe,
    VisuallySupervisedLM,
    VokenLMConfig,
    corpus_of,
    count_vokens,
    evaluate,
    halve,
    make_batches,
)
from vgtools.text.blocks import Packed, has_vokens, pack
from vgtools.text.tokens import tokenizer_fingerprint
from vgtools.training import processes
from vgtools.training.session import Job
from vgtools.training.steps import plan_for


class Pretraining:
    """One pretraining of a masked language model, with vokens (section 2.2) if its inputs have any.

    Args:
        encoder: to start from.
        inputs: files to train on.
        valid: files to evaluate on.
        settings: `voken_tokens`, `label`, `control`, `vokens`, `shared_head`, `pack`.
        weights: of the losses; empty for the default ones.
        feats: features of the image bank.
        shape: what the encoder was made of, if it is new.
        packed: folder of the packed inputs.
        keep_packed: whether they outlive the training.
        gradient_checkpointing: less memory, more time.
        compiled: compile the encoder.
        quiet: no progress.
        say: prints a message.

    Raises:
        DataError: a loss needs features of the images (2), or an input cannot be read.
    """

    kind = "voken_lm"

    def __init__(
        self,
        encoder: Encoder,
        inputs: Sequence[str],
        valid: Sequence[str],
        settings: Mapping[str, Any],
        *,
        weights: Mapping[str, float],
        feats: str | None,
        shape: str | None,
        packed: str | Path,
        keep_packed: bool,
        gradient_checkpointing: bool,
        compiled: bool,
        quiet: bool,
        say: Callable[[str], None],
    ) -> None:
        needy = objectives.names(feats=True)
        if feats is None and not weights.keys().isdisjoint(needy):
            why = f"--feats: is needed; {' and '.join(needy)} compare with the images' features"
            raise DataError(why, code=Exit.USAGE)
        self._encoder = encoder
        self._files = [inputs, valid]
        self._settings = dict(settings)
        self._shape = shape
        self._keep_packed = keep_packed
        self._gradient_checkpointing = gradient_checkpointing
        self._compiled = compiled
        self._bank = None if feats is None else open_features(feats)
        # Before a text is read: what changes later is not what these hashes name.
        self.inputs = Inputs([*inputs, *valid, *([feats] if feats else [])])
        self._store = PackedInputs(encoder, Path(packed), quiet, say)
        self._digests = [
            [self.inputs.sha256(path) or self._store.digest(path) for path in paths]
            for paths in self._files
        ]
        if not weights:
            vokens = settings["control"] == "tokens" or any(map(self._store.has_vokens, inputs))
            weights = {"mlm": 1.0, "voken_cls": 1.0} if vokens else {"mlm": 1.0}
        self._weights = dict(weights)

    def config(self) -> dict[str, Any]:
        """Return what decides the weights, beside the flags that every system has."""
        return {
            **self._settings,
            "start": self._shape or self._encoder.fingerprint,
            "tokenizer": tokenizer_fingerprint(self._encoder.tokenizer),
            "weights": self._weights,
            "feats": self._bank and self._bank.manifest["files"],
            "inputs": self._digests[0],
            "valid": self._digests[1],
        }

    def job(self, config: Mapping[str, Any], device: torch.device) -> Job:
        """Return the model with its batches."""
        encoder = self._encoder
        bank = self._bank
        with processes.in_turn():
            files, held_files = ([self._store.open(p) for p in paths] for paths in self._files)
        count = count_vokens(
            files,
            held_files,
            encoder,
            bool(config["weights"].keys() - {"mlm"}),
            config["control"],
            len(bank.ids) if bank is not None else config["vokens"],
        )
        recipe = Recipe.of(
            encoder.tokenizer,
            vokens=count,
            block=config["block"],
            on=config["voken_tokens"],
            label=config["label"],
            control=config["control"],
            seed=config["seed"],
            rate=config["mask_rate"],
        )
        corpus = corpus_of(files, encoder, recipe, config["pack"])
        held = corpus_of(held_files, encoder, recipe, config["pack"])
        shape = VokenLMConfig(
            losses=tuple(config["weights"]),
            vokens=count,
            feats_width=bank.array.shape[1] if bank is not None else 0,
            shared_head=bool(config["shared_head"]),
        )
        with about(self._files[0][0]):  # the number of vokens is what its manifest says
            model = self._model(shape, config).to(device)
        plan = plan_for(len(corpus), config)

        def finish() -> tuple[dict[str, Any], Encoder, dict[str, Tensor]]:
            facts = {
                "voken_lm": dataclasses.asdict(shape),
                "tokens": corpus.tokens,
                "blocks": len(corpus),
            }
            trained = dataclasses.replace(encoder, fingerprint=fingerprint(model.lm.base_model))
            return facts, trained, model.head_weights()

        def judge(batch_size: int) -> dict[str, float]:
            return evaluate(model, held, recipe, batch_size, device)

        batches = make_batches(corpus, recipe, plan, device)
        return Job(model, batches, plan, halve, judge if held else None, finish)

    def _model(self, shape: VokenLMConfig, config: Mapping[str, Any]) -> VisuallySupervisedLM:
        torch.manual_seed(config["seed"])
        bank = self._bank
        table = torch.from_numpy(bank.array.astype("float32")) if bank is not None else None
        dtype = pick_dtype(config["dtype"])
        model = VisuallySupervisedLM(self._encoder.model, shape, table, dtype)
        if self._gradient_checkpointing:
            # The general way of torch, where transformers has none of its own for the class.
            general = getattr(model.lm, "activation_checkpointing_enable", None)
            (general or model.lm.gradient_checkpointing_enable)({"use_reentrant": False})
        if self._compiled:
            model.lm.base_model.compile()
        return model

    def close(self) -> None:
        """Remove the packed inputs, unless they are kept; other files in their folder stay."""
        if not self._keep_packed:
            self._store.remove()


class PackedInputs:
    """The packed inputs of a run.

    Args:
        encoder: whose tokenizer makes the tokens.
        folder: where they are.
        quiet: no progress.
        say: prints a message.
    """

    def __init__(
        self, encoder: Encoder, folder: Path, quiet: bool, say: Callable[[str], None]
    ) -> None:
        self._encoder = encoder
        self._folder = folder
        self._quiet = quiet
        self._say = say
        self._piped: dict[str, Packed] = {}  # what can be read only once

    def open(self, path: str) -> Packed:
        """Return an input in the packed form."""
        if path in self._piped:
            return self._piped[path]
        with Progress("pretrain: packing", "tokens", quiet=self._quiet) as bar:
            packed = pack(path, self._folder, self._encoder.tokenizer, progress=bar)
        if packed.replaced:
            lines = amount(packed.replaced, "line")
            self._say(f"{plain(path)}: {lines} had bytes that are not UTF-8, replaced")
        return packed

    def digest(self, path: str) -> str:
        """Return the sha256 of an input; what comes from a pipe is packed for that."""
        if not arrives_once(path):
            return sha256_file(path)
        packed = self._piped[path] = self.open(path)
        return hashlib.sha256(packed.tokens.data).hexdigest()

    def has_vokens(self, path: str) -> bool:
        """Return whether an input has vokens."""
        if path not in self._piped:
            return has_vokens(path)
        return bool((self._piped[path].tokens[:, 1] >= 0).any())

    def remove(self) -> None:
        """Remove the packed inputs, and their folder if nothing else is in it."""
        for file in self._folder.glob("[0-9a-f]" * 16 + ".*"):
            file.unlink()
        with contextlib.suppress(OSError):  # not empty, or nothing was packed
            self._folder.rmdir()
