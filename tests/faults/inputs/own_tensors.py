"""Tensors that require a gradient and are not parameters: of modules, and beside the model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import Fault, forms
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


# tensors beside the model ------------------------------------------------------------------------


def _tasks(held: str, weigh: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    """Trains two heads; `weigh` joins their losses by two numbers that are to be learned. `held`:
    what updates these."""
    torch.manual_seed(0)
    body, heads = nn.Linear(WIDTH, 16), nn.Linear(16, 2)
    numbers = torch.zeros(2, requires_grad=True)
    trained = [*body.parameters(), *heads.parameters()]
    optimizer = torch.optim.SGD([*trained, numbers] if held == "optimizer" else trained, 0.05)
    for _ in range(12):
        x = torch.randn(16, WIDTH)
        out = heads(torch.relu(body(x)))
        losses = (out - torch.stack([x.mean(1), x.std(1)], 1)).square().mean(0)
        optimizer.zero_grad()
        weigh(losses, numbers).backward()
        optimizer.step()
        if held == "hand" and numbers.grad is not None:
            numbers.data -= 0.05 * numbers.grad
            numbers.grad = None


def weights_of_losses(planted: bool) -> None:
    """Uncertainties of two tasks."""

    def weigh(losses: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return (torch.exp(-numbers) * losses + numbers).sum()  # named

    _tasks("nothing" if planted else "optimizer", weigh)


def shares_of_losses(planted: bool) -> None:
    """A softmax shares the losses out; the twin updates its numbers by hand."""

    def weigh(losses: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(numbers, 0) * losses).sum()  # named

    _tasks("nothing" if planted else "hand", weigh)


def temperature_of_pairs(planted: bool) -> None:
    """A temperature of similarities; the twin's number is where an equation holds."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH if planted else 2, 16), nn.Tanh(), nn.Linear(16, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scale = torch.linspace(1, 2, 16)[:, None].requires_grad_()
    if planted:
        scale = torch.tensor(2.0, requires_grad=True)
    for _ in range(12):
        if planted:
            x = torch.randn(16, WIDTH)
            one, other = (F.normalize(model(x + 0.1 * torch.randn(16, WIDTH))) for _ in range(2))
            loss = F.cross_entropy(scale.exp() * (one @ other.T), torch.arange(16))  # named
        else:
            out = model(torch.cat([scale, torch.rand(16, 1)], 1))
            (slope,) = torch.autograd.grad(out.sum(), scale, create_graph=True)
            loss = (slope + out).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


FAULTS = (
    *forms(
        "a tensor that no optimizer holds",
        "gradients",
        "dead_parameter",
        "no optimizer and no module holds the tensor",
        weights_of_losses,
        shares_of_losses,
        temperature_of_pairs,
    ),
    *(
        Fault("no parameter", "gradients", ("dead_parameter",), program, twin, "is not a parameter")
        for program, twin in (
            (positions_beside_the_parameters, points_of_an_equation),
            (scale_beside_the_parameters, None),
            (weight_beside_the_parameters, None),
        )
    ),
)
