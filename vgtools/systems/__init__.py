"""One package per paper; its docstring maps sections to the definitions that implement them."""

from __future__ import annotations

import importlib
from typing import Any

from vgtools.io.errors import DataError

# The module that searches and embeds by a run of vg train-matcher, by the run's kind. Dual
# encoders, and runs of vg pretrain clip among them, have the module of "matcher".
MATCHERS = {
    "matcher": "vgtools.systems.vokenization.retrieve",
    "retriever": "vgtools.systems.visual_awareness.retrieve",
}


def matcher_system(run: str) -> Any:
    """Return the module of a matcher, which has `open_bank` and `open_search`.

    It is a run of vg train-matcher, or a dual encoder.

    Raises:
        DataError: no finished run (66), or of another command (65).
    """
    from vgtools.models.dual import is_dual
    from vgtools.models.sealed import read_run

    kind = "matcher" if is_dual(run) else read_run(run).get("kind")
    if kind not in MATCHERS:
        why = f"expected a run of vg train-matcher ({', '.join(MATCHERS)}), got one of kind"
        raise DataError(f"{why} {kind!r}", run)
    return importlib.import_module(MATCHERS[kind])
