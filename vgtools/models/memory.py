"""Batches that are halved when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from vgtools.io.arrays import Array
from vgtools.io.errors import make_room

Result = TypeVar("Result")


def in_batches(
    order: Array, size: int, work: Callable[[Array], Result], hint: Callable[[int], str]
) -> Iterator[tuple[Array, Result]]:
    """Yield (numbers, result of `work` on them) for consecutive parts of an order.

    If memory runs out, this part and all after it are half as large.

    Args:
        order: (N,) numbers of items; items that need most memory come first.
        size: numbers per part.
        work: called with (B,) of the numbers.
        hint: called with one number: the name of the item that did not fit, and a way out.

    Raises:
        DataError: memory ran out with a single item (exit 70).
    """
    done = 0
    while done < len(order):
        part = order[done : done + size]
        try:
            result = work(part)
        except (RuntimeError, MemoryError) as error:
            make_room(error, hint(int(part[0])) if len(part) == 1 else "")
            size = len(part) // 2
            continue
        yield part, result
        done += len(part)
