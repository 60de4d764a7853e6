"""The bootstrap over groups, such as photos, whose items are drawn together.

Source: Efron 1979 (Bootstrap methods), percentile intervals.
"""

from __future__ import annotations

import numpy as np

from vgtools.io.arrays import Array

_ENDS = (0.025, 0.975)


def draws(groups: int, samples: int, seed: int = 0) -> Array:
    """Return how often each sample draws each group: (samples, groups) int64."""
    rng = np.random.default_rng(seed)
    drawn: Array = rng.multinomial(groups, np.full(groups, 1 / groups), samples)
    return drawn


def ends(values: Array) -> list[float]:
    """Return the ends of the 95 % interval of the samples' values, (S,)."""
    return [float(end) for end in np.quantile(values, _ENDS)]


def with_interval(name: str, value: float, samples: Array, scale: float = 1.0) -> dict[str, float]:
    """Return a value and its 95 % interval under NAME, NAME_low and NAME_high.

    Args:
        name: NAME.
        value: value of all items.
        samples: (S,) values of the samples.
        scale: factor of the three, 100 for percent.
    """
    numbers = (value, *ends(samples))
    keys = (name, f"{name}_low", f"{name}_high")
    return {key: scale * float(number) for key, number in zip(keys, numbers, strict=True)}
