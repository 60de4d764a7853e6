"""How far floating-point numbers may be from the exact ones: derived, not measured on one
processor.

Kernels differ in the order of their sums, in fused multiply-adds and in their exponentials, so
two right implementations differ by rounding, and a network of many layers amplifies it by a
factor that no formula gives. Two rules follow:

- one sum: `rounding` bounds its error by the precision and the number of terms;
- a network: its error against float64 is compared with that of another right implementation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]


def rounding(dtype: torch.dtype, terms: int) -> float:
    """Return the bound on the rounding error of a sum of products, in any order of summation.

    It is relative to the sum of the products' absolute values: gamma_n = n u / (1 - n u), with u
    half the distance from 1 to the next number.

    Args:
        dtype: of the arithmetic.
        terms: products that are summed; one more for each later operation.

    Source: Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.1.
    """
    error = terms * torch.finfo(dtype).eps / 2
    return error / (1 - error)


def allowed_error(reference: Any, oracle: Any, dtype: torch.dtype = torch.float32) -> float:
    """Return how far any number may be from a float64 oracle, given how far a reference is.

    The largest errors of two right implementations are of the same size, not equal: four times
    that of the reference is allowed. The floor, eight roundings of the largest number, is for a
    reference that happens to be exact.
    """
    exact = _float64(oracle)
    error = float(np.abs(_float64(reference) - exact).max(initial=0))
    return 4 * max(error, rounding(dtype, 8) * float(np.abs(exact).max(initial=0)))


def assert_as_exact_as(
    found: Any, reference: Any, oracle: Any, dtype: torch.dtype = torch.float32
) -> None:
    """Assert that `found` is as close to a float64 oracle as a reference of the same precision is.

    Args:
        found: what is tested.
        reference: the same from a library, or from the same code with other batches.
        oracle: the same in float64.
        dtype: of the arithmetic of `found` and `reference`.
    """
    np.testing.assert_allclose(
        _float64(found), _float64(oracle), rtol=0, atol=allowed_error(reference, oracle, dtype)
    )


def _float64(values: Any) -> Array:
    if isinstance(values, torch.Tensor):
        return values.detach().double().cpu().numpy()
    return np.asarray(values, np.float64)
