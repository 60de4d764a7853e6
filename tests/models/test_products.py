"""Products by oneDNN against those of float64."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from vgtools.models import products
from vgtools.models.masked_lm import linear_cross_entropy
from vgtools.models.products import affine, is_faster, linear_gelu, plus_linear, quicken

OPERATION = torch.ops.mkldnn._linear_pointwise


def fast(monkeypatch: pytest.MonkeyPatch, known: bool = True) -> None:
    """Take oneDNN on any processor (torch from PyPI has it), or on none."""
    monkeypatch.setattr(products, "is_faster", lambda *given, **named: known)


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


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_gelu_or_a_sum_after_a_layer(
    rows: int, dtype: torch.dtype, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if known and dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no product of bfloat16 for this processor")
    fast(monkeypatch, known)
    torch.manual_seed(0)
    layer = nn.Linear(96, 130, dtype=dtype)
    x = torch.randn(rows, 96).to(dtype)
    other = torch.randn(rows, 130).to(dtype)
    exact = copy.deepcopy(layer).double()(x.double()).detach()
    # Sums of 96 products of numbers below 4 and 0.1; some roundings of bfloat16 at each step.
    near = 4 * torch.finfo(dtype).eps
    with torch.no_grad():
        found = linear_gelu(layer, x), plus_linear(layer, x, other)
        assert linear_gelu(layer, x[:0]).shape == (0, 130)
    expected = nn.functional.gelu(exact), exact + other
    for mine, true in zip(found, expected, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), true, rtol=near, atol=10 * near)


def test_gelu_or_a_sum_after_a_layer_has_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch)
    layer = nn.Linear(8, 8)
    x = torch.randn(3, 8)
    (linear_gelu(layer, x) + plus_linear(layer, x, x)).sum().backward()
    assert layer.weight.grad is not None
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert plus_linear(layer, x, x).dtype == torch.float32
        assert linear_gelu(layer, x).dtype == torch.bfloat16


def test_where_it_is_not_faster_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch, False)
    assert type(quicken(nn.Linear(128, 128))) is nn.Linear


def test_gradients_have_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch)
    torch.manual_seed(0)
    exact = [torch.randn(n, m).double().requires_grad_() for n, m in ((5, 7), (7, 3))]
    given = [tensor.detach().float().requires_grad_() for tensor in exact]

    def penalty(pair: list[Tensor], product: Callable[..., Tensor]) -> list[Tensor]:
        loss = product(*pair, None).tanh().sum()
        first = torch.autograd.grad(loss, pair, create_graph=True)
        return list(torch.autograd.grad(sum(x.square().sum() for x in first), pair))

    found = penalty(given, affine)
    expected = penalty(exact, lambda a, b, bias: a @ b)
    for mine, true in zip(found, expected, strict=True):
        # Three products of up to seven terms, and sums of 21; numbers are near 1.
        torch.testing.assert_close(mine.double(), true, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("known", [True, False])
def test_the_loss_over_a_vocabulary(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch, known)
    used = list[int]()
    counted = products.onednn
    monkeypatch.setattr(products, "onednn", lambda *a: used.append(1) or counted(*a))
    torch.manual_seed(0)
    exact = [torch.randn(shape).double() for shape in ((9, 16), (40, 16), (40,))]
    given = [tensor.float().requires_grad_() for tensor in exact]
    for tensor in exact:
        tensor.requires_grad_()
    target = torch.arange(9)
    loss = linear_cross_entropy(*given, target, chunk=4)
    loss.backward()
    assert len(used) == (9 if known else 0), "three products for each of three chunks"
    nn.functional.cross_entropy(nn.functional.linear(*exact), target, reduction="sum").backward()
    for mine, true in zip(given, exact, strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.double(), true.grad, rtol=1e-5, atol=1e-5)


def slow_torch(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    return a


def slow(*given: object) -> Tensor:
    slow_torch(*[torch.zeros(1)] * 3)
    found: Tensor = OPERATION(*given)
    return found


@pytest.mark.parametrize(
    ("operation", "other", "faster"),
    [
        (OPERATION, slow_torch, True),
        (slow, torch.addmm, False),
        (lambda a, b, bias, attribute: OPERATION(a, b, bias, attribute, [], ""), slow_torch, False),
        (lambda *given: OPERATION(*given) * 1.01, slow_torch, False),
        (lambda *given: OPERATION(*given) * torch.nan, slow_torch, False),
        (lambda *given: OPERATION(*given)[1:], slow_torch, False),
    ],
    ids=["faster", "slower", "another signature", "inexact", "not a number", "another shape"],
)
def test_a_trial_decides(
    operation: Callable[..., Tensor],
    other: Callable[..., Tensor],
    faster: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Where the private operation is missing, or another than it was, networks stay as they are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(products, "_TURNS", 1)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", operation)
    monkeypatch.setattr(torch, "addmm", other)
    is_faster.cache_clear()
    try:
        assert is_faster() == faster
        assert type(quicken(nn.Linear(128, 128))) is (products.Linear if faster else nn.Linear)
    finally:
        is_faster.cache_clear()


def test_the_answer_is_kept_for_the_machine_and_its_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trials = list[tuple[torch.dtype, bool]]()

    def trial(dtype: torch.dtype, fused: bool) -> bool:
        trials.append((dtype, fused))
        return len(trials) == 1

    def asked(fused: bool = False) -> bool:
        """Ask as another process."""
        is_faster.cache_clear()
        return is_faster(fused=fused)

    monkeypatch.setattr(products, "_trial", trial)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        assert [asked(), asked(), asked(True), asked(True)] == [True, True, False, False]
        monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
        assert not asked()
        assert [fused for _, fused in trials] == [False, True, False]
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        (tmp_path / "file").touch()
        assert not asked(), "a place that cannot be written is no error"
        assert len(trials) == 4
    finally:
        is_faster.cache_clear()
