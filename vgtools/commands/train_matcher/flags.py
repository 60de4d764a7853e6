"""Flags and steps that the systems of `vg train-matcher` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from vgtools.commands.options import is_given
from vgtools.io.errors import amount
from vgtools.io.process import note
from vgtools.io.settings import count, file, preset, value

if TYPE_CHECKING:
    from vgtools.training.splits import CaptionSplits


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The images to validate on.

    Attributes:
        valid: Captions to validate on; their images must also be in FEATS.
        hold_out: Hold N images out of training and validate on them.
        split: If rows have a "split", train on this split.
        valid_split: If rows have a "split", validate on this split.
    """

    valid: str | None = file(None)
    hold_out: int = count(0, least=0)
    split: str = value("train", metavar="NAME")
    valid_split: str | None = value(None, metavar="NAME")


class Presets:
    """A dataclass whose settings have other values in a preset."""

    def settings(self, context: typer.Context, name: str) -> dict[str, Any]:
        """Return the settings of a preset with the flags of the command line, for `run.json`."""
        own = preset(type(self), name)
        kept = {k: v for k, v in own.items() if not is_given(context, k)}
        values = asdict(self) | kept  # type: ignore[call-overload]
        return {key: value for key, value in values.items() if value is not None}


def refuse_processes() -> None:
    """Refuse to train in several processes.

    Raises:
        DataError: there are several (usage).
    """
    from vgtools.io.errors import DataError, Exit
    from vgtools.training import processes

    if processes.world() > 1:
        why = "the images of a step are one another's negatives, which several processes would not"
        why = f"train-matcher is single-process: {why} share; start it without torchrun"
        raise DataError(why, code=Exit.USAGE)


def read_captions(path: str, ids: Sequence[str], validation: Validation) -> CaptionSplits:
    """Return the captions to train and to validate on, of the images with these ids.

    Raises:
        DataError: a row is not a caption of one of them, fewer than 2 images to train on,
            or images that are in both parts (65).
    """
    from vgtools.training.splits import hold_out, read_splits

    splits = read_splits(path, ids, validation.split, validation.valid_split)
    if splits.unsplit:
        left_out = amount(splits.unsplit, "caption")
        note("train-matcher", f"{left_out} without a split left out, others have one")
    if validation.valid is not None:
        splits.valid += read_splits(validation.valid, ids, None, None).train
    return hold_out(splits, validation.hold_out, path, ids)
