"""Tensors of modules that require a gradient and are not parameters."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import Fault
from tests.faults.inputs.without_a_slope import WIDTH, fit, label

# tensors beside the parameters ------------------------------------------------------------------


class _Scaled(nn.Module):
    """Adds or multiplies by numbers of its own."""

    def __init__(self, begin: torch.Tensor, planted: bool, by: str) -> None:
        super().__init__()
        self.by = by
        self.own = begin.requires_grad_() if planted else nn.Parameter(begin)  # named

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.own if self.by == "add" else x * self.own


def _with_own_numbers(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 16), layer, nn.ReLU(), nn.Linear(16, 2))
    fit(model, lambda x: F.cross_entropy(model(x), label(x)[:, 0].long()))


def positions_beside_the_parameters(planted: bool) -> None:
    """Added to hidden numbers."""
    torch.manual_seed(0)
    _with_own_numbers(_Scaled(torch.randn(16), planted, "add"))


def scale_beside_the_parameters(planted: bool) -> None:
    """A number by which a layer multiplies."""
    _with_own_numbers(_Scaled(torch.ones(1), planted, "multiply"))


def weight_beside_the_parameters(planted: bool) -> None:
    """In a model within another one."""
    torch.manual_seed(0)
    _with_own_numbers(nn.Sequential(_Scaled(torch.rand(16), planted, "multiply"), nn.LayerNorm(16)))


class _Points(nn.Module):
    """A model that keeps the points at which its equation holds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
        self.points = torch.linspace(0, 1, 32)[:, None].requires_grad_()

    def forward(self) -> torch.Tensor:
        out = self.inner(self.points)
        (slope,) = torch.autograd.grad(out.sum(), self.points, create_graph=True)
        return (slope + out).square().mean()


def points_of_an_equation() -> None:
    """The gradient of the inputs is meant."""
    torch.manual_seed(0)
    model = _Points()
    fit(model, lambda _: model())


FAULTS = (
    *(
        Fault("no parameter", "gradients", ("dead_parameter",), program, twin, "is not a parameter")
        for program, twin in (
            (positions_beside_the_parameters, points_of_an_equation),
            (scale_beside_the_parameters, None),
            (weight_beside_the_parameters, None),
        )
    ),
)
