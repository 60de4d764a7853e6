"""Flags that the sub-commands of `vg probe-attention` share, and the way from a probe to files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vgtools.commands.options import BatchSize, Count, Dtype, Limit, Runtime, Seed, Value, refuse_if
from vgtools.io.errors import DataError, amount
from vgtools.io.inputs import Inputs
from vgtools.io.process import note
from vgtools.io.settings import value

if TYPE_CHECKING:
    from vgtools.systems.attention_probes.probing import Findings, ProbeSettings

Encoder = Annotated[str, Value("REF", "Hub name, directory, vg run or builtin:NAME.")]
Samples = Annotated[int, Count("Resamplings of photos or sentences for the intervals.", 20)]
Output = Annotated[str | None, Value("DIR", "Folder for results, tables, figures, page.")]


@dataclass(frozen=True, kw_only=True)
class Probed:
    """The model and its probe; the fields are some of `probing.Settings`.

    Attributes:
        parser: Gold syntax: a spaCy model, builtin:spacy-sm, or a .conllu file in order.
        relations: How many of the most frequent relations, all, or names (det,pobj).
    """

    encoder: Encoder
    parser: str | None = value(None, metavar="REF")
    relations: str = value("10", metavar="N|all|NAMES")
    samples: Samples = 1000
    batch_size: BatchSize = 32
    limit: Limit = None
    dtype: Dtype = "float32"
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The rows to choose heads on, and the rows to report on.

    Attributes:
        split: Report on the rows of this split.
        select_on: Choose the best heads on this split instead.
    """

    split: str | None = value(None, metavar="NAME")
    select_on: str | None = value(None, metavar="NAME")

    def check(self) -> None:
        """Refuse a split for both."""
        why = "names the split to choose heads on, --split another to report on; give both"
        alone = self.select_on is not None and self.split in (None, self.select_on)
        refuse_if(alone, "--select-on", why)


say = partial(note, "probe-attention")


def open_model(settings: ProbeSettings, runtime: Runtime) -> Any:
    """Return the model to probe, a joint model or a text encoder."""
    from vgtools.systems import open_joint

    return open_joint(settings.encoder, device=runtime.device, dtype=settings.dtype)


def report(
    found: Findings,
    settings: ProbeSettings,
    folder: Path | None,
    inputs: Inputs,
    unit: str,
    *,
    images: str | None = None,
    reported: bool = False,
) -> None:
    """Write the findings into the folder and print their records.

    Args:
        found: findings of the probe.
        settings: settings of the probe.
        folder: for results; None: they are printed alone.
        inputs: files that were read.
        unit: name of one that was counted, a caption or a text.
        images: where the photos are, for the page.
        reported: add the paper's best heads.

    Raises:
        DataError: nothing was found, or the probe ended early, after all is printed.
    """
    from vgtools.reports import probes, tables

    if not found.count:
        left_out = f"no usable captions or texts; {_left_out(found.skipped)}"
        raise found.failure or DataError(left_out, settings.path)
    records = found.records(settings.names(), settings.select_on)
    if reported:
        records[-1:-1] = tables.reported("visualbert:2", "heads")  # the last record sums up
    fault: DataError | None = None
    if folder is not None:
        config = settings.config()
        try:
            probes.save_findings(folder, found, records, config, inputs, images, say)
        except DataError as error:  # such as a full disk: the results still go to stdout
            fault = error
    tables.show(records, probes.results(records), as_markdown=False)
    if +found.skipped:
        say(_left_out(found.skipped))
    if folder is not None and fault is None:
        size = amount(found.count, unit)
        say(f"{size}; tables, figures and page.html are in {folder}")
    for failure in (fault, found.failure):
        if failure is not None:
            raise failure


def _left_out(skipped: Counter[str]) -> str:
    """Return how much was left out, in words."""
    parts = [f"{what}: {count:,}" for what, count in skipped.items() if count]
    return f"skipped: {'; '.join(parts)}"
