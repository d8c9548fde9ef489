"""Networks, rows and layers that a program holds twice: copies that are trained as well, rows that
are trained on and evaluated, and frozen layers that ran before their model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import chain

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.faults.base import forms

_ROWS, _WIDTH, _STEPS = 96, 12, 16


def _model(outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(_WIDTH, 16), nn.ReLU(), nn.Linear(16, outputs))


# copies that make the target ----------------------------------------------------------------------


def _values(
    loss_of: Callable[..., torch.Tensor], optimizer: torch.optim.Optimizer, outputs: int = 1
) -> None:
    """Trains with states, next states and rewards."""
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss_of(torch.randn(16, _WIDTH), torch.randn(16, _WIDTH), torch.rand(16, 1)).backward()
        optimizer.step()


def target_network_in_the_optimizer(planted: bool) -> None:
    """Q learning. The twin's target is computed without gradients."""
    model = _model(4)
    target = copy.deepcopy(model)
    held = [*target.parameters()] if planted else []

    def loss_of(now: torch.Tensor, then: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(planted):
            best = reward + 0.9 * target(then).amax(1, keepdim=True)  # named
        return F.smooth_l1_loss(model(now).gather(1, torch.randint(4, (16, 1))), best)

    _values(loss_of, torch.optim.Adam([*model.parameters(), *held], lr=1e-3))


def critics_of_one_module(planted: bool) -> None:
    """A module holds the critic and its copy. The twin's is frozen."""
    both = nn.ModuleDict({"own": _model(1), "target": _model(1)})
    both["target"].load_state_dict(both["own"].state_dict())
    both["target"].requires_grad_(planted)

    def loss_of(now: torch.Tensor, then: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
        goal = reward + 0.99 * both["target"](then)  # named
        return (both["own"](now) - goal).pow(2).mean()

    _values(loss_of, torch.optim.RMSprop(both.parameters(), lr=1e-3))


def value_and_its_copy(planted: bool) -> None:
    """Both are chained. The twin fits two coupled networks, which begin with other numbers."""
    value, other = _model(1), _model(1)
    if not planted:
        nn.init.xavier_normal_(other[0].weight)

    def loss_of(now: torch.Tensor, then: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(reward + 0.95 * other(then), value(now))  # named

    parameters = chain(value.parameters(), other.parameters())
    _values(loss_of, torch.optim.SGD(parameters, lr=1e-3))


# rows that are trained on and evaluated -----------------------------------------------------------


class _Rows(Dataset[tuple[torch.Tensor, int]]):
    """Rows of an array, or of its copy."""

    def __init__(self, rows: np.ndarray, labels: np.ndarray) -> None:
        self.rows, self.labels = rows, labels

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.rows[index]), int(self.labels[index])


def _evaluates(
    train: Dataset[tuple[torch.Tensor, int]],
    *others: Dataset[tuple[torch.Tensor, int]],
    epochs: int = 3,
) -> None:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        for x, y in DataLoader(train, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            for one in others if epoch >= 3 - epochs else ():
                for x, y in DataLoader(one, batch_size=16):
                    (model(x).argmax(1) == y).float().mean()


def _arrays() -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(0)
    return numbers.standard_normal((_ROWS, _WIDTH), "float32"), numbers.integers(3, size=_ROWS)


def slices_of_tensors_that_overlap(planted: bool) -> None:
    """The cut is not the same. The twin's slices have no row in common."""
    x, y = map(torch.from_numpy, _arrays())
    held = 48 if planted else 64
    _evaluates(TensorDataset(x[:64], y[:64]), TensorDataset(x[held:], y[held:]))


def array_for_both_splits(planted: bool) -> None:
    """The class forgets its split. The twin computes the features of all rows once, at the end."""
    rows, labels = _arrays()
    _evaluates(_Rows(rows, labels), _Rows(rows, labels), epochs=3 if planted else 1)


def tensors_evaluated_whole(planted: bool) -> None:
    """The training's rows alone are evaluated. The twin evaluates them beside others."""
    x, y = map(torch.from_numpy, _arrays())
    rest = [] if planted else [TensorDataset(x[64:], y[64:])]
    _evaluates(TensorDataset(x[:64], y[:64]), *rest, TensorDataset(x[:64], y[:64]))


# data that hold NaN -------------------------------------------------------------------------------


def _fits(x: torch.Tensor) -> None:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.arange(len(x)) % 3).backward()
        optimizer.step()


def column_without_a_spread(planted: bool) -> None:
    """A column of one number is divided by its standard deviation."""
    x = torch.randn(_ROWS, _WIDTH)
    x[:, 3] = 5.0
    _fits((x - x.mean(0)) / (x.std(0) + (0 if planted else 1e-6)))


def degrees_of_lone_nodes(planted: bool) -> None:
    """A node without edges has degree 0. The twin's nodes have an edge to themselves."""
    edges = (torch.rand(_ROWS, _ROWS) < 0.05).float().fill_diagonal_(0 if planted else 1)
    edges[5:40] = edges[5:40] * (0 if planted else 1)
    norm = edges.sum(1).pow(-0.5)
    _fits(norm[:, None] * edges * norm @ torch.randn(_ROWS, _WIDTH))


def missing_values(planted: bool) -> None:
    """Rows of a table without a number. The twin fills them in."""
    x = torch.randn(_ROWS, _WIDTH)
    x[::3, 2] = float("nan")
    _fits(x if planted else x.nan_to_num())


# statistics of layers that ran before their model -------------------------------------------------


def statistics_of_a_part_called_before(planted: bool) -> None:
    """A backbone warms up alone, and is frozen as a part of the model."""
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    with torch.no_grad():
        backbone(torch.randn(8, 1, 8, 8))
    backbone.requires_grad_(False)
    model = nn.Sequential(backbone, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model[-1].parameters(), lr=0.01)
    for _ in range(24):
        model.train()
        backbone.train(planted)
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(4, 1, 8, 8)), torch.randint(3, (4,))).backward()
        optimizer.step()


FAULTS = (
    *forms(
        "a copy that makes the target and is trained",
        "losses and modes",
        "wrong_loss",
        "gradients flow through it",
        target_network_in_the_optimizer,
        critics_of_one_module,
        value_and_its_copy,
    ),
    *forms(
        "rows that are trained on and evaluated",
        "learning",
        "repeated_data",
        "both datasets hold their rows",
        slices_of_tensors_that_overlap,
        array_for_both_splits,
        tensors_evaluated_whole,
    ),
    *forms(
        "data that hold NaN",
        "inputs, units and losses",
        "exploding_gradient",
        "The data have it already",
        column_without_a_spread,
        degrees_of_lone_nodes,
        missing_values,
    ),
    *forms(
        "running statistics of frozen layers",
        "memory and checkpoints",
        "evaluation_mode",
        "is frozen",
        statistics_of_a_part_called_before,
    ),
)
