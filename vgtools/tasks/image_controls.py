"""Controls of the gain that images bring to a text: its own images, or others instead.

A gain over an encoder without images may come from more parameters; the controls go through the
same layers. They are defined over different texts, whoever finds the images: equal texts have equal
images under each of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError

Choice = Literal["found", "random", "shuffle", "none"]
_CONTROL = 12  # the first seed of a random generator, which names its purpose


def choose_images(
    found: Array, texts: Sequence[Hashable], choice: Choice, bank: Array, split: str
) -> Array:
    """Return the rows of images that texts are shown with, instead of the images found for them.

    - `found`: as they are
    - `random`: as many as were found, drawn from the bank; one may be drawn twice
    - `shuffle`: the images of another text, in one circle of all different texts
    - `none`: no image

    So a text that finds no image also has none under `random`, and no text keeps its own under
    `shuffle`, though two texts may find the same images. The drawn images depend on the split and
    its different texts in their order, not on the seed of a run.

    Args:
        found: (E, K) rows, best first, -1 for none. If equal texts found unlike images, for example
            by other visible words, `shuffle` passes on the images of the last.
        texts: E texts that the images were found for, or keys that are equal for equal texts.
        choice: as above.
        bank: (N,) rows that images are drawn from.
        split: train, dev …

    Returns:
        (E, K) of the type of `found`.

    Raises:
        DataError: `shuffle` of equal texts alone: there is no other text.
    """
    if choice == "found":
        return found
    if choice == "none":
        return np.full_like(found, -1)
    numbers = dict[Hashable, int]()
    place = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.intp)
    each = np.empty((len(numbers), found.shape[1]), found.dtype)
    each[place] = found
    # Not `hash`, which gives a string another number in each process.
    rng = np.random.default_rng([_CONTROL, zlib.crc32(split.encode())])
    if choice == "random":
        drawn = bank[rng.integers(len(bank), size=each.shape)].astype(found.dtype)
        return np.where(found < 0, found, drawn[place])
    if len(each) == 1:
        why = f"--images shuffle takes the images of another text, and the {split} split has one"
        raise DataError(f"{why} text alone; use --images random")
    order = rng.permutation(len(each))
    other = np.empty_like(order)
    other[order] = np.roll(order, 1)  # one circle, so that no text keeps its own
    return np.asarray(each[other][place])
