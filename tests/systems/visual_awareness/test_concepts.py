"""Concept activation maps against numbers worked by hand and a loop in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from vgtools.io.errors import DataError
from vgtools.systems.visual_awareness.concepts import (
    concept_weights,
    gradient_maps,
    map_cells,
    relevance_weights,
    weigh,
)
from vgtools.systems.visual_awareness.retriever import ImagePath, weldon


def test_the_worked_example() -> None:
    texts = torch.tensor([[0.1, -0.9, 0.6]])
    fc = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]])
    # Channels [[1, 0], [0, 2]] and [[0, 3], [1, 0]], position by position.
    maps = torch.tensor([[1.0, 0.0], [0.0, 3.0], [0.0, 1.0], [2.0, 0.0]])
    heat = concept_weights(texts, fc, 2) @ maps.T
    torch.testing.assert_close(heat, torch.tensor([[0.7, -1.8, -0.6, 1.4]]))
    # Dimension 1 is the largest by magnitude and the last by value: only n = 3 takes it, by |c|.
    one = concept_weights(texts, fc, 1) @ maps.T
    torch.testing.assert_close(one, torch.tensor([[0.6, -1.8, -0.6, 1.2]]))
    whole = concept_weights(texts, fc, 99) @ maps.T
    torch.testing.assert_close(whole, torch.tensor([[0.7, 0.9, 0.3, 1.4]]))
    plain = relevance_weights(texts, fc) @ maps.T
    torch.testing.assert_close(plain, torch.tensor([[0.7, -4.5, -1.5, 1.4]]))


@pytest.mark.parametrize("dims", [1, 3, 5, 50, None])
def test_maps_are_those_of_a_loop(dims: int | None) -> None:
    torch.manual_seed(0)
    image = ImagePath(width=7, dim=5, regions=2, dropout=0.5).eval().requires_grad_(False)
    texts = torch.nn.functional.normalize(torch.randn(3, 5), dim=1)
    grid = np.random.default_rng(0).standard_normal((6, 7)).astype(np.float32)
    # The second of four texts asks for nothing.
    prepared = weigh(image, texts, np.array([0, 2, 3]), 4, dims)
    found = map_cells(prepared, np.array([3, 1, 0]), grid)

    fc = image.fc.weight.double().numpy()
    conv, bias = image.conv.weight.double().numpy(), image.conv.bias.double().numpy()
    for row, text in ((0, 2), (2, 0)):
        c = texts[text].double().numpy()
        best = range(5) if dims is None else np.argsort(-c, kind="stable")[:dims].tolist()
        for p in range(6):
            activation = conv @ grid[p].astype(np.float64) + bias
            expected = sum(
                (c[k] if dims is None else abs(c[k])) * float(fc[k] @ activation) for k in best
            )
            assert found[row, p] == pytest.approx(expected, abs=1e-5)
    assert np.isnan(found[1]).all()


def test_gradient_maps_are_what_autograd_says() -> None:
    torch.manual_seed(2)
    image = ImagePath(width=7, dim=5, regions=2, dropout=0.5).eval().requires_grad_(False)
    texts = F.normalize(torch.randn(2, 5), dim=1)
    grid = np.random.default_rng(2).standard_normal((6, 7)).astype(np.float32)
    prepared = weigh(image, texts, np.array([0, 2]), 3, None)
    found = gradient_maps(image, prepared, np.array([2, 1, 0]), grid)
    assert np.isnan(found[1]).all()
    with pytest.raises(DataError, match="has 1 positions, the retriever pools over 2"):
        gradient_maps(image, prepared, np.array([2]), grid[:1])
    image.double()
    for row, text in ((0, 1), (2, 0)):
        cells = image.project(torch.from_numpy(grid).double()).requires_grad_()
        x = image.fc(weldon(cells, 2))
        (gradient,) = torch.autograd.grad(F.normalize(x, dim=0) @ texts[text].double(), cells)
        expected = (cells * gradient.mean(0)).sum(1).detach().numpy()
        factor = 2 / (6 * x.norm().item())
        np.testing.assert_allclose(factor * found[row], expected, atol=1e-6)


def test_a_map_does_not_depend_on_other_texts() -> None:
    torch.manual_seed(1)
    image = ImagePath(width=9, dim=8, regions=2, dropout=0.0).eval().requires_grad_(False)
    texts = torch.randn(20, 8)
    grid = np.random.default_rng(1).standard_normal((4, 9)).astype(np.float32)
    together = map_cells(weigh(image, texts, np.arange(20), 20, 3), np.arange(20), grid)
    for i in range(20):
        alone = map_cells(weigh(image, texts[i : i + 1], np.arange(1), 1, 3), np.arange(1), grid)
        np.testing.assert_allclose(alone[0], together[i], rtol=1e-5, atol=1e-5)


def test_equal_dimensions_are_taken_in_order() -> None:
    weights = concept_weights(torch.full((1, 4), 0.5), torch.eye(4), 2)
    assert weights.tolist() == [[0.5, 0.5, 0.0, 0.0]]
