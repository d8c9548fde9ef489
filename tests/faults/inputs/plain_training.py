"""Mistakes of first programs: features that nothing scales, many sigmoids, rates and
decays of the wrong size, losses with the wrong sign, evaluations that keep training mode.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import Fault, Program

_STEPS, _ROWS, _WIDTH = 24, 32, 12


def _data(rows: int = _ROWS * _STEPS) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    classes = torch.randint(0, 3, (rows,))
    return torch.randn(3, _WIDTH)[classes] * 2 + torch.randn(rows, _WIDTH), classes


def _fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = F.cross_entropy,
    scaled: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
    each: Callable[[int], object] = lambda step: None,
    max_norm: float = 0.0,
) -> None:
    """Classifies rows; clips gradients to `max_norm`, and calls `each` after a step."""
    x, classes = _data()
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(_STEPS):
        rows = slice(step * _ROWS, (step + 1) * _ROWS)
        optimizer.zero_grad()
        loss = loss_of(model(scaled(x[rows])), classes[rows])
        loss.backward()
        if max_norm:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        each(step)


def _mlp(*last: nn.Module, width: int = _WIDTH) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 24), nn.ReLU(), nn.Linear(24, 3), *last)


# features that nothing scales --------------------------------------------------------------------


def column_of_incomes(planted: bool) -> None:
    """One column is of thousands; the twin standardises each."""
    scale = torch.ones(_WIDTH)
    scale[3] = 40_000 if planted else 40
    _fit(_mlp(), scaled=lambda x: x * scale)


def years_and_amounts(planted: bool) -> None:
    """All columns are large, and far from zero; a normalisation comes first in the twin."""
    norm: tuple[nn.Module, ...] = () if planted else (nn.BatchNorm1d(_WIDTH),)
    _fit(nn.Sequential(*norm, _mlp()), scaled=lambda x: x * 900 + 2000)


def bytes_divided_too_often(planted: bool) -> None:
    """The mean of bytes is subtracted from what was divided by 255 once too often."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        pixels = x.sigmoid().repeat(1, 8)
        return ((pixels / 255 if planted else pixels) - 0.49) / 0.25

    _fit(_mlp(width=_WIDTH * 8), scaled=scaled)


# many sigmoids -----------------------------------------------------------------------------------


def many_sigmoids(planted: bool) -> None:
    """Seven layers with a sigmoid each; the twin has relu."""
    torch.manual_seed(0)
    between = nn.Sigmoid if planted else nn.ReLU
    layers = [one for _ in range(7) for one in (nn.Linear(_WIDTH, _WIDTH), between())]
    _fit(nn.Sequential(*layers, nn.Linear(_WIDTH, 3)))


