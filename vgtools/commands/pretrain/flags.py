"""Flags that every way to pretrain has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from vgtools.commands.options import (
    Checkpoints,
    Count,
    File,
    Flag,
    Optimizer,
    RunFolder,
    Runtime,
    Value,
    check_streams,
    is_given,
    refuse_if,
    run_folder,
)
from vgtools.commands.topics import FIRST, Topic, page
from vgtools.io.errors import plain
from vgtools.io.settings import count, value

if TYPE_CHECKING:
    from vgtools.models.encoder import Encoder
    from vgtools.training.session import Pretraining

AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)

Valid = Annotated[
    list[str] | None, File("Evaluate on this file, masks fixed; repeatable.", "--valid")
]
TRAINING = Topic("training", page("pretrain.training"))
GradientCheckpointing = Annotated[
    bool, Flag("--gradient-checkpointing", help="Less memory, more time."), TRAINING
]
StopEpoch = Annotated[
    int | None,
    Count("Stop after N epochs, in the schedule of all --epochs.", show_default="all of them"),
    FIRST,
]
Cache = Annotated[
    str | None,
    Value("DIR", "Keep packed inputs in DIR, for other runs.", show_default="RUN.packed, removed"),
    TRAINING,
]


def Weight(losses: str, default: str) -> Any:
    """Return the flag of weights of losses."""
    return Value("NAME=N", f"Weight of a loss: {losses}.", show_default=default)


@dataclass(frozen=True, kw_only=True)
class StartFlags:
    """The model that training starts from.

    Attributes:
        shape: From scratch: bert-base, bert-small, roberta-base, roberta-small, or a config.json.
        tokenizer: With --shape: hub name, directory or builtin:NAME.
        encoder: Continue training this model: hub name, directory, vg run. A head that it lacks is
            drawn.
    """

    shape: str | None = value(None, metavar="NAME|FILE")
    tokenizer: str | None = value(None, metavar="NAME")
    encoder: str | None = value(None, metavar="NAME")

    def check(self) -> None:
        """Refuse flags that do not go together."""
        both = "exactly one of --shape (from scratch) and --encoder (continue training) is required"
        refuse_if((self.shape is None) == (self.encoder is None), "--shape/--encoder", both)
        own = "is needed with --shape, and only there: with --encoder it is the encoder's own"
        refuse_if((self.shape is None) != (self.tokenizer is None), "--tokenizer", own)

    def shape_mark(self) -> str | None:
        """Return the identity of --shape in `run.json`: its name, or the sha256 of a file."""
        from vgtools.io.files import sha256_file
        from vgtools.models.masked_lm import SHAPES

        named = self.shape is None or self.shape in SHAPES
        return self.shape if named else sha256_file(str(self.shape))

    def open(self) -> Encoder:
        """Return the model to start from, with its tokenizer."""
        from vgtools.io.files import read_json
        from vgtools.io.streams import require
        from vgtools.models.encoder import as_encoder, load_masked_lm
        from vgtools.models.masked_lm import SHAPES, new_lm
        from vgtools.models.references import load_tokenizer

        if self.encoder is not None:
            return load_masked_lm(self.encoder)
        assert self.shape is not None
        assert self.tokenizer is not None
        values = SHAPES.get(self.shape)
        if values is None:
            if not Path(self.shape).is_file():
                raise typer.BadParameter(
                    f"{self.shape!r} is neither one of {', '.join(SHAPES)} nor a file",
                    param_hint="--shape",
                )
            values = read_json(self.shape, "a transformers configuration")
            require(values, {"model_type": str}, self.shape, 1)
        tokenizer = load_tokenizer(self.tokenizer)
        return as_encoder(new_lm(values, tokenizer, self.shape), tokenizer, self.tokenizer)


@dataclass(frozen=True, kw_only=True)
class MaskingFlags:
    """The part of a text that is masked.

    Attributes:
        block: Tokens per block or text, special tokens included.
        mask_rate: Share of the tokens that are masked.
    """

    block: int = count(128, least=8)
    mask_rate: float = value(0.15, metavar="RATE", min=0.01, max=0.9)


def settle(
    context: typer.Context,
    start: StartFlags | None,
    optimizer: AnyOptimizer,
    inputs: Sequence[str],
    output: str,
) -> AnyOptimizer:
    """Refuse flags that do not go together, before any work is done.

    Returns:
        The settings with --steps instead of the default --epochs, and a micro-batch.
    """
    if start is not None:
        start.check()
    if optimizer.steps is not None:
        refuse_if(is_given(context, "epochs"), "--steps", "cannot be combined with --epochs")
        optimizer = dataclasses.replace(optimizer, epochs=None)
    stop = getattr(optimizer, "stop_epoch", None)
    if stop is not None and optimizer.epochs is not None:
        why = f"{stop} is after the last of the {optimizer.epochs} that --epochs schedules"
        refuse_if(stop > optimizer.epochs, "--stop-epoch", why)
    check_streams(inputs, output)
    return dataclasses.replace(optimizer, micro_batch=optimizer.micro_batch or optimizer.batch_size)


@dataclass(frozen=True)
class PretrainFlags:
    """The flags that the systems have in common.

    Attributes:
        target: folder of the run.
        inputs: files to train on.
        valid: files to evaluate on.
        masking: the part of a text to mask; None for a system that masks nothing.
        optimizer: as `settle` returns it.
        checkpoints: when it reports and saves.
        seed: decides every random choice.
        runtime: where it computes.
    """

    target: RunFolder
    inputs: Sequence[str]
    valid: Sequence[str] | None
    masking: MaskingFlags | None
    optimizer: Optimizer
    checkpoints: Checkpoints
    seed: int
    runtime: Runtime

    def train(
        self,
        open_models: Callable[[], Any],
        make: Callable[..., Pretraining],
        weights: Mapping[str, float],
        *sources: str | None,
        gradient_checkpointing: bool = False,
        keep_every: int | None = None,
    ) -> None:
        """Make the network, train it to the last step, and write the run.

        Args:
            open_models: returns the models to start from, or draws them; no folder is made before.
            make: makes the network of these and, by name, of the settings that every
                `Pretraining` has.
            weights: weights of the losses.
            *sources: names of the models, which the folder may not hold.
            gradient_checkpointing: use less memory and more time.
            keep_every: steps between encoders that are kept.
        """
        import torch

        from vgtools.io.trust import have_same_content
        from vgtools.training import processes
        from vgtools.training.session import Session, pretrain, process_device

        device = process_device(self.runtime.device)
        folder = run_folder(self.target.output, self.target.restart, *sources)
        torch.manual_seed(self.seed)
        models = open_models()
        with Session(
            "pretrain",
            folder,
            device,
            quiet=self.runtime.quiet,
            save_seconds=60 * self.checkpoints.checkpoint_minutes,
            save_steps=self.checkpoints.checkpoint_steps,
        ) as session:
            with processes.after_first():
                system = make(
                    models,
                    session=session,
                    inputs=self.inputs,
                    valid=self.valid or [],
                    weights=weights,
                    dtype=self.optimizer.dtype,
                    gradient_checkpointing=gradient_checkpointing,
                )
            for path in self.valid or ():
                if any(have_same_content(path, other) for other in self.inputs):
                    session.note(f"{plain(path)}: is to evaluate on, and also learned from")
            pretrain(session, system, self._config(), self.target.restart, keep_every)

    def _config(self) -> dict[str, Any]:
        """Return the flags that decide the weights or the records, for `run.json`."""
        return {
            **({} if self.masking is None else dataclasses.asdict(self.masking)),
            **dataclasses.asdict(self.optimizer),
            "log_every": self.checkpoints.log_every,
            "eval_every": self.checkpoints.eval_every,
            "seed": self.seed,
        }


def parse_weights(given: Sequence[str] | None, names: tuple[str, ...]) -> dict[str, float]:
    """Return the weight of each loss by name, without weights of 0; empty if none is given."""
    weights: dict[str, float] = {}
    for item in given or ():
        name, _, number = item.partition("=")
        refuse_if(name not in names, "--weight", f"{name!r} is not one of {', '.join(names)}")
        try:
            weights[name] = float(number)
        except ValueError:
            raise typer.BadParameter(
                f"expected NAME=NUMBER, for example mlm=1.0, got {item!r}", param_hint="--weight"
            ) from None
    valid = all(0 <= value < float("inf") for value in weights.values())
    wrong = not valid or (weights and not any(weights.values()))
    refuse_if(wrong, "--weight", "weights are 0 or more, and at least one is positive")
    return {name: value for name, value in weights.items() if value}
