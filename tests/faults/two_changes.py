"""Programs that are compared with a baseline in which labels, a call or the number of samples is
another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.faults.two_runs import net, plain, train, two_run_faults

_ROWS = 96


def _loads(
    label: Callable[[torch.Tensor], torch.Tensor] = torch.clone, rows: int = _ROWS, size: int = 16
) -> None:
    """Trains on samples with the labels that `label` makes of those that they have."""
    numbers = torch.Generator().manual_seed(2)
    x = torch.randn(_ROWS, 8, generator=numbers)
    y = label((x.sum(1) > 0).long() + 2 * (x[:, 0] > 0))
    model = net()
    data = DataLoader(TensorDataset(x[:rows], y[:rows]), batch_size=size, shuffle=True)
    train(model, data=iter(data))


def plain_loads() -> None:
    """The baseline of what follows."""
    _loads()


# labels -------------------------------------------------------------------------------------------


def labels_of_chance(planted: bool) -> None:
    """A third of them is drawn; the twin draws and uses none."""
    numbers = torch.Generator().manual_seed(3)
    drawn = torch.randint(4, (_ROWS,), generator=numbers)
    chosen = torch.rand(_ROWS, generator=numbers) < 0.3
    _loads(lambda y: torch.where(chosen & planted, drawn, y))


def two_classes_in_one(planted: bool) -> None:
    """The last class is taken for another one."""
    _loads(lambda y: y.clamp(max=2 if planted else 3))


def labels_that_begin_with_one(planted: bool) -> None:
    """They are moved by one, the last to the first."""
    _loads(lambda y: (y + planted) % 4)


# samples ------------------------------------------------------------------------------------------


def samples_left_out(planted: bool) -> None:
    """A file is read to its middle."""
    _loads(rows=_ROWS // 2 if planted else _ROWS)


def another_share_of_samples(planted: bool) -> None:
    """More of them are kept for an evaluation; the twin cuts off none."""
    _loads(rows=_ROWS - 16 * planted)


def one_sample_less(planted: bool) -> None:
    """A loop over them begins with the second."""
    _loads(rows=_ROWS - planted)


# calls --------------------------------------------------------------------------------------------


def a_term_of_the_loss(planted: bool) -> None:
    """The weights of a layer are made small; the twin computes that and adds it to nothing."""
    model = net()

    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        penalty = model.first.weight.square().sum()
        return F.cross_entropy(out, y) + 0.01 * penalty if planted else F.cross_entropy(out, y)

    train(model, loss)


def a_hook_on_a_gradient(planted: bool) -> None:
    """It doubles the gradient; the twin's looks at it."""
    model: Any = net()

    def hook(gradient: torch.Tensor) -> torch.Tensor | None:
        return gradient.mul(2.0) if planted else None

    model.second.weight.register_hook(hook)
    train(model)


def probabilities_for_the_loss(planted: bool) -> None:
    """A softmax is added before the loss, which has its own; the twin's is for an accuracy."""

    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        chances = out.softmax(1)
        return F.cross_entropy(chances if planted else out, y)

    train(net(), loss)


FAULTS = (
    *two_run_faults(
        "other labels",
        "the model gets the same inputs",
        (labels_of_chance, plain_loads),
        (two_classes_in_one, plain_loads),
        (labels_that_begin_with_one, plain_loads),
    ),
    *two_run_faults(
        "a dataset of another length",
        f"samples, {_ROWS} in the baseline",
        (samples_left_out, plain_loads),
        (another_share_of_samples, plain_loads),
        (one_sample_less, plain_loads),
    ),
    *two_run_faults(
        "a call that the baseline does not make",
        "the run alone calls",
        (a_term_of_the_loss, plain),
        (a_hook_on_a_gradient, plain),
        (probabilities_for_the_loss, plain),
    ),
)
