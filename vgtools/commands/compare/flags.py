"""Flags that several sub-commands of `vg compare` have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vgtools.commands.options import GroundingFlags, Value, refuse_if
from vgtools.io.settings import file, value

Reported = Annotated[
    str | None,
    Value("[PAPER:]N", "Add the rows of a paper's table N, marked as reported."),
]
Split = Annotated[str, Value("NAME", "Compare scores of this split; test needs labels.")]


@dataclass(frozen=True, kw_only=True)
class GroundedTasks(GroundingFlags):
    """How much of each task's text is visually grounded.

    Attributes:
        text: With --grounding: a task's text, if not the run's data.
        plot: With --grounding: draw it into this .svg or .png.
    """

    text: list[str] | None = value(None, metavar="TASK=FILE")
    plot: str | None = file(None)

    def check(self) -> None:
        """Refuse flags that need one another, and a drawing of another kind."""
        why = "belongs to --grounding, which defines grounded words"
        alone = self.grounding is None and (self.plot is not None or self.text)
        refuse_if(alone, "--plot/--text", why)
        other = self.plot is not None and not self.plot.endswith((".svg", ".png"))
        refuse_if(other, "--plot", f"must end in .svg or .png, got {self.plot!r}")

    def files(self) -> dict[str, str]:
        """Return the file of each task that --text names."""
        from vgtools.tasks.table import known_name

        files: dict[str, str] = {}
        for item in self.text or ():
            task, _, path = item.partition("=")
            why = f"expected TASK=FILE, for example sst-2=train.tsv, got {item!r}"
            refuse_if(not path, "--text", why)
            files[known_name(task)] = path
        return files
