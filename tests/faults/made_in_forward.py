"""Programs whose forward makes layers or parameters each time: what they learn is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.cut_off import train_classes
from tests.faults.order_of_a_step import lost_gradients


class Projected(nn.Module):
    """A layer between two others: made once, or in each forward."""

    def __init__(self, kind: Callable[[], nn.Module], each_time: bool) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(10, 8), nn.Linear(8, 3)
        self.kind = kind
        if not each_time:
            self.middle = kind()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = self.middle if hasattr(self, "middle") else self.kind()
        return self.out(middle(self.first(x)).tanh())


def _projected(kind: Callable[[], nn.Module], planted: bool) -> None:
    torch.manual_seed(0)
    model = Projected(kind, planted)
    train_classes(model)


def linear_made_in_forward(planted: bool) -> None:
    """A linear layer is made in each forward."""
    _projected(lambda: nn.Linear(8, 8), planted)


def norm_made_in_forward(planted: bool) -> None:
    """So is a normalisation."""
    _projected(lambda: nn.BatchNorm1d(8), planted)


def block_made_in_forward(planted: bool) -> None:
    """And a block of several layers."""
    _projected(lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), planted)


class Rewrapped(nn.Module):
    """A weight that forward wraps as a parameter again."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.randn(8, 10) * 0.1), nn.Linear(8, 3)
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if self.how == "local":
            weight = nn.Parameter(self.weight)
        if self.how == "scaled":
            weight = nn.Parameter(self.weight / self.weight.norm())
        if self.how == "kept":
            self.weight = nn.Parameter(self.weight.clamp(-1, 1))
            weight = self.weight
        return self.out(F.linear(x, weight).tanh())


def _rewrapped(how: str) -> None:
    torch.manual_seed(0)
    model = Rewrapped(how)
    train_classes(model)


def wrapped_for_a_call(planted: bool) -> None:
    """`nn.Parameter(self.weight)` in forward."""
    _rewrapped("local" if planted else "")


def normalised_and_wrapped(planted: bool) -> None:
    """The normalised weight is wrapped."""
    _rewrapped("scaled" if planted else "")


def replaced_in_forward(planted: bool) -> None:
    """Forward replaces the parameter by a clamped one."""
    _rewrapped("kept" if planted else "")


class Prompted(nn.Module):
    """A layer whose input gets numbers to be learned: made once, or in each forward."""

    def __init__(self, width: int, made: Callable[[Any], torch.Tensor] | None) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(10, width), nn.Linear(width, 3)
        self.made = made
        if made is None:
            self.own = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.out((x + (self.own if self.made is None else self.made(x))).tanh())


def _prompted(made: Callable[[Any], torch.Tensor] | None) -> None:
    torch.manual_seed(0)
    model = Prompted(8, made)
    train_classes(model)


def prompt_made_in_forward(planted: bool) -> None:
    """A soft prompt is made in each forward; the twin makes it in __init__."""

    def made(x: torch.Tensor) -> torch.Tensor:
        return nn.Parameter(torch.randn(8) * 0.02)  # named

    _prompted(made if planted else None)


def scale_of_the_batch(planted: bool) -> None:
    """A mean of the batch is wrapped; the twin's is a constant of the batch."""

    def made(x: torch.Tensor) -> torch.Tensor:
        mean = x.detach().mean(0)
        return nn.Parameter(mean) if planted else mean  # named

    _prompted(made)


def made_for_the_size_of_the_batch(planted: bool) -> None:
    """Made as soon as the width is known, in each forward; the twin makes it in the first."""
    kept = list[nn.Parameter]()

    def made(x: torch.Tensor) -> torch.Tensor:
        if planted or not kept:
            kept[:] = [nn.Parameter(torch.zeros(x.shape[1]))]  # named
        return kept[0]

    _prompted(made)


FAULTS = (
    *lost_gradients(
        "layers made in each forward",
        "each forward makes a new layer",
        linear_made_in_forward,
        norm_made_in_forward,
        block_made_in_forward,
    ),
    *lost_gradients(
        "parameters made in each forward",
        "makes a new parameter in each forward",
        prompt_made_in_forward,
        scale_of_the_batch,
        made_for_the_size_of_the_batch,
    ),
    *lost_gradients(
        "parameters wrapped again in forward",
        "never get",
        wrapped_for_a_call,
        normalised_and_wrapped,
        replaced_in_forward,
    ),
)
