"""Flags of `vg compare`: what belongs together, and what contradicts what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vgtools.commands.options import Count, File, Flag, Value, refuse_if


@dataclass(frozen=True, kw_only=True)
class Scores:
    """How scores are compared."""

    baseline: Annotated[
        str | None, Value("RUN", "Run that the others are compared with.", show_default="the first")
    ] = None
    median: Annotated[bool, Flag("--median", help="Show the median over seeds, not the mean.")] = (
        False
    )
    majority: Annotated[
        bool, Flag("--majority", help="Add the score of the most frequent label.")
    ] = False
    holm: Annotated[
        bool, Flag("--holm", help="Correct p-values for the number of comparisons.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Grounding:
    """Gains beside the share of tokens that are visually grounded."""

    grounding: Annotated[
        str | None,
        File("Captions, or a list of vg stats --grounded-types: gain against grounding ratio."),
    ] = None
    text: Annotated[
        list[str] | None,
        Value("TASK=FILE", "With --grounding: a task's text, if not the run's data."),
    ] = None
    tokenizer: Annotated[
        str, Value("REF", "With --grounding: what a token is, as in vg stats.", "--tokenizer", "-t")
    ] = "words"
    grounded_above: Annotated[
        int, Count("A type is grounded if captions contain it more than N times.", 0)
    ] = 100
    plot: Annotated[
        str | None, File("With --grounding: draw gains, or examples, into this .svg or .png.")
    ] = None

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


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Single examples in place of scores."""

    by_example: Annotated[
        bool,
        Flag(
            "--by-example",
            help="Which examples the second of two RUNs answers better and worse than the first; "
            "with --grounding how grounded they are.",
        ),
    ] = False
    examples: Annotated[
        int, Count("With --by-example and --grounding: print the N most extreme of each group.", 0)
    ] = 0


@dataclass(frozen=True, kw_only=True)
class Encoders:
    """Encoders in place of scores."""

    weights: Annotated[
        bool,
        Flag("--weights", help="RUNs are encoders: how far their weights are from the first's."),
    ] = False
    noise: Annotated[
        str | None,
        Value("DIR", "With --weights: write the first encoder with Gaussian noise to DIR."),
    ] = None
    magnitude: Annotated[
        float | None,
        Value(
            "NUMBER",
            "Mean |noise|.",
            min=0,
            show_default="the second encoder's distance from the first",
        ),
    ] = None
    pwcca: Annotated[
        bool,
        Flag(
            "--pwcca", help="RUNs are encoders, CLIPs or word vectors: how alike their words are."
        ),
    ] = False
    words: Annotated[
        str | None, File("With --pwcca: words to compare, one per line.", show_default="all common")
    ] = None
    similarity: Annotated[
        str | None,
        File(
            "RUNs are encoders or word vectors: how well they rank these pairs of words; with "
            "--grounding those of grounded words apart."
        ),
    ] = None
    describe: Annotated[
        bool,
        Flag(
            "--describe", help="RUNs are encoders, CLIPs or their config.json: sizes, parameters."
        ),
    ] = False
    cross_layers: Annotated[
        int | None,
        Count("With --describe: add each encoder joined to each CLIP by N cross-modal layers."),
    ] = None


def check(
    runs: int,
    scores: Scores,
    ground: Grounding,
    single: Examples,
    encoders: Encoders,
    split: str,
    reported: str | None,
) -> None:
    """Refuse flags that contradict one another."""
    modes = {
        "--weights": encoders.weights,
        "--pwcca": encoders.pwcca,
        "--similarity": encoders.similarity is not None,
        "--describe": encoders.describe,
        "--by-example": single.by_example,
    }
    chosen = [flag for flag, given in modes.items() if given]
    mode = chosen[0] if chosen else ""
    refuse_if(len(chosen) > 1, chosen[-1] if chosen else None, f"conflicts with {mode}")
    alone = not encoders.weights and (encoders.noise, encoders.magnitude) != (None, None)
    refuse_if(alone, "--noise/--magnitude", "belongs to --weights")
    refuse_if(encoders.words and not encoders.pwcca, "--words", "belongs to --pwcca")
    refuse_if(
        encoders.cross_layers and not encoders.describe, "--cross-layers", "belongs to --describe"
    )
    plot = ground.plot
    why = "belongs to --grounding, which defines what is grounded"
    refuse_if(ground.grounding is None and (plot is not None or ground.text), "--plot/--text", why)
    other = plot is not None and not plot.endswith((".svg", ".png"))
    refuse_if(other, "--plot", f"must end in .svg or .png, got {plot!r}")
    of_scores = scores != Scores()
    lone = not runs and (mode or reported is None or of_scores or ground.grounding)
    refuse_if(lone, "RUN", "name a run of vg finetune; only --reported has rows of its own")
    of_runs = ground.grounding is not None or split != "dev"
    clash = "--baseline, --median, --split, --majority, --holm, --reported or --grounding"
    why = f"compares encoders and cannot be combined with {clash}"
    refuse_if(encoders.weights and (of_scores or of_runs or reported), "--weights", why)
    clash = clash.replace(", --reported", "")
    why = f"is about encoders and cannot be combined with {clash}"
    refuse_if(mode in ("--pwcca", "--describe") and (of_scores or of_runs), mode, why)
    beyond = of_scores or reported or split != "dev" or plot is not None or ground.text
    why = "is about encoders; of the flags of scores it takes only --grounding"
    refuse_if(mode == "--similarity" and beyond, mode, why)
    if single.by_example:
        why = "compares examples and cannot be combined with --baseline, --median, --majority or"
        refuse_if(of_scores, "--by-example", f"{why} --holm")
        refuse_if(runs != 2, "--by-example", f"needs two RUNs, the baseline first; got {runs}")
    unused = single.examples and not (single.by_example and ground.grounding)
    refuse_if(unused, "--examples", "needs --by-example and --grounding, which marks their words")
