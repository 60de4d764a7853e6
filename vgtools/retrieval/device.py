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
    merged,
    nothing_found,
    rank_pairs,
)

_GROUP = 64  # images whose largest product is compared first
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
        self, queries: Tensor, k: int = 1, budget: int = 1 << 29, dtype: Any = np.float32
    ) -> SearchResult:
        """Return the k best rows of each query.

        Args:
            queries: (Q, E) float32, on the device.
            k: images per query; ties go to the lower row.
            budget: bytes of scores held at a time; one tile of 64 images at least.
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
        held = budget // self.coarse.itemsize  # scores
        step = min(len(queries), max(_QUERIES, held // len(self._padded)))
        tile = max(1, held // step // _GROUP) * _GROUP
        search = self._nearest if k == 1 else self._several
        for i in range(0, len(queries), step):
            part = slice(i, i + step)
            search(queries[part], tile, margin, SearchResult(best.rows[part], best.scores[part]))
        return best

    def _nearest(self, queries: Tensor, tile: int, margin: float, out: SearchResult) -> None:
        """Write the best row of each query; the choice is made without leaving the device."""
        coarse = queries.to(self.coarse)
        floor = queries.new_full((len(queries),), -torch.inf)  # the best coarse product so far
        best = floor.double()
        lowest = torch.full_like(floor, len(self.bank), dtype=torch.int64)
        for start in range(0, len(self._padded), tile):
            scores = coarse @ self._padded[start : start + tile].T  # (q, tile)
            groups = scores.view(len(queries), -1, _GROUP)
            tops = groups.amax(2).float()  # (q, groups): the only pass over all scores
            floor = torch.maximum(floor, tops.amax(1))
            least = floor - margin
            query, group = torch.nonzero(tops >= least[:, None], as_tuple=True)
            inside = groups[query, group].float() >= least[query, None]
            near, column = torch.nonzero(inside, as_tuple=True)
            query = query[near]
            row = start + group[near] * _GROUP + column
            real = row < len(self.bank)
            query = query[real]
            row = row[real]
            score = self._exact(queries, query, row)
            before = best.clone()
            best.scatter_reduce_(0, query, score, "amax")
            # A row of an earlier tile is lower: it stays unless its score is exceeded.
            lowest[best > before] = len(self.bank)
            top = score == best[query]
            lowest.scatter_reduce_(0, query[top], row[top], "amin")
        out.rows[:, 0] = lowest.cpu().numpy()
        out.scores[:, 0] = best.cpu().numpy()

    def _several(self, queries: Tensor, tile: int, margin: float, out: SearchResult) -> None:
        """Write the k > 1 best rows of each query."""
        k = out.rows.shape[1]
        coarse = queries.to(self.coarse)
        tops = torch.full((len(queries), k), -torch.inf, dtype=self.coarse, device=queries.device)
        best = nothing_found(len(queries), k, np.float64)
        for start in range(0, len(self.bank), tile):
            end = min(start + tile, len(self.bank))
            scores = coarse @ self._padded[start:end].T  # (q, tile)
            most = scores.topk(min(k, end - start), dim=1).values
            tops = torch.cat([tops, most], dim=1).topk(k, dim=1).values
            floor = tops[:, -1].float() - margin
            query, row = torch.nonzero(scores.float() >= floor[:, None], as_tuple=True)
            row = row + start
            score = self._exact(queries, query, row)
            found = nothing_found(len(queries), k, np.float64)
            rank_pairs(query.cpu().numpy(), row.cpu().numpy(), score.cpu().numpy(), found)
            best = merged([best, found], k)
        out.rows[:] = best.rows
        out.scores[:] = best.scores

    def _exact(self, queries: Tensor, query: Tensor, row: Tensor) -> Tensor:
        """Return the float64 products of (query, row) pairs."""
        parts = zip(query.split(REFINE), row.split(REFINE), strict=True)
        return torch.cat([(queries[q].double() * self.bank[r].double()).sum(1) for q, r in parts])
