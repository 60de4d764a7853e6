"""One package per paper; its docstring maps sections to the definitions that implement them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vgtools.io import hub
from vgtools.io.errors import DataError

if TYPE_CHECKING:
    from vgtools.images.maps import Grids, OpenedMaps

# The module that searches and embeds by a run of vg train-matcher, by the run's kind. Dual
# encoders, and runs of vg pretrain clip among them, have the module of "matcher".
MATCHERS = {
    "matcher": "vgtools.systems.vokenization.retrieve",
    "retriever": "vgtools.systems.visual_awareness.retrieve",
}
# The module that makes maps of heat by it.
LOCATORS = {
    "matcher": "vgtools.systems.vokenization.locate",
    "retriever": "vgtools.systems.visual_awareness.concepts",
}
_EMOJI = "builtin:emoji"  # an index, and the run of its matcher
_VISUALBERT = "vgtools.systems.visualbert.model"


def placed(ref: str, models: bool) -> str:
    """Return where an index, a run or rows are on this machine, fetched or unpacked if needed.

    Args:
        ref: a path, `builtin:emoji`, or a repository as `hub.placed` takes it.
        models: a run is asked for, or a model of another program, which keeps its name.

    Raises:
        DataError: as `hub.placed`; or the package of a builtin is missing (69).
    """
    if ref == _EMOJI:
        emoji = importlib.import_module("vgtools.systems.vokenization.emoji")
        return str(emoji.run() if models else emoji.bank())
    return hub.placed(ref, models)


def matcher_system(run: str, modules: Mapping[str, str] = MATCHERS) -> Any:
    """Return the module of a matcher, which has `open_bank` and `open_search`.

    It is a run of vg train-matcher, or a dual encoder. Modules of `LOCATORS` have `open_locator`.

    Raises:
        DataError: no finished run (66), or of another command (65).
    """
    from vgtools.models.dual import is_dual
    from vgtools.models.sealed import read_run

    kind = "matcher" if is_dual(run) else str(read_run(run).get("kind"))
    if kind not in modules:
        why = f"expected a run of vg train-matcher ({', '.join(modules)}), got one of kind"
        raise DataError(f"{why} {kind!r}", run)
    return importlib.import_module(modules[kind])


def open_maps(
    run: str,
    feats: str,
    *,
    heat: str | None = None,
    dims: int | None = None,
    usual_dims: int = 180,
    device: str = "cpu",
) -> tuple[OpenedMaps, Grids]:
    """Open a grid of features with the matcher that finds texts in it.

    Args:
        run: a run of vg train-matcher, or a dual encoder.
        feats: the grid.
        heat: `concepts`, `relevance` or `gradient`; None: the first that the run allows.
        dims: dimensions of concepts.
        usual_dims: their number where it is not given.
        device: as `--device`.

    Raises:
        DataError: as `open_grids`; not a finished run, one of another kind, or of another backbone
            or width than the grid; or a heat that it has not (usage).
    """
    from vgtools.images.maps import open_grids
    from vgtools.models.references import check_same

    grids = open_grids(feats)
    system = matcher_system(run, LOCATORS)
    opened: OpenedMaps = system.open_locator(run, heat, dims, usual_dims, device)
    check_same("backbone", grids.manifest.get("backbone"), opened.backbone, grids.path)
    grids.check_width(opened.width, run)
    return opened, grids


def open_joint(ref: str, *, device: str, dtype: str = "float32") -> Any:
    """Open a model to read its attention: a VisualBERT, or a text encoder.

    Returns:
        A `JointEncoder`.

    Raises:
        DataError: as `open_encoder` of `vgtools.models.attention`.
    """
    from vgtools.models.attention import open_encoder
    from vgtools.models.encoder import read_config
    from vgtools.models.references import pick_device

    if not read_config(ref).get("bypass_transformer"):
        return open_encoder(ref, device=device, dtype=dtype)
    # transformers does not return the attention of its last layer, the one that regions enter
    own = importlib.import_module(_VISUALBERT).open_attention
    return own(ref, device=pick_device(device), dtype=dtype)
