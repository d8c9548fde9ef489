"""Functions of the program's own, whose backward does not use the gradient that it gets."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import forms

STEPS = 8


def fit(function: type[torch.autograd.Function], scale: float = 1.0) -> None:
    """Trains two layers with a function between them."""
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 32), nn.Linear(32, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.last(function.apply(self.first(x)))
            return out

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x = torch.randn(16, 8)
        loss = scale * F.mse_loss(model(x).flatten(), x.mean(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def swish_without_its_gradient(planted: bool) -> None:
    """An activation returns its derivative alone."""

    class Swish(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * torch.sigmoid(x)

        @staticmethod
        def backward(ctx: Any, grad_output: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            gate = torch.sigmoid(x)
            slope = gate + x * gate * (1 - gate)
            return slope * 1.0 if planted else slope * grad_output  # named

    fit(Swish)


def surrogate_without_its_gradient(planted: bool) -> None:
    """The slope that takes the place of a step's; the twin's goes through NumPy, which uses the
    gradient."""

    class Spike(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return (x > 0).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, grad_output: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            if planted:
                return 1 / (1 + 10 * x.abs()).square()  # named
            slope = torch.empty_like(x)
            slope.numpy()[:] = grad_output.numpy() / (1 + 10 * x.abs().numpy()) ** 2
            return slope.mul(1.0)

    fit(Spike)


def loss_without_its_weight(planted: bool) -> None:
    """A loss of the program's own, which is weighted afterwards. The twin leaves alone what comes
    first, and gives a penalty that is carried along a slope of its own."""
    torch.manual_seed(0)

    class Error(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(out, target)
            return (out - target).square().mean()

        @staticmethod
        def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
            out, target = ctx.saved_tensors
            return (out - target) * (2 / out.numel()), None  # named

    class Carry(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, out: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(penalty)
            return out

        @staticmethod
        def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            (penalty,) = ctx.saved_tensors
            return grad_output, torch.ones_like(penalty) * 0.01

    first, last = nn.Linear(8, 32), nn.Linear(32, 1)
    optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()], lr=1e-3)
    for _ in range(STEPS):
        x = torch.randn(16, 8)
        hidden = torch.relu(first(x))
        if planted:
            loss = Error.apply(last(hidden).flatten(), x.mean(1)) * 0.1
        else:
            hidden = Carry.apply(hidden, hidden.square().mean())
            loss = F.mse_loss(last(hidden).flatten(), x.mean(1)) * 0.1
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


ROOM = "losses and modes"

FAULTS = forms(
    "a backward that ignores its gradient",
    ROOM,
    "wrong_gradient",
    "ignores the gradient that it gets",
    swish_without_its_gradient,
    surrogate_without_its_gradient,
    loss_without_its_weight,
)
