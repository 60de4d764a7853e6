"""The exact search on a GPU: the bank is there, and is looked through tile by tile."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vgtools.io.arrays import Array
from vgtools.retrieval.exact import (
    REFINE,
    SearchResult,
    finite,
    largest_norm,
    nothing_found,
)

_GROUP = 64  # images whose largest product is compared first
_LOOKED = 1 << 17  # groups that are looked into at a time: bounds the memory where all are alike
_QUERIES = 512  # per product at least, so that each tile of a large bank is read only once for them
_ROWS = 1 << 16  # copied to the device at a time


class DeviceBank:
    """The image bank on a GPU, searched exactly.

    Low-precision products choose candidates, which are compared in float64.

    Args:
        bank: (N, E) float32; it may be a memory map.
        device: the GPU.
        coarse: dtype of the products that choose candidates.
    """

    def __init__(
        self, bank: Array, device: torch.device, coarse: torch.dtype | None = None
    ) -> None:
        default = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.coarse = coarse or default
        count, dim = bank.shape
        self.bank = torch.empty((count, dim), device=device)
        for i in range(0, count, _ROWS):
            self.bank[i : i + _ROWS] = torch.from_numpy(np.array(bank[i : i + _ROWS], np.float32))
        # Copies of the last row fill the last group; they are dropped before anything is compared.
        whole = count + -count % _GROUP
        self._padded = torch.empty((whole, dim), dtype=self.coarse, device=device)
        self._norm = 0.0
        if count:
            self._padded[:count] = self.bank
            self._padded[count:] = self._padded[count - 1]
            self._norm = largest_norm(bank)

    def search(
        self, queries: Tensor, k: int = 1, budget: int | None = None, dtype: Any = np.float32
    ) -> SearchResult:
        """Return the k best rows of each query.

        Args:
            queries: (Q, E) float32, on the device.
            k: images per query; ties go to the lower row.
            budget: bytes of scores held at a time, one tile of 64 images at least; None takes 2
                GiB, but no more than a quarter of the memory that is free.
            dtype: type of the scores that are returned.
        """
        best = nothing_found(len(queries), k, dtype)
        if not len(queries) or not len(self.bank):
            return best
        # The products add up in float32, whatever the type of their inputs: this bounds the
        # rounding of the sum.
        bound = (queries.shape[1] + 4) * 2.0**-24
        if self.coarse != torch.float32:
            # Both inputs and the result are rounded to the coarse type as well.
            unit = torch.finfo(self.coarse).eps / 2
            bound += 3 * unit + 3 * unit**2
        norm = finite(float(torch.linalg.vector_norm(queries, dim=1).max()))
        # Twice the bound, because the best row's product may be too low and another row's too high;
        # 1.01 covers the terms of higher order, and 1e-37 products that underflow.
        margin = 2 * 1.01 * bound * norm * self._norm + 1e-37
        held = (budget or self._room()) // self.coarse.itemsize  # scores
        step = min(len(queries), max(_QUERIES, held // len(self._padded)))
        tile = max(1, held // step // _GROUP) * _GROUP
        for i in range(0, len(queries), step):
            rows, scores = self._best(queries[i : i + step], k, tile, margin)
            best.rows[i : i + step] = rows.cpu().numpy()
            best.scores[i : i + step] = scores.masked_fill(rows < 0, 0).cpu().numpy()
        return best

    def _room(self) -> int:
        """Return the bytes that scores may take."""
        if self.bank.device.type != "cuda":
            return 1 << 29
        free, _ = torch.cuda.mem_get_info(self.bank.device)
        return min(1 << 31, free // 4)

    def _best(self, queries: Tensor, k: int, tile: int, margin: float) -> tuple[Tensor, Tensor]:
        """Return the k best rows of each query, and their scores, without leaving the device.

        The k-th largest maximum of groups is at most the k-th largest score, so that only the
        maxima are sorted, and only groups that reach it are looked into.
        """
        size = _GROUP
        while size > 1 and len(self.bank) < 4 * k * size:  # few maxima would keep nearly all
            size //= 2
        coarse = queries.to(self.coarse)
        tops = coarse.new_full((len(queries), k), -torch.inf)
        rows = torch.full_like(tops, -1, dtype=torch.int64)
        scores = tops.double()
        for start in range(0, len(self._padded), tile):
            products = coarse @ self._padded[start : start + tile].T  # (q, tile)
            products[:, len(self.bank) - start :] = -torch.inf  # the copies
            # A group's images lie apart: maxima of neighbours take a GPU eight times as long.
            groups = products.view(len(queries), size, -1)
            most = groups.amax(1)  # (q, groups): the only pass over all scores
            tops = torch.cat([tops, most], dim=1).topk(k, dim=1).values
            least = tops[:, -1:].float() - margin
            near = torch.nonzero(most >= least)
            for query, group in (part.unbind(1) for part in near.split(_LOOKED)):
                reach = groups[query, :, group] >= least[query]
                inside, place = torch.nonzero(reach, as_tuple=True)
                owner = query[inside]
                row = start + place * groups.shape[2] + group[inside]
                if start + tile > len(self.bank):
                    real = row < len(self.bank)
                    owner = owner[real]
                    row = row[real]
                found = self._exact(queries, owner, row)
                rows, scores = _merged(rows, scores, owner, row, found)
        return rows, scores

    def _exact(self, queries: Tensor, query: Tensor, row: Tensor) -> Tensor:
        """Return the float64 products of (query, row) pairs."""
        parts = zip(query.split(REFINE), row.split(REFINE), strict=True)
        return torch.cat([(queries[q].double() * self.bank[r].double()).sum(1) for q, r in parts])


def _merged(
    rows: Tensor, scores: Tensor, query: Tensor, row: Tensor, score: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the k best rows of each query and their scores, ties to the lower row.

    Args:
        rows: (Q, k) best rows so far, -1 without.
        scores: (Q, k) their scores, -inf without a row.
        query: (F,) whose row is found.
        row: (F,) found rows.
        score: (F,) their scores.
    """
    count, k = rows.shape
    every = torch.arange(count, device=rows.device)
    owner = torch.cat([every.repeat_interleave(k), query])
    both = torch.cat([rows.flatten(), row])
    value = torch.cat([scores.flatten(), score])
    # The order is by query, then by score, then by row: the last of stable sorts counts most.
    order = both.argsort()
    order = order[value[order].argsort(descending=True, stable=True)]
    order = order[owner[order].argsort(stable=True)]
    first = torch.searchsorted(owner[order], every)
    kept = order[first[:, None] + torch.arange(k, device=rows.device)]
    return both[kept], value[kept]
