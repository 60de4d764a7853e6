"""The array type of every signature; apart from `vgtools.io`, which must not import numpy at start-up."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
