"""The array type of every signature; not in `vgtools.io`, which must not import numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
