"""`vg compare --weights`, `--pwcca`, `--similarity`, `--describe`: encoders side by side."""

from __future__ import annotations

from collections.abc import Sequence

from vgtools.commands.compare.flags import Encoders, Grounding
from vgtools.commands.options import open_vocabulary, refuse_if


def compare_weights(
    refs: Sequence[str], encoders: Encoders, seed: int, offline: bool, markdown: bool
) -> None:
    """Print how far encoders are from the first one; write the first with noise."""
    unknown = encoders.magnitude is None
    lone = len(refs) < 2 and (encoders.noise is None or unknown)
    refuse_if(lone, "--weights", "needs two encoders, or --noise DIR with --magnitude")
    many = encoders.noise is not None and unknown and len(refs) > 2
    refuse_if(many, "--noise", "needs --magnitude, or exactly two encoders")
    from vgtools.models.weights import compare_encoders
    from vgtools.reports.tables import show, weights_table

    records = compare_encoders(refs, encoders.noise, encoders.magnitude, seed, offline)
    show(records, [weights_table(records)], markdown)


def compare_words(
    refs: Sequence[str],
    words: str | None,
    reported: str | None,
    seed: int,
    offline: bool,
    markdown: bool,
) -> None:
    """Print how alike the word vectors of vocabularies are, beside chance."""
    from vgtools.reports.tables import pwcca_table, reported_rows, show
    from vgtools.systems.xdbert import vocabularies

    more = reported_rows(reported, "pwcca") if reported else []
    records = [*vocabularies.compare_words(refs, words, seed, offline=offline), *more]
    show(records, [pwcca_table(records)], markdown)


def compare_similarity(
    refs: Sequence[str],
    path: str,
    ground: Grounding,
    samples: int,
    seed: int,
    offline: bool,
    markdown: bool,
) -> None:
    """Print how well encoders rank pairs of words, those of grounded words apart."""
    from vgtools.reports.tables import show, similarity_table
    from vgtools.tasks import similarity
    from vgtools.tasks.compare import grounded_types

    grounded = None
    if ground.grounding is not None:
        types = open_vocabulary(ground.tokenizer, offline)
        grounded = grounded_types(ground.grounding, types, ground.grounded_above)
    found = similarity.compare_similarity(refs, path, grounded, samples, seed, offline=offline)
    records = list(found)
    show(records, [similarity_table(records)], markdown)


def describe(
    refs: Sequence[str], layers: int | None, reported: str | None, offline: bool, markdown: bool
) -> None:
    """Print the sizes of encoders, and of those that are joined to a CLIP."""
    from vgtools.reports.tables import reported_rows, show, sizes_table
    from vgtools.systems.xdbert.parameters import describe_all

    more = reported_rows(reported, "sizes") if reported else []
    records = [*describe_all(refs, layers, offline=offline), *more]
    joined = any(record["type"] == "xdbert" for record in records if "source" not in record)
    why = "needs a CLIP and a language encoder to join"
    refuse_if(layers is not None and not joined, "--cross-layers", why)
    show(records, [sizes_table(records)], markdown)
