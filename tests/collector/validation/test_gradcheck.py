"""Gradients compared with finite differences: wrong ones are reported, right ones are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lanescope.collector.gradcheck import gradcheck
from lanescope.collector.validation.validators import Event


class Clipped(torch.autograd.Function):
    """A ReLU whose backward forgets where it clipped."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(min=0)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


class Faulty(nn.Module):
    """Computes what a ReLU does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = Clipped.apply(x)
        return made


class Checkpointed(nn.Sequential):
    """Computes its layers a second time in backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return made


class Mixed(nn.Module):
    """Integers go in beside a keyword, and a dictionary comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, ids: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"ids": ids, "made": self.frozen(self.words(ids)) * scale}


def failure(module: nn.Module, *inputs: torch.Tensor, **keywords: torch.Tensor) -> str:
    event = Event("", 0, 0, 0, 0, keywords, module)
    with torch.no_grad():  # as validators are called
        try:
            gradcheck()(event, inputs, None)
        except AssertionError as error:
            return str(error)
    return ""


def test_a_backward_that_is_wrong() -> None:
    torch.manual_seed(0)
    words = failure(nn.Sequential(nn.Linear(4, 4), Faulty()), torch.randn(3, 4))
    assert words.startswith("the gradient of output 0 by ")
    assert "is not the one of finite differences" in words


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.LayerNorm(6), nn.Dropout(0.5)),
        nn.ReLU(),
        nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh()),
        Checkpointed(nn.Linear(6, 6), nn.GELU()),
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 2)),
        nn.Flatten(),
        nn.Identity().eval(),
    ],
    ids=lambda module: type(module).__name__,
)
def test_modules_of_torch_are_right(module: nn.Module) -> None:
    torch.manual_seed(0)
    seen: list[object] = []
    module.register_forward_hook(lambda *_: seen.append(1))
    state = {name: value.clone() for name, value in module.state_dict().items()}
    at_kinks = torch.relu(torch.randn(5, 6))
    assert failure(module, at_kinks) == ""
    assert not seen  # the program's hooks are its own
    after = module.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in state.items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_integers_keywords_and_dictionaries() -> None:
    torch.manual_seed(0)
    assert failure(Mixed(), torch.arange(5), scale=torch.ones(4)) == ""
    assert failure(nn.Embedding(7, 4).requires_grad_(False), torch.arange(5)) == ""
