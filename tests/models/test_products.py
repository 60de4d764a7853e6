"""Products by oneDNN against those of float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from vgtools.models import products
from vgtools.models.products import affine, quicken


def fast(monkeypatch: pytest.MonkeyPatch, known: bool = True) -> None:
    """Take oneDNN on any processor (torch from PyPI has it), or on none."""
    monkeypatch.setattr(products, "_is_faster", lambda: known)


@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_a_product_and_its_gradients(
    rows: int, known: bool, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where oneDNN is not faster; and of views whose rows are not one after another."""
    fast(monkeypatch, known)
    torch.manual_seed(0)
    exact = [torch.randn(12, rows).double(), torch.randn(12, 20).double(), torch.randn(20).double()]
    exact = exact if biased else exact[:2]
    given = [tensor.float().requires_grad_() for tensor in exact]
    for tensor in exact:
        tensor.requires_grad_()
    upstream = torch.randn(20, rows)
    expected = exact[0].T @ exact[1] + (exact[2] if biased else 0)
    expected.backward(upstream.T.double())
    found = affine(given[0].T, given[1], given[2] if biased else None)
    found.backward(upstream.T)
    # A sum of n products of numbers near 1 errs by about sqrt(n) epsilon; ten times is allowed.
    near = 10 * max(12, rows) ** 0.5 * torch.finfo(torch.float32).eps
    torch.testing.assert_close(found.double(), expected, rtol=near, atol=10 * near)
    for mine, true in zip(given, exact, strict=True):
        assert mine.grad is not None
        assert true.grad is not None
        torch.testing.assert_close(mine.grad.double(), true.grad, rtol=near, atol=10 * near)


def test_what_needs_no_gradient_gets_none_and_other_numbers_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast(monkeypatch)
    x = torch.randn(3, 4)
    weight = torch.randn(4, 2, requires_grad=True)
    bias = torch.zeros(2)
    affine(x, weight, bias).sum().backward()
    assert x.grad is None
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, x.sum(0)[:, None].expand(4, 2))
    assert affine(x.double(), weight.double(), bias.double()).dtype == torch.float64
    assert affine(x[:0], weight, bias).shape == (0, 2)


def test_layers_of_a_network_are_quickened_and_stay_what_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast(monkeypatch)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(128, 192), nn.GELU(), nn.Linear(192, 128, bias=False))
    plain.append(nn.Linear(128, 5))
    quick = quicken(copy.deepcopy(plain))
    kinds = [type(layer) for layer in quick]
    assert kinds == [products.Linear, nn.GELU, products.Linear, nn.Linear]
    assert all(isinstance(layer, nn.Linear) for layer in quick if not isinstance(layer, nn.GELU))
    assert list(quick.state_dict()) == list(plain.state_dict())
    x = torch.randn(2, 3, 128)
    found = quick(x)
    found.square().sum().backward()
    exact = copy.deepcopy(plain).double()
    expected = exact(x.double())
    expected.square().sum().backward()
    near = 20 * 192**0.5 * torch.finfo(torch.float32).eps
    torch.testing.assert_close(found.double(), expected, rtol=near, atol=near)
    for mine, true in zip(quick.parameters(), exact.parameters(), strict=True):
        assert mine.grad is not None
        assert true.grad is not None
        scale = float(true.grad.abs().max())
        torch.testing.assert_close(mine.grad.double(), true.grad, rtol=near, atol=near * scale)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(quick(x), plain(x))
    assert torch.equal(quick.double()(x.double()), exact(x.double()))


def test_where_it_is_not_faster_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch, False)
    assert type(quicken(nn.Linear(128, 128))) is nn.Linear
