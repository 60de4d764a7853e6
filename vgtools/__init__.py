"""Composable Unix-style tools for visually grounded language learning.

`import vgtools as vg` imports nothing heavy: a name of `__all__` is loaded at its first use. These
names are public and stay; everything else may change with any version.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vgtools.api.banks import (
        ImageBank,
        ImageGrid,
        load_encoder,
        locate,
        open_grid,
        open_index,
        retrieve,
        vokenize,
    )
    from vgtools.api.reading import Arrays, read
    from vgtools.api.rows import HeatRow, ImageRow, Rows, VokenRow
    from vgtools.io.errors import DataError

__version__ = "0.1.0"
__all__ = [
    "Arrays",
    "DataError",
    "HeatRow",
    "ImageBank",
    "ImageGrid",
    "ImageRow",
    "Rows",
    "VokenRow",
    "load_encoder",
    "locate",
    "open_grid",
    "open_index",
    "read",
    "retrieve",
    "vokenize",
]
_MODULES = {
    "api.banks": (
        *("ImageBank", "ImageGrid", "load_encoder", "locate", "open_grid", "open_index"),
        *("retrieve", "vokenize"),
    ),
    "api.reading": ("Arrays", "read"),
    "api.rows": ("HeatRow", "ImageRow", "Rows", "VokenRow"),
    "io.errors": ("DataError",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            value = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
