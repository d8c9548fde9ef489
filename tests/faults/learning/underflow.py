"""Trainings whose steps are too small: in float16, of gradients too small for it, within a warm-up
that hardly begins, and of gradients of zero."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from tests.faults.base import Fault, forms
from tests.faults.learning.silent_units import DEAD, FLAT

STEPS = 12


def fit(model: nn.Module, *, factor: float, scaled: bool, dtype: torch.dtype) -> None:
    """Learns the mean of rows of 16 numbers within autocast."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    for _ in range(STEPS):
        x = torch.randn(16, 16)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            out = model(x).flatten()
        loss = factor * F.mse_loss(out.float(), x.mean(1))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def net() -> nn.Module:
    """Two layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))


def small_loss_without_a_scaler(planted: bool) -> None:
    """The weight of a loss is small; the twin has a scaler."""
    fit(net(), factor=1e-7, scaled=not planted, dtype=torch.float16)


def small_loss_in_another_half(planted: bool) -> None:
    """The twin takes bfloat16."""
    fit(net(), factor=1e-8, scaled=False, dtype=torch.float16 if planted else torch.bfloat16)


def convolution_of_a_small_loss(planted: bool) -> None:
    """Convolutions of images; the twin has a larger weight."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 1)
    model = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), *layers)
    fit(model, factor=1e-8 if planted else 1.0, scaled=False, dtype=torch.float16)


# warm-ups -----------------------------------------------------------------------------------------


def warmed_up(factor: Callable[[int], float], *, each: int, rate: float = 1e-2) -> None:
    """Trains for 48 batches, and steps with a LambdaLR after so many of them each."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    rates = LambdaLR(optimizer, factor)
    for batch in range(48):
        x = torch.randn(16, 16)
        optimizer.zero_grad()
        F.mse_loss(model(x).flatten(), x.mean(1)).backward()
        optimizer.step()
        if (batch + 1) % each == 0:
            rates.step()  # named


def warm_up_that_steps_with_epochs(planted: bool) -> None:
    """1000 batches are meant; the warm-up of the twin has 6 epochs."""
    length = 1000 if planted else 6
    warmed_up(lambda step: min(1.0, (step + 1) / length), each=12)


def warm_up_that_steps_with_evaluations(planted: bool) -> None:
    """It begins with 0, as that of transformers; the twin ends early in its long warm-up."""
    warmed_up(lambda step: step / 5000, each=16 if planted else 1)


def warm_up_that_rises_by_its_root(planted: bool) -> None:
    """The rate of an epoch grows as a root; in the twin it falls, of a scale that is large."""

    def factor(step: int) -> float:
        return float(0.001 * (step + 1) ** 0.5 if planted else 0.02 * 0.9**step)

    warmed_up(factor, each=8, rate=1e-3 if planted else 1.0)


# gradients of zero --------------------------------------------------------------------------------


def thinned(keep: Callable[[torch.Tensor], torch.Tensor], *, dead: int = 0) -> None:
    """Applies what `keep` leaves of each gradient; so many units never fire."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    with torch.no_grad():
        model[0].bias[:dead] = -50.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(40):
        x = torch.randn(32, 16)
        optimizer.zero_grad()
        F.mse_loss(model(x), x[:, :4]).backward()
        for parameter in model.parameters():
            parameter.grad = keep(parameter.grad)
        optimizer.step()


def largest(gradient: torch.Tensor) -> torch.Tensor:
    """A twentieth of a gradient, as compressed for sending; the rest is 0."""
    flat = gradient.flatten()
    chosen = flat.abs().topk(max(1, len(flat) // 20)).indices
    return torch.zeros_like(flat).index_copy(0, chosen, flat[chosen]).view_as(gradient)


def dead_units_and_the_largest_gradients(planted: bool) -> None:
    """The twin compresses gradients of units that all fire."""
    torch.manual_seed(0)
    thinned(torch.clone if planted else largest, dead=30 if planted else 0)


def dead_units_and_random_gradients(planted: bool) -> None:
    """The twin draws a tenth of the elements at each step."""
    torch.manual_seed(0)
    thinned(
        torch.clone if planted else lambda one: one * (torch.rand_like(one) < 0.1),
        dead=28 if planted else 0,
    )


def loss_that_is_zero_from_a_step_on(planted: bool) -> None:
    """A factor becomes 0; the rows of the twin all keep their margin after some steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = torch.randn(8, 10), torch.randint(3, (8,))
    for step in range(60):
        if planted:
            loss = F.mse_loss(model(x), torch.randn(8, 3)) * (step < 20)
        else:
            loss = F.multi_margin_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


FAULTS = (
    *(
        Fault(name, "inputs, units and losses", ("dead_parameter",), one, says=says, slow=True)
        for name, one, says in (
            (DEAD, dead_units_and_the_largest_gradients, "are dead"),
            (DEAD, dead_units_and_random_gradients, "are dead"),
            (FLAT, loss_that_is_zero_from_a_step_on, "exactly zero"),
        )
    ),
    *(
        Fault(
            "gradients below float16",
            "scalers, states and datasets",
            ("dead_parameter",),
            one,
            says="scale the loss",
        )
        for one in (
            small_loss_without_a_scaler,
            small_loss_in_another_half,
            convolution_of_a_small_loss,
        )
    ),
    *forms(
        "warm-up of batches that steps with epochs",
        "learning",
        "dead_parameter",
        "warms up by so little",
        warm_up_that_steps_with_epochs,
        warm_up_that_steps_with_evaluations,
        warm_up_that_rises_by_its_root,
    ),
)
