"""Gradients that end in the forward: the line of the operator is named."""

from __future__ import annotations

from collections.abc import Callable

import torch
from common import layers, program
from torch import nn
from torch.nn import functional as F
from transformers.trainer_pt_utils import nested_detach


def _fit(model: nn.Module, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(torch.randn(16, 8)).backward()
        optimizer.step()


@program
def output_detached() -> None:
    """The output goes on without its gradient, as a leaf."""
    model = layers(2, 8, nn.ReLU)
    _fit(model, lambda x: (model(x).detach().requires_grad_() - 1).square().mean())


@program
def output_detached_beside_a_library() -> None:
    """The output goes on without its gradient, after a library has detached a copy of it."""
    model = layers(2, 8, nn.ReLU)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        out = model(x)
        nested_detach(out)
        return (out.detach().requires_grad_() - 1).square().mean()  # named

    _fit(model, loss_of)


@program
def output_detached_by_a_library() -> None:
    """A library's function hands the output on without its gradient."""
    model = layers(2, 8, nn.ReLU)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        out = nested_detach(model(x)).requires_grad_()  # named
        return (out - 1).square().mean()

    _fit(model, loss_of)


@program
def model_called_without_gradients() -> None:
    """The model runs in no_grad, and a scale of its output wants a gradient."""
    model, scale = nn.Linear(8, 1), torch.ones(1, requires_grad=True)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            out = model(x)
        return F.l1_loss(out * scale, torch.ones(16, 1))

    _fit(model, loss_of)


@program
def features_detached() -> None:
    """A head of another optimizer learns on features that are cut off from the body."""
    body, head = layers(2, 8, nn.Tanh), nn.Linear(8, 2)
    labels = torch.arange(16) % 2

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        features = body(x).detach()
        return F.cross_entropy(head(features), labels)

    _fit(body, loss_of)


@program
def zeroed_before_the_step() -> None:
    """No gradient is left at the step, and nothing is cut off."""
    model = layers(2, 8, nn.ReLU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        (model(torch.randn(16, 8)) - 1).square().mean().backward()
        optimizer.zero_grad()
        optimizer.step()


@program
def target_detached() -> None:
    """A target of the model's own is detached, as it has to be, and all parameters learn."""
    model = layers(2, 8, nn.ReLU)
    _fit(model, lambda x: F.mse_loss(model(x), model(x + 1).detach()))


@program
def evaluated_in_between() -> None:
    """The model also runs in no_grad."""
    model = layers(2, 8, nn.Tanh)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            model(x)
        return model(x).square().mean()

    _fit(model, loss_of)
