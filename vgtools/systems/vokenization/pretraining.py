"""Pretraining of a visually supervised language model: text and vokens become a `Job`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from vgtools.io.artifact import open_features
from vgtools.io.errors import DataError, Exit, about, plain
from vgtools.models.encoder import Encoder
from vgtools.models.layers import checkpoint_activations
from vgtools.models.references import fingerprint, identity_of, pick_dtype
from vgtools.models.runs import start_facts
from vgtools.systems.vokenization import objectives
from vgtools.systems.vokenization.voken_lm import (
    VisuallySupervisedLM,
    VokenLMConfig,
    VokenMasking,
    corpus_of,
    count_labels,
    count_vokens,
    evaluate,
    halve,
    make_batches,
)
from vgtools.tasks.packed import PackedPretraining
from vgtools.text.blocks import with_labels
from vgtools.text.masking import Masking
from vgtools.text.tokens import tokenizer_fingerprint
from vgtools.text.vokens import check_banks
from vgtools.training import processes
from vgtools.training.session import Job
from vgtools.training.steps import plan_for


@dataclass
class VokenPretraining(PackedPretraining):
    """One pretraining of a masked language model, with vokens (section 2.2) if its inputs have any.

    Raises:
        DataError: a loss needs features of the images (2), or an input cannot be read.
    """

    kind = "voken_lm"

    encoder: Encoder  # encoder to start from
    settings: objectives.VokenSettings
    _: KW_ONLY
    feats: str | None  # features of the image bank
    also: str | None = None  # further labels of the inputs' tokens
    shape: str | None  # shape that the encoder was made from, if it is new
    compiled: bool  # compile the encoder

    def __post_init__(self) -> None:
        needy = objectives.names(feats=True)
        if self.feats is None and not self.weights.keys().isdisjoint(needy):
            why = f"--feats: is needed; {' and '.join(needy)} compare with the images' features"
            raise DataError(why, code=Exit.USAGE)
        features = [self.feats] if self.feats else []
        further = [self.also] if self.also else []
        self.pack(self.encoder, *features, also=further)
        # With the head, which is drawn where the checkpoint has none.
        self._start = identity_of(fingerprint(self.encoder.model), self.encoder.settings)
        self.store.train = [*self.inputs, *further]
        self._also = [*map(self.digest_of, further)]
        self._bank = None if self.feats is None else open_features(self.feats)
        tokens = self.settings.control == "tokens"
        if not tokens:
            self._check_bank()
        if not self.weights:
            vokens = tokens or any(map(self.store.has_vokens, self.inputs))
            self.weights = {"mlm": 1.0, "voken_cls": 1.0} if vokens else {"mlm": 1.0}
            self.weights |= {objectives.ALSO: 1.0} if further else {}
        if (self.also is not None) != (objectives.ALSO in self.weights):
            why = f"--also and a weight of {objectives.ALSO} need one another"
            raise DataError(f"{why}: --also FILE --weight {objectives.ALSO}=1", code=Exit.USAGE)

    def _check_bank(self) -> None:
        """Refuse vokens of several banks, and features whose rows are not the vokens' images."""
        ids = None if self._bank is None else self._bank.ids
        unknown = check_banks([*self.inputs, *self.valid], ids, self.feats)
        for path in unknown if self.feats else ():
            if self.store.has_vokens(path):
                why = "no manifest names the images that its vokens count"
                self.session.note(
                    f"{plain(path)}: {why}: row i of {plain(str(self.feats))} is voken i"
                )

    def config(self) -> dict[str, Any]:
        """Return the settings that decide the weights, in addition to the flags that every system
        has.
        """
        return {
            **dataclasses.asdict(self.settings),
            "start": self.shape or self._start,
            "tokenizer": tokenizer_fingerprint(self.encoder.tokenizer),
            "weights": dict(self.weights),
            "feats": self._bank and self._bank.manifest["files"],
            **({"also": self._also} if self._also else {}),
            **self.digests,
        }

    def job(self, config: Mapping[str, Any], device: torch.device) -> Job:
        """Return the model with its batches."""
        encoder = self.encoder
        bank = self._bank
        Masking.of(encoder.tokenizer)  # refuses a tokenizer without a mask before texts are packed
        # The first process packs the inputs; the others wait and then open its files.
        with processes.after_first():
            both = (self.inputs, self.valid)
            files, held_files = (
                [part for path in paths for part in self.store.open(path)] for paths in both
            )
            labelled = self.store.open(self.also) if self.also else []
        learned = bool(config["weights"].keys() - {"mlm", objectives.ALSO})
        given = len(bank.ids) if bank is not None else config["vokens"]
        count = processes.on_first(
            lambda: count_vokens(files, held_files, encoder, learned, config["control"], given)
        )
        labels = processes.on_first(lambda: count_labels(labelled, encoder))
        if labelled:
            files = with_labels(files, labelled)
        recipe = VokenMasking.of(
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
            also=labels,
            shared_head=bool(config["shared_head"]),
        )
        with about(self.inputs[0]):  # Its manifest gives the number of vokens.
            model = self._model(shape, config).to(device)
        plan = plan_for(len(corpus), config)

        def finish() -> tuple[dict[str, Any], Encoder, dict[str, Tensor]]:
            form = dataclasses.asdict(shape)
            if not labels:
                del form["also"]
            facts = {
                "voken_lm": form,
                "tokens": corpus.tokens,
                "blocks": len(corpus),
                **start_facts(encoder),
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
        model = VisuallySupervisedLM(self.encoder.model, shape, table, pick_dtype(config["dtype"]))
        if self.gradient_checkpointing:
            checkpoint_activations(model.lm)
        if self.compiled:
            model.lm.base_model.compile()
        return model
