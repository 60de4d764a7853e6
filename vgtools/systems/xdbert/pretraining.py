"""Adaptation: a text, a student and a teacher become a `Job`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, amount
from vgtools.io.trust import trusted
from vgtools.models.encoder import Encoder
from vgtools.models.layers import checkpoint_activations
from vgtools.models.masked_lm import token_losses
from vgtools.models.precision import autocast
from vgtools.models.references import fingerprint, identity_of, pick_dtype
from vgtools.models.runs import start_facts
from vgtools.systems.xdbert.model import KIND, XDBert, XDBertBatch, XDBertConfig, halve
from vgtools.systems.xdbert.pairs import PairMasking, TeacherText, collate, partners, tokens_of
from vgtools.tasks.metrics import mean, paired_bootstrap
from vgtools.tasks.packed import PackedPretraining
from vgtools.tasks.perplexity import mean_nll, perplexity
from vgtools.text.blocks import Corpus, check_range, open_corpus
from vgtools.text.tokens import tokenizer_fingerprint
from vgtools.training import processes
from vgtools.training.session import Job
from vgtools.training.steps import plan_for, step_batches

_ASKED = 1000  # blocks whose length in the teacher's tokens is measured
_SAMPLES = 1000  # bootstrap samples for the intervals of evaluation


@dataclass
class XDBertPretraining(PackedPretraining):
    """One adaptation of a student with a teacher.

    Source: Hsu et al. 2022, section 2.3, figure 2 and appendix C.1.
    """

    kind = KIND

    student: Encoder  # with the head of a masked language model
    teacher: Encoder
    _: KW_ONLY
    shape: XDBertConfig
    freeze_teacher: bool

    def __post_init__(self) -> None:
        self.pack(self.student)
        # The fingerprint covers the head, which is drawn where the checkpoint has none.
        self._start = identity_of(fingerprint(self.student.model), self.student.settings)

    def config(self) -> dict[str, Any]:
        """Return the settings that decide the weights, in addition to the flags that every system
        has.
        """
        return {
            "start": self._start,
            "tokenizer": tokenizer_fingerprint(self.student.tokenizer),
            "teacher": self.teacher.identity,
            "teacher_tokenizer": tokenizer_fingerprint(self.teacher.tokenizer),
            "freeze_teacher": self.freeze_teacher,
            "weights": dict(self.weights),
            **dataclasses.asdict(self.shape),
            **self.digests,
        }

    def job(self, config: Mapping[str, Any], device: torch.device) -> Job:
        """Return the model with its batches.

        Raises:
            DataError: the block does not fit the student (78), the text has no token, or there is
                nothing to tell apart for `match` (65).
        """
        student = self.student
        recipe = PairMasking.of(
            student.tokenizer,
            seed=config["seed"],
            rate=config["mask_rate"],
            match="match" in self.weights,
        )
        # The first process packs the inputs; the others wait and then open its files.
        with processes.after_first():
            corpus = self._corpus(self.inputs, recipe, config)
            held = self._corpus(self.valid, recipe, config)
        texts = TeacherText.of(student, self.teacher, config["block"])
        facts = teacher_facts(corpus, texts)
        first = f"the first {amount(facts['asked'], 'block')}"
        if facts["cut"]:
            share = f"{facts['cut']} of {first}"
            self.session.note(f"the teacher reads {texts.room} tokens of a block: {share} are cut")
        if facts["empty"]:
            share = f"{facts['empty']} of {first}"
            self.session.note(f"the teacher reads nothing of {share}: unknown words alone")
        model = self._model(config).to(device)
        plan = plan_for(len(corpus), config)

        def build(numbers: Array, epoch: int, parts: int) -> list[XDBertBatch]:
            others = partners(numbers, len(corpus), recipe, epoch)
            return collate(corpus, numbers, others, recipe, texts, epoch, parts, device)

        def judge(batch_size: int) -> dict[str, float]:
            return evaluate(model, held, recipe, texts, batch_size, device)

        def finish() -> tuple[Any, ...]:
            info = {
                KIND: dataclasses.asdict(model.config),
                "parameters": count_parameters(model),
                "tokens": corpus.tokens,
                "blocks": len(corpus),
                "teacher_blocks": facts,
                **start_facts(self.student, self.teacher),
            }
            sha256 = fingerprint(self.teacher.model)
            teacher = dataclasses.replace(self.teacher, fingerprint=sha256)
            return info, self._trained(), model.own_weights(), {"teacher": teacher}

        counts = {
            "token_count": lambda b: len(b.tokens),
            "row_count": lambda b: len(b.ids),
            "clip_count": lambda b: int((b.chosen >= 0).sum()),
        }
        batches = step_batches(len(corpus), recipe.seed, plan, build, counts)
        return Job(model, batches, plan, halve, judge if self.valid else None, finish)

    def _corpus(
        self, paths: Sequence[str], recipe: PairMasking, config: Mapping[str, Any]
    ) -> Corpus:
        files = [part for path in paths for part in self.store.open(path)]
        # Files that the first process has checked are not read again by the others.
        for file in () if trusted() else files:
            check_range(file, int(self.student.model.config.vocab_size))
        special = len(recipe.prefix) + len(recipe.suffix)
        most = self.student.max_tokens
        corpus = open_corpus(files, config["block"], special, most, config["pack"])
        if files and recipe.match and len(corpus) < 2:
            why = f"is one block of {amount(corpus.tokens, 'token')}: nothing to tell apart"
            way_out = "give more text, lower --block, or learn without match: --weight mlm=1"
            raise DataError(f"{why}; {way_out}", files[0].name)
        return corpus

    def _model(self, config: Mapping[str, Any]) -> XDBert:
        torch.manual_seed(config["seed"])
        model = XDBert(
            self.student.model,
            self.teacher.model,
            self.shape,
            tuple(self.weights),
            pick_dtype(config["dtype"]),
            self.freeze_teacher,
            1.0 if config["cross_lr"] is None else config["cross_lr"] / config["lr"],
        )
        if self.gradient_checkpointing:
            for network in (model.lm, *(() if self.freeze_teacher else (model.teacher,))):
                checkpoint_activations(network)
        return model

    def _trained(self) -> Encoder:
        """Return the bare student, as `encoder/` has it."""
        bare = self.student.model.base_model
        return dataclasses.replace(self.student, model=bare, fingerprint=fingerprint(bare))


def count_parameters(model: XDBert) -> dict[str, int]:
    """Return the parameters of student, teacher and cross-modal layers, heads left out."""
    parts = {"student": model.lm.base_model, "teacher": model.teacher, "cross": model.cross.layers}
    return {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}


def teacher_facts(corpus: Corpus, texts: TeacherText) -> dict[str, int]:
    """Return how many of the first blocks the teacher reads in part (`cut`) or not at all."""
    numbers = range(min(_ASKED, len(corpus)))
    sizes = [len(ids) for ids in texts.tokens([tokens_of(corpus, n) for n in numbers])]
    return {
        "asked": len(numbers),
        "tokens": sum(sizes),
        "cut": sum(size > texts.room for size in sizes),
        "empty": sizes.count(0),
    }


# --------------------------------------------------------------------------------------- evaluation


@dataclass
class _Sums:
    """The sums of an evaluation, per block: with its own text, or with another text."""

    nll: list[Array] = field(default_factory=list)
    words: list[Array] = field(default_factory=list)
    right: list[Array] = field(default_factory=list)  # match was answered right, 0 or 1
    match: float = 0.0
    clip: float = 0.0
    clip_tokens: int = 0


def evaluate(
    model: XDBert,
    corpus: Corpus,
    recipe: PairMasking,
    texts: TeacherText,
    batch_size: int,
    device: torch.device | str = "cpu",
) -> dict[str, float]:
    """Measure the losses with fixed masks, partners and choices, which no seed or epoch changes.

    With `match` each block is read twice: with its own text, and with another text.

    Returns:
        Each loss; `perplexity`, exp(mlm). With `match` also `mlm_same` and `mlm_other`, the losses
        of the same masked words with either text, `copied`, how many nats the own text is worth,
        and `match_accuracy`, both with the ends of their 95 % intervals over blocks.
    """
    was_training = model.training
    model.eval()
    sides = [_Sums(), *([_Sums()] if recipe.match else [])]
    for numbers in np.array_split(np.arange(len(corpus)), -(-len(corpus) // batch_size)):
        for side, own in zip(sides, (True, False), strict=False):
            others = numbers if own else partners(numbers, len(corpus), recipe, None)
            (batch,) = collate(corpus, numbers, others, recipe, texts, None, 1, device)
            _measure(model, batch, side)
    model.train(was_training)
    return _metrics(sides, model.losses)


@torch.no_grad()
def _measure(model: XDBert, batch: XDBertBatch, side: _Sums) -> None:
    """Add the losses of a batch to the sums of its side."""
    decoder = model.lm.get_output_embeddings()
    with autocast(batch.ids.device, model.dtype):
        made = model.outputs(batch)
        nll = token_losses(made.words, decoder.weight, decoder.bias, batch.tokens)
        row = (batch.masked // batch.ids.shape[1]).cpu().numpy()
        count = len(batch.ids)
        side.nll.append(np.bincount(row, nll.double().cpu().numpy(), count))
        side.words.append(np.bincount(row, minlength=count))
        if "match" in model.losses:
            logits = model.match(made.pooled).float()
            loss = F.cross_entropy(logits, batch.same, reduction="sum")
            side.match += float(loss)
            side.right.append((logits.argmax(1) == batch.same).cpu().numpy())
        if "clip_token" in model.losses:
            side.clip += float(model.clip_loss(made))
            side.clip_tokens += len(made.clip_tokens)


def _metrics(sides: Sequence[_Sums], losses: Sequence[str]) -> dict[str, float]:
    """Return the means of both sides, and how they differ."""
    words = np.concatenate(sides[0].words)
    nll = [np.concatenate(side.nll) for side in sides]
    found = {"mlm": float(np.mean([mean_nll(words, x) for x in nll]))}
    found["perplexity"] = perplexity(found["mlm"])
    if "match" in losses:
        own, other = nll
        found |= {
            "mlm_same": float(mean_nll(words, own)),
            "mlm_other": float(mean_nll(words, other)),
        }
        gain = paired_bootstrap(mean_nll, words, own, other, samples=_SAMPLES)
        ends = {"copied_low": gain.low, "copied_high": gain.high}
        # Each of the two sides has a row per block.
        found["match"] = sum(side.match for side in sides) / (2 * len(words))
        right = np.mean([np.concatenate(side.right) for side in sides], axis=0)
        nothing = np.zeros(len(right))
        share = paired_bootstrap(mean, nothing, nothing, right, samples=_SAMPLES)
        ends |= {"match_low": share.low, "match_high": share.high}
        found |= {"copied": gain.value, "match_accuracy": share.value}
        # A single block has no interval.
        found |= {name: end for name, end in ends.items() if end is not None}
    if "clip_token" in losses and (tokens := sum(side.clip_tokens for side in sides)):
        found["clip_token"] = sum(side.clip for side in sides) / tokens
    if words.any():
        return found
    asked = ("mlm", "perplexity", "copied")  # short texts may have no masked word
    return {name: value for name, value in found.items() if not name.startswith(asked)}
