"""`vg compare weights`, `words`, `sizes`: encoders side by side."""

from __future__ import annotations

from typing import Annotated

from vgtools.commands.compare.flags import Reported
from vgtools.commands.options import Argument, Count, File, Offline, Seed, Table, Value, refuse_if
from vgtools.commands.signature import flags


@flags
def weights(
    refs: Annotated[list[str], Argument("ENCODER")],
    *,
    noise: Annotated[str | None, Value("DIR")] = None,
    magnitude: Annotated[
        float | None,
        Value("NUMBER", min=0, show_default="the second encoder's distance from the first"),
    ] = None,
    table: Table = False,
    seed: Seed = 0,
    offline: Offline = False,
) -> None:
    """Compare weights: how far encoders are from the first.

    Mean |difference| over the parameters that both have, in total and by name. A CLIP is its text
    encoder here. --noise writes the first with noise of that size, the control of the Vokenization
    paper's Table 3.

    Examples:

        vg compare weights google-bert/bert-base-uncased run.vokens | jq .difference

        vg compare weights google-bert/bert-base-uncased --noise bert.noise --magnitude 6.5e-3

    Args:
        refs: Hub name, directory, vg run or builtin:NAME.
        noise: Write the first encoder with Gaussian noise to DIR.
        magnitude: Mean |noise|.
    """
    unknown = magnitude is None
    why = "needs a second encoder, or --noise DIR with --magnitude"
    refuse_if(len(refs) < 2 and (noise is None or unknown), "ENCODER", why)
    refuse_if(magnitude is not None and noise is None, "--magnitude", "belongs to --noise")
    many = noise is not None and unknown and len(refs) > 2
    refuse_if(many, "--noise", "needs --magnitude, or exactly two encoders")
    from vgtools.models.weights import compare_encoders
    from vgtools.reports.tables import show, weights_table

    records = compare_encoders(refs, noise, magnitude, seed)
    show(records, [weights_table(records)], table)


@flags
def words(
    refs: Annotated[list[str], Argument("VECTORS")],
    *,
    words: Annotated[str | None, File(show_default="all common")] = None,
    reported: Reported = None,
    table: Table = False,
    seed: Seed = 0,
    offline: Offline = False,
) -> None:
    """Compare vocabularies: how alike the input vectors of their common words are.

    By projection-weighted canonical correlations (XDBERT, Table 2). Chance alone gives far more
    than 0, and more for fewer words: the same with shuffled rows, and random vectors, are printed
    next to it.

    Examples:

        vg compare words builtin:minilm builtin:glove-50d --table

        vg compare words google-bert/bert-base-uncased openai/clip-vit-base-patch32 --reported 2

    Args:
        refs: Encoders, CLIPs or word vectors.
        words: Words to compare, one per line.
    """
    from vgtools.reports import tables
    from vgtools.systems.xdbert import vocabularies

    more = tables.reported(reported, "pwcca") if reported else []
    records = [*vocabularies.compare_words(refs, words, seed), *more]
    tables.show(records, [tables.pwcca_table(records)], table)


@flags
def sizes(
    refs: Annotated[list[str], Argument("ENCODER")],
    *,
    cross_layers: Annotated[int | None, Count(max=256)] = None,
    reported: Reported = None,
    table: Table = False,
    offline: Offline = False,
) -> None:
    """Compare sizes: widths, layers and parameters of configurations; no weights are read.

    Examples:

        vg compare sizes bert-base.json clip.json --cross-layers 2 --reported xdbert:6

    Args:
        refs: Encoder, CLIP, or the config.json of one.
        cross_layers: Add each encoder joined to each CLIP by N cross-modal layers.
    """
    from vgtools.reports import tables
    from vgtools.systems.xdbert.parameters import describe_all

    more = tables.reported(reported, "sizes") if reported else []
    records = [*describe_all(refs, cross_layers), *more]
    joined = any(record["type"] == "xdbert" for record in records if "source" not in record)
    why = "needs a CLIP and a language encoder to join"
    refuse_if(cross_layers is not None and not joined, "--cross-layers", why)
    tables.show(records, [tables.sizes_table(records)], table)
