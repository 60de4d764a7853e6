"""Records of a training in TensorBoard, Weights & Biases or Trackio, by Accelerate's trackers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vgtools.io.errors import DataError, Exit, plain
from vgtools.io.files import flat_numbers
from vgtools.io.remote import is_offline

_PROJECT = "vgtools"
_chosen: str | None = None


def log_to(name: str | None) -> str | None:
    """Log the training of this process with a tracker from now on (`--log-to`); return which.

    Raises:
        DataError: a package is missing (69).
    """
    global _chosen
    if name is not None and not (find_spec("accelerate") and find_spec(name)):
        more = "" if name == "tensorboard" else f" {name}"
        why = f"--log-to {name} needs packages: pip install 'vgtools[trackers]'{more}"
        raise DataError(why, code=Exit.UNAVAILABLE)
    _chosen = name
    return name


@contextmanager
def tracked(
    folder: Path, config: Mapping[str, Any]
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Open the tracker of a run, if one is chosen; yield the function that takes records.

    Raises:
        DataError: the tracker does not start, for example without a login (69).
    """
    if _chosen is None:
        yield lambda record: None
        return
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    if is_offline():
        os.environ["WANDB_MODE"] = "offline"
    PartialState(cpu=True)  # the trackers' own messages need it
    kind = LOGGER_TYPE_TO_CLASS[_chosen]
    try:
        if kind.requires_logging_directory:
            tracker = kind(folder.name, logging_dir=folder.absolute().parent / _chosen)
            tracker.start()
        else:
            tracker = kind(_PROJECT, name=folder.name)
            tracker.start()
            tracker.store_init_configuration(dict(config))
    except Exception as error:  # each tracker has its own
        why = f"--log-to {_chosen}: {plain(error) or type(error).__name__}"
        raise DataError(why, code=Exit.UNAVAILABLE) from None

    def log(record: Mapping[str, Any]) -> None:
        values = flat_numbers(record)
        seed = values.pop("seed", None)
        step = values.get("step")
        if seed is not None:
            values = {f"seed-{seed:g}/{name}": value for name, value in values.items()}
            # Each seed starts at its first step; these trackers take no step twice.
            step = step if kind.requires_logging_directory else None
        tracker.log(values, step=None if step is None else int(step))

    try:
        yield log
    finally:
        tracker.finish()
