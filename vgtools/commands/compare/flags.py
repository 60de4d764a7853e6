"""Flags that several sub-commands of `vg compare` have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from vgtools.commands.options import Count, Flag, Value, open_vocabulary, refuse_if
from vgtools.io.settings import count, file, value

if TYPE_CHECKING:
    from vgtools.text.ngrams import Vocabulary

Table = Annotated[bool, Flag("--table", help="Print markdown, also into a pipe.")]
Reported = Annotated[
    str | None,
    Value("[PAPER:]N", "Add the rows of a paper's table N, marked as reported."),
]
Samples = Annotated[int, Count("Bootstrap samples of the p-values and intervals.", 100)]
Split = Annotated[str, Value("NAME", "Compare scores of this split; test needs labels.")]


@dataclass(frozen=True, kw_only=True)
class GroundingFlags:
    """Words that are visually grounded."""

    grounding: str | None = file(
        None, "Captions, or a list of vg stats --grounded-types: decide which words are grounded."
    )
    tokenizer: str = value(
        "words",
        "With --grounding: definition of a token, as in vg stats.",
        "--tokenizer",
        "-t",
        metavar="REF",
    )
    grounded_above: int = count(
        100, "A type is grounded if captions contain it more than N times.", 0
    )

    def types(self, offline: bool) -> tuple[Vocabulary, frozenset[str]] | None:
        """Return the vocabulary and its grounded types; None without --grounding."""
        if self.grounding is None:
            return None
        from vgtools.tasks.compare import grounded_types

        types = open_vocabulary(self.tokenizer, offline)
        return types, grounded_types(self.grounding, types, self.grounded_above)


@dataclass(frozen=True, kw_only=True)
class GroundedTasks(GroundingFlags):
    """How much of each task's text is visually grounded."""

    text: list[str] | None = value(
        None, "With --grounding: a task's text, if not the run's data.", metavar="TASK=FILE"
    )
    plot: str | None = file(None, "With --grounding: draw it into this .svg or .png.")

    def check(self) -> None:
        """Refuse flags that need one another, and a drawing of another kind."""
        why = "belongs to --grounding, which defines grounded words"
        alone = self.grounding is None and (self.plot is not None or self.text)
        refuse_if(alone, "--plot/--text", why)
        other = self.plot is not None and not self.plot.endswith((".svg", ".png"))
        refuse_if(other, "--plot", f"must end in .svg or .png, got {self.plot!r}")

    def files(self) -> dict[str, str]:
        """Return the file of each task that --text names."""
        from vgtools.tasks.table import find_task

        files: dict[str, str] = {}
        for item in self.text or ():
            task, _, path = item.partition("=")
            why = f"expected TASK=FILE, for example sst-2=train.tsv, got {item!r}"
            refuse_if(not path, "--text", why)
            files[find_task(task).name] = path
        return files
