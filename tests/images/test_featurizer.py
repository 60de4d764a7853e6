"""Folded networks give the same features; a network that cannot be folded stays as it is."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import Tensor, nn

from vgtools.images.featurizer import fold_norms


def drawn(model: nn.Module) -> nn.Module:
    """Give the norms random weights: those of a new network are the identity."""
    torch.manual_seed(0)
    for module in model.modules():
        if (
            isinstance(module, nn.BatchNorm2d)
            and module.running_mean is not None
            and module.running_var is not None
        ):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.normal_(module.weight, 1, 0.2)
                nn.init.normal_(module.bias, 0, 0.2)
    return model.eval().requires_grad_(False)


class Block(nn.Module):
    """A convolution, a norm, and where `shortcut` is set a second reader of the convolution."""

    num_features = 4

    def __init__(self, shortcut: bool = False, affine: bool = True, twice: bool = False) -> None:
        super().__init__()
        self.shortcut, self.twice = shortcut, twice
        self.conv, self.norm = nn.Conv2d(3, 4, 3, bias=not affine), nn.BatchNorm2d(4, affine=affine)
        self.last, self.after = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = self.norm(x).relu() + (x if self.shortcut else 0)
        x = self.after(self.last(x))
        return self.after(self.last(x)) if self.twice else x


def features(model: nn.Module) -> Tensor:
    return model.forward_features(torch.linspace(-1, 1, 2 * 3 * 64 * 64).view(2, 3, 64, 64))  # type: ignore[operator,no-any-return]


@pytest.mark.parametrize("name", ["resnet10t", "efficientnet_lite0"])
def test_a_folded_network_gives_the_same_features(name: str) -> None:
    model = drawn(timm.create_model(name, num_classes=0))
    wanted, count = features(model), sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert fold_norms(model, (3, 64, 64)) == count
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    torch.testing.assert_close(
        features(model), wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max())
    )


def test_a_convolution_that_is_read_twice_is_left_alone() -> None:
    model = drawn(Block(shortcut=True))
    wanted, names = features(model), [name for name, _ in model.named_modules()]
    assert fold_norms(model, (3, 64, 64)) == 0
    assert torch.equal(features(model), wanted)
    assert [name for name, _ in model.named_modules()] == names


def test_norms_without_weights_fold_and_modules_that_run_twice_do_not() -> None:
    model = drawn(Block(affine=False, twice=True))
    wanted = features(model)
    assert fold_norms(model, (3, 64, 64)) == 1
    assert isinstance(model.norm, nn.Identity)
    assert isinstance(model.after, nn.BatchNorm2d)
    torch.testing.assert_close(features(model), wanted)


@pytest.mark.parametrize("name", ["resnetv2_50", "vit_tiny_patch16_224", "convnext_atto"])
def test_networks_of_other_shapes_keep_their_features(name: str) -> None:
    size = 224 if "vit" in name else 64
    model = drawn(timm.create_model(name, num_classes=0))
    x = torch.linspace(-1, 1, 3 * size * size).view(1, 3, size, size)
    wanted = model.forward_features(x)  # type: ignore[operator]
    fold_norms(model, (3, size, size))
    torch.testing.assert_close(
        model.forward_features(x), wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max())
    )  # type: ignore[operator]
