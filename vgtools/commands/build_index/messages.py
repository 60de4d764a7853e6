"""The messages of a finished index: images left out, licences, candidates, recall."""

from __future__ import annotations

from typing import Any

from vgtools.io.errors import amount
from vgtools.io.process import note, warn


def say(facts: dict[str, Any], listed: str) -> None:
    """Print the images left out, the candidates measured and the one chosen."""
    if "duplicates" in facts:
        cosine, count = facts["duplicates"].values()
        what = f"left out: {amount(count, 'image')} of cosine {cosine:g} or more with another"
        note("build-index", f"{what}, listed in {listed}")
    if "licenses" in facts:
        counts = [f"{name} {count:,}" for name, count in facts["licenses"].items()]
        rest = f" and {len(counts) - 5} more" if len(counts) > 5 else ""
        note("build-index", f"licences: {', '.join(counts[:5])}{rest}")
    if "auto" in facts:
        for tried in facts["auto"]["tried"]:
            found = f"recall {tried['recall_at_1']:.1%}, {tried['bytes']:,} bytes"
            what = f"{tried['factory']} with --nprobe {tried['nprobe']}: {found}"
            note("build-index", f"measured on {facts['auto']['sample']:,} images: {what}")
        reached = not facts["auto"]["tried"] or any(
            tried["recall_at_1"] >= facts["auto"]["recall"] for tried in facts["auto"]["tried"]
        )
        less = "" if reached else f", which falls short of --recall {facts['auto']['recall']:g}"
        note("build-index", f"chose --factory {facts['factory']}{less}")
    if facts["recall_at_1"] is None:
        return
    words = f"{facts['recall_at_1']:.1%} of the vocabulary's words"
    lost = f"its images are {facts['relevance_lost']:.4f} less relevant in the mean"
    probed = f" with --nprobe {facts['nprobe']}" if facts["nprobe"] else ""
    warn("build-index", f"{facts['factory']}{probed} finds the right image for {words}; {lost}")
