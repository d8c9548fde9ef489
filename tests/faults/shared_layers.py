"""Programs whose layers should share parameters and do not, or share them and should not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.faults.losses import fit, loss_faults


class Words(nn.Module):
    """Predicts the next word; `tie` makes the head use the table of the words."""

    def __init__(self, tie: Callable[[Any], None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.inner = nn.Embedding(20, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 20, bias=False)
        tie(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = (x * 3).long().abs().clamp(max=19)
        out: torch.Tensor = self.head(self.inner(self.table(words)).relu())
        return out


def _next_word(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    words = (x * 3).long().abs().clamp(max=19)
    return F.cross_entropy(out[:, :-1].flatten(0, 1), words[:, 1:].flatten())


def tied_by_a_new_parameter(planted: bool) -> None:
    """nn.Parameter around the table makes another parameter of the same memory."""

    def tie(model: Any) -> None:
        table = model.table.weight
        model.head.weight = nn.Parameter(table) if planted else table

    fit(Words(tie), _next_word)


def tied_by_data(planted: bool) -> None:
    """`.data = other.data`; the twin begins with the same values in its own memory."""

    def tie(model: Any) -> None:
        values = model.table.weight.data
        model.head.weight.data = values if planted else values.clone()

    fit(Words(tie), _next_word)


def towers_assigned_from_one_state(planted: bool) -> None:
    """load_state_dict(assign=True) of a state that another tower lives in."""
    torch.manual_seed(0)
    towers = nn.ModuleList([nn.Linear(12, 4), nn.Linear(12, 4)])
    towers[1].load_state_dict(towers[0].state_dict(), assign=planted)

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.towers = towers

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mm(self.towers[0](x), self.towers[1](x.roll(1, 1)).T)

    fit(Pair(), lambda out, x: F.cross_entropy(out, torch.arange(len(x))))


class Stack(nn.Module):
    """A layer before, a stack of layers, and heads for what each of them makes."""

    def __init__(self, layers: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.layers = nn.ModuleList(layers)
        self.heads = nn.ModuleList([head] * len(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, outputs = self.first(x), []
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = x + layer(x).tanh()
            outputs.append(head(x))
        return torch.stack(outputs).mean(0)


def block_multiplied(planted: bool) -> None:
    """[block] * 4; the twin copies the block, and both list one head for all layers."""
    torch.manual_seed(0)
    block = nn.Linear(16, 16)
    layers = [block] * 4 if planted else [copy.deepcopy(block) for _ in range(4)]
    fit(Stack(layers, nn.Linear(16, 3)), _largest)


def sequence_of_one_layer(planted: bool) -> None:
    """A factory that makes its layer before the loop; the twin calls one layer in a loop."""
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(24, 24), nn.LayerNorm(24), nn.GELU())

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = self.cell(x)
            return x

    inner = nn.Sequential(*(layer for _ in range(3))) if planted else Recurrent()
    fit(nn.Sequential(nn.Linear(12, 24), inner, nn.Linear(24, 3)), _largest)


def convolutions_listed_twice(planted: bool) -> None:
    """A stage of a network for images; the twin's branches share an encoder, side by side."""
    torch.manual_seed(0)

    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            conv = nn.Conv2d(4, 4, 3, padding=1)
            self.stage = nn.ModuleList([conv, conv])
            self.out = nn.Linear(4 if planted else 8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            images = x[:, :, None, None].expand(-1, -1, 3, 3).reshape(-1, 4, 9, 3)
            if planted:
                for conv in self.stage:
                    images = conv(images).relu()
                return self.out(images.mean((2, 3)))
            views = [
                conv(one).relu() for conv, one in zip(self.stage, (images, -images), strict=True)
            ]
            return self.out(torch.cat(views, 1).mean((2, 3)))

    fit(Images(), _largest)


def _largest(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out, x[:, :3].argmax(1))


FAULTS = (
    *loss_faults(
        "two parameters in one memory",
        "shared_parameter",
        "in the same memory",
        tied_by_a_new_parameter,
        tied_by_data,
        towers_assigned_from_one_state,
    ),
    *loss_faults(
        "layers that are one module",
        "shared_parameter",
        "lists one",
        block_multiplied,
        sequence_of_one_layer,
        convolutions_listed_twice,
    ),
)