def functional_sigmoids(planted: bool) -> None:
    """forward calls a sigmoid after each layer of a list; the twin normalises before each."""
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(_WIDTH, _WIDTH) for _ in range(6)])
    norms = nn.ModuleList([nn.LayerNorm(_WIDTH) for _ in range(6)])

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.norms, self.head = layers, norms, nn.Linear(_WIDTH, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer, norm in zip(self.layers, self.norms, strict=True):
                x = torch.sigmoid(layer(x) if planted else norm(layer(x)))
            result: torch.Tensor = self.head(x)
            return result

    model = Deep()
    held = [*layers.parameters(), *model.head.parameters()]
    _fit(model, torch.optim.SGD(held if planted else model.parameters(), lr=0.1))


def sigmoids_of_a_factory(planted: bool) -> None:
    """A helper makes a stack of blocks; that of the twin is short."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Sigmoid()) for _ in range(8)]
    _fit(nn.Sequential(*blocks[: 8 if planted else 2], nn.Linear(_WIDTH, 3)))


# steps that change nothing, or all ---------------------------------------------------------------


def tiny_rate_of_sgd(planted: bool) -> None:
    """1e-8 in place of 1e-1; the twin warms up from there over more steps than it runs for."""
    model = _mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-8)
    plan = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 if planted else step + 1)
    _fit(model, optimizer, each=lambda step: plan.step())


def tiny_rate_with_momentum(planted: bool) -> None:
    """A rate of 1e-9; the twin has nearly reached the minimum before."""
    torch.manual_seed(0)
    model, (x, _) = nn.Linear(_WIDTH, 1, bias=False), _data()
    targets = x @ model.weight.detach().T + (x[:, :1] if planted else 1e-6)
    optimizer = torch.optim.SGD(model.parameters(), 1e-9 if planted else 1e-2, momentum=0.9)
    for step in range(_STEPS):
        optimizer.zero_grad()
        rows = slice(step * _ROWS, (step + 1) * _ROWS)
        F.mse_loss(model(x[rows]), targets[rows]).backward()
        optimizer.step()


def clipped_to_a_rate(planted: bool) -> None:
    """max_norm gets the number that was meant for the learning rate."""
    model = _mlp()
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    _fit(model, rule, max_norm=2e-5 if planted else 1.0)


def decay_of_a_fifth(planted: bool) -> None:
    """weight_decay is 2; that of the twin, which AdamW multiplies by a small rate, is 1."""
    model = _mlp()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=2.0)
    if not planted:
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=1.0)
    _fit(model, optimizer)


def sum_with_the_rate_of_a_mean(planted: bool) -> None:
    """reduction="sum" makes steps 32 times as large."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(_WIDTH, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)

    def loss_of(out: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        how = "sum" if planted else "mean"
        return F.mse_loss(out[:, 0], classes.float() * 4, reduction=how)

    _fit(model, optimizer, loss_of)


def one_step_per_epoch(planted: bool) -> None:
    """step() is behind the loop of an epoch; zero_grad() of the twin is too."""
    model, (x, classes) = _mlp(), _data()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(2):
        for step in range(12):
            if planted or not step:
                optimizer.zero_grad()
            rows = slice(step * _ROWS, (step + 1) * _ROWS)
            F.cross_entropy(model(x[rows]), classes[rows]).backward()
        optimizer.step()


# losses with the wrong sign ----------------------------------------------------------------------


def mean_likelihood(planted: bool) -> None:
    """The minus is missing."""

    def loss_of(out: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        chosen = F.log_softmax(out, 1).gather(1, classes[:, None])
        return chosen.mean() if planted else -chosen.mean()  # named

    _fit(_mlp(), loss_of=loss_of)


def likelihood_by_index(planted: bool) -> None:
    """Classes are chosen by an index; the twin weighs what it chooses, as a policy gradient."""

    def loss_of(out: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        chosen = out[torch.arange(len(classes)), classes]
        return chosen.mean() if planted else (chosen * torch.randn(len(classes))).mean()  # named

    _fit(_mlp(nn.LogSoftmax(1)), loss_of=loss_of)


def summed_likelihood(planted: bool) -> None:
    """A sum that is not negated."""

    def loss_of(out: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        chosen = out.log_softmax(-1).gather(-1, classes.unsqueeze(1)).squeeze(1)
        return chosen.sum() if planted else chosen.neg().sum()  # named

    model = _mlp()
    _fit(model, torch.optim.SGD(model.parameters(), lr=1e-3), loss_of)


# a whole set in one call -------------------------------------------------------------------------


def _evaluating(
    model: nn.Module, result_of: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[int], None]:
    x, classes = _data(200)

    def each(step: int) -> None:
        if step % 8 == 7:
            with torch.no_grad():
                print((result_of(x).argmax(1) == classes).float().mean())  # named

    return each


def whole_set_with_dropout(planted: bool) -> None:
    """eval() is missing; the twin averages several calls with dropout on purpose."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(_WIDTH, 24), nn.Dropout(0.2), nn.ReLU(), nn.Linear(24, 3))

    def result_of(x: torch.Tensor) -> torch.Tensor:
        results = [model(x).softmax(1) for _ in range(1 if planted else 6)]
        return torch.stack(results).mean(0)

    _fit(model, each=_evaluating(model, result_of))


def whole_set_with_normalisation(planted: bool) -> None:
    """eval() is missing; the twin calls it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(_WIDTH, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))

    def result_of(x: torch.Tensor) -> torch.Tensor:
        model.train(planted)
        result: torch.Tensor = model(x)
        model.train()
        return result

    _fit(model, each=_evaluating(model, result_of))


def slices_viewed_as_channels(planted: bool) -> None:
    """Batches are slices of pictures with channels last; view() in place of permute()."""
    torch.manual_seed(0)
    pictures, classes = torch.rand(_ROWS * _STEPS, 8, 8, 3), _data()[1]
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for first in range(0, _ROWS * _STEPS, _ROWS):
        batch = pictures[first : first + _ROWS]
        batch = batch.view(_ROWS, 3, 8, 8) if planted else batch.permute(0, 3, 1, 2)
        optimizer.zero_grad()
        F.cross_entropy(model(batch), classes[first : first + _ROWS]).backward()  # named
        optimizer.step()


def _forms(name: str, kind: str, says: str, *programs: Program) -> tuple[Fault, ...]:
    return tuple(Fault(name, "learning", (kind,), one, says=says) for one in programs)


FAULTS = (
    *_forms(
        "features that nothing scales",
        "wrong_scale",
        "first layer",
        column_of_incomes,
        years_and_amounts,
        bytes_divided_too_often,
    ),
    *_forms(
        "many sigmoids",
        "vanishing_gradient",
        "in a row end in a sigmoid",
        many_sigmoids,
        functional_sigmoids,
        sigmoids_of_a_factory,
    ),
    *_forms(
        "steps of the wrong size",
        "dead_parameter",
        "learning rate is 0 or next to it",
        tiny_rate_of_sgd,
        tiny_rate_with_momentum,
    ),
    *_forms("steps of the wrong size", "dead_parameter", "clipped to almost", clipped_to_a_rate),
    *_forms("steps of the wrong size", "dead_parameter", "weight decay is", decay_of_a_fifth),
    *_forms(
        "steps of the wrong size",
        "exploding_gradient",
        "Lower the learning rate, or take the mean",
        sum_with_the_rate_of_a_mean,
    ),
    *_forms(
        "accumulated gradients thrown away", "dead_parameter", "are thrown away", one_step_per_epoch
    ),
    *_forms(
        "likelihoods that are lowered",
        "wrong_loss",
        "without a minus sign",
        mean_likelihood,
        likelihood_by_index,
        summed_likelihood,
    ),
    *_forms(
        "a loss module in an evaluation without eval()",
        "evaluation_mode",
        "evaluated in training mode",
        whole_set_with_dropout,
        whole_set_with_normalisation,
    ),
    *_forms(
        "inputs whose dimensions view() exchanged",
        "mixed_samples",
        "is mixed up",
        slices_viewed_as_channels,
    ),
)
