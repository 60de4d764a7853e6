"""Products by oneDNN against those of float64."""

from __future__ import annotations

import pytest
import torch

from vgtools.models import products
from vgtools.models.products import affine


@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("known", [True, False])
def test_a_product_and_its_gradients(
    rows: int, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where torch has no oneDNN; and of views whose rows are not one after another."""
    if not known:
        monkeypatch.setattr(products, "_has_onednn", lambda: False)
    torch.manual_seed(0)
    exact = [torch.randn(12, rows).double(), torch.randn(12, 20).double(), torch.randn(20).double()]
    given = [tensor.float().requires_grad_() for tensor in exact]
    for tensor in exact:
        tensor.requires_grad_()
    upstream = torch.randn(20, rows)
    expected = exact[0].T @ exact[1] + exact[2]
    expected.backward(upstream.T.double())
    found = affine(given[0].T, given[1], given[2])
    found.backward(upstream.T)
    # A sum of n products of numbers near 1 errs by about sqrt(n) epsilon; ten times is allowed.
    near = 10 * max(12, rows) ** 0.5 * torch.finfo(torch.float32).eps
    torch.testing.assert_close(found.double(), expected, rtol=near, atol=10 * near)
    for mine, true in zip(given, exact, strict=True):
        assert mine.grad is not None
        assert true.grad is not None
        torch.testing.assert_close(mine.grad.double(), true.grad, rtol=near, atol=10 * near)


def test_what_needs_no_gradient_gets_none_and_other_numbers_are_kept() -> None:
    x = torch.randn(3, 4)
    weight = torch.randn(4, 2, requires_grad=True)
    bias = torch.zeros(2)
    affine(x, weight, bias).sum().backward()
    assert x.grad is None
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, x.sum(0)[:, None].expand(4, 2))
    assert affine(x.double(), weight.double(), bias.double()).dtype == torch.float64
    assert affine(x[:0], weight, bias).shape == (0, 2)
