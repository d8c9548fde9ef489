"""Programs that are compared with a baseline, and begin with something else than it does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.two_runs import Net, train, two_run_faults


def _with(change: Callable[[Any], object], loss: Any = F.cross_entropy) -> None:
    """Trains a model with dropout, after `change` got it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = Net()
    model.norm = nn.Sequential(nn.LayerNorm(16), nn.Dropout(0.1), nn.BatchNorm1d(16))
    change(model)
    train(model, loss)


def plain_with() -> None:
    """The baseline of what follows."""
    _with(unchanged)


def unchanged(model: Any) -> None:
    """Changes nothing."""


def another_rate_of_dropout(planted: bool) -> None:
    """A rate of another recipe; the twin sets the same one."""
    _with(lambda model: setattr(model.norm[1], "p", 0.5 if planted else 0.1))


def another_epsilon(planted: bool) -> None:
    """Of batch normalisation."""

    def change(model: Any) -> None:
        model.norm[2].eps = 1e-2 if planted else 1e-5

    _with(change)


def smoothed_labels(planted: bool) -> None:
    """The loss is a module, as in its baseline."""
    _with(unchanged, nn.CrossEntropyLoss(label_smoothing=0.1 if planted else 0.0))


def plain_loss_module() -> None:
    """Its baseline."""
    _with(unchanged, nn.CrossEntropyLoss())


def evaluated_before(planted: bool) -> None:
    """eval() without train() after it."""

    def change(model: Any) -> None:
        model.eval()
        if not planted:
            model.train()

    _with(change)


def evaluated_in_the_middle(planted: bool) -> None:
    """From the fifth step on."""
    calls = [0]

    def change(model: Any) -> None:
        def count(*_: Any) -> None:
            calls[0] += 1
            if planted and calls[0] == 5:
                model.eval()

        model.head.register_forward_hook(count)

    _with(change)


def a_frozen_normalisation(planted: bool) -> None:
    """The whole model is in evaluation mode; the twin sets the mode that it has."""
    _with(lambda model: model.train(not planted))


def state_of_another_model(planted: bool) -> None:
    """The state of another model is loaded; the twin's is its own."""

    def change(model: Any) -> None:
        other = copy.deepcopy(model)
        for one in other.parameters():
            one.data.mul_(0.5 if planted else 1.0)
        model.load_state_dict(other.state_dict())

    _with(change)


def another_initialisation(planted: bool) -> None:
    """The head begins at zero; the twin's norm begins at one, as it did."""

    def change(model: Any) -> None:
        if planted:
            nn.init.zeros_(model.head.weight)
        else:
            nn.init.ones_(model.norm[0].weight)

    _with(change)


def a_tenth_of_a_layer(planted: bool) -> None:
    """A layer is scaled."""

    def change(model: Any) -> None:
        with torch.no_grad():
            model.second.weight.mul_(0.1 if planted else 1.0)

    _with(change)


FAULTS = (
    *two_run_faults(
        "another setting of a module",
        "settings differ: ",
        (another_rate_of_dropout, plain_with),
        (another_epsilon, plain_with),
        (smoothed_labels, plain_loss_module),
    ),
    *two_run_faults(
        "another mode",
        "is trained in evaluation mode",
        (evaluated_before, plain_with),
        (evaluated_in_the_middle, plain_with),
        (a_frozen_normalisation, plain_with),
    ),
    *two_run_faults(
        "other first parameters",
        "the first parameters differ",
        (state_of_another_model, plain_with),
        (another_initialisation, plain_with),
        (a_tenth_of_a_layer, plain_with),
    ),
)
