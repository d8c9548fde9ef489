"""Updates that nothing uses, gradients that are zeroed once per epoch, plateaus, weights whose
gradient cancels, and parts of a loss that are numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import Fault

STEPS, ROWS, WIDTH = 10, 16, 8


def net() -> nn.Module:
    """Two layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 2))


def fit(model: nn.Module, after: Callable[[], None], rate: float = 0.01) -> None:
    """Trains for some steps; `after` runs after each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(STEPS):
        x = torch.randn(ROWS, WIDTH)
        loss = F.cross_entropy(model(x), (x.sum(1) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after()


def average_is_a_name(planted: bool) -> None:
    """An average of parameters is given the name of the one that should hold it."""
    model = net()
    shadow = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update() -> None:
        for old, new in zip(shadow.parameters(), model.parameters(), strict=True):
            average = 0.9 * old + 0.1 * new  # named
            if not planted:
                old.copy_(average)

    fit(model, update)


def weights_are_clipped_in_vain(planted: bool) -> None:
    """clamp() without its underscore."""
    model = net()

    def clip() -> None:
        for one in model.parameters():
            if planted:
                one.data.clamp(-0.1, 0.1)  # named
            else:
                one.data.clamp_(-0.1, 0.1)

    fit(model, clip)


def decay_by_hand_is_a_name(planted: bool) -> None:
    """Parameters are decayed by hand."""
    model = net()

    def decay() -> None:
        with torch.no_grad():
            for name, one in model.named_parameters():
                smaller = one * 0.999  # named
                if not planted:
                    model.get_parameter(name).data = smaller

    fit(model, decay)


class Bounded(nn.Sequential):
    """Actions within bounds, which are buffers, and how likely they are."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.register_buffer("scale", torch.full((1,), 2.0))
        self.register_buffer("middle", torch.zeros(1))

    def act(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self(x)
        return scores.mean().tanh() * self.scale + self.middle, scores.log_softmax(1)


def changes_are_written_down() -> None:
    """How far parameters have moved is computed and printed, and how likely actions are."""
    model = Bounded(*net().children())
    first = [one.detach().clone() for one in model.parameters()]

    def show() -> None:
        with torch.no_grad():
            moved = [(one - old).norm() for one, old in zip(model.parameters(), first, strict=True)]
            _, likely = model.act(torch.randn(ROWS, WIDTH))
        print(torch.stack(moved).max().item(), likely.mean().item())

    fit(model, show)


def averages_in_a_dictionary() -> None:
    """Averages are kept beside the model, and never loaded."""
    model = net()
    kept = {name: one.detach().clone() for name, one in model.named_parameters()}

    @torch.no_grad()
    def update() -> None:
        for name, one in model.named_parameters():
            kept[name] = 0.9 * kept[name] + 0.1 * one

    fit(model, update)


# gradients of an epoch ---------------------------------------------------------------------------

EPOCHS, BATCHES = 3, 20


def epochs(model: nn.Module, planted: bool, step: Callable[[torch.Tensor], None]) -> None:
    """Zeroes once per epoch, or before each backward."""
    for _ in range(EPOCHS):
        if planted:
            model.zero_grad(set_to_none=False)
        for _ in range(BATCHES):
            if not planted:
                model.zero_grad(set_to_none=False)
            x = torch.randn(ROWS, WIDTH)
            step(F.cross_entropy(model(x), (x.sum(1) > 0).long()))


def zeroed_once_per_epoch(planted: bool) -> None:
    """With plain gradient descent."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(loss: torch.Tensor) -> None:
        loss.backward()
        optimizer.step()

    epochs(model, planted, step)


def zeroed_once_per_epoch_with_momentum(planted: bool) -> None:
    """With Adam, whose steps hide the size."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(loss: torch.Tensor) -> None:
        loss.backward()
        optimizer.step()

    epochs(model, planted, step)


def zeroed_once_per_epoch_and_clipped(planted: bool) -> None:
    """With clipping in between."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(loss: torch.Tensor) -> None:
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1000.0)
        optimizer.step()

    epochs(model, planted, step)


# plateaus in the wrong mode ----------------------------------------------------------------------


def plateaus(planted: bool, numbers: Callable[[int], float], **options: float) -> None:
    """Gives a scheduler a number after each epoch."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mode: Any = "max" if planted else "min"
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode, patience=1, **options)
    for epoch in range(EPOCHS * 4):
        x = torch.randn(ROWS, WIDTH)
        loss = F.cross_entropy(model(x), (x.sum(1) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step(numbers(epoch))  # named


def loss_in_mode_max(planted: bool) -> None:
    """A loss falls from epoch to epoch."""
    plateaus(planted, lambda epoch: 2.0 * 0.8**epoch)


def error_in_mode_max(planted: bool) -> None:
    """An error rate falls, with a rise now and then."""
    plateaus(planted, lambda epoch: 40.0 - 3.0 * epoch + 4.0 * (epoch == 5))


def perplexity_in_mode_max(planted: bool) -> None:
    """A perplexity falls slowly."""
    plateaus(planted, lambda epoch: 100.0 / (1 + 0.2 * epoch), cooldown=1)


def accuracy_that_rises() -> None:
    """What mode "max" is for."""
    plateaus(True, lambda epoch: 1 - 0.9 * 0.8**epoch)


# gradients that cancel ---------------------------------------------------------------------------


class Rounded(nn.Linear):
    """A layer whose weight `quantise` rounds."""

    def __init__(self, quantise: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__(WIDTH, 32)
        self.quantise = quantise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.quantise(self.weight), self.bias)


def quantised(quantise: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Trains a quantised layer and a plain one."""
    torch.manual_seed(0)
    fit(nn.Sequential(Rounded(quantise), nn.ReLU(), nn.Linear(32, 2)), lambda: None)


def straight_through_without_detach(planted: bool) -> None:
    """Rounding whose gradient cancels."""

    def quantise(weight: torch.Tensor) -> torch.Tensor:
        change = (weight * 8).round() / 8 - weight
        return weight + (change if planted else change.detach())

    quantised(quantise)


def signs_of_weights(planted: bool) -> None:
    """A binary layer."""

    def quantise(weight: torch.Tensor) -> torch.Tensor:
        signs = weight.sign() * 0.1
        return signs if planted else signs.detach() + weight - weight.detach()

    quantised(quantise)


def rounded_weights(planted: bool) -> None:
    """round() alone, as a parametrisation would."""

    def quantise(weight: torch.Tensor) -> torch.Tensor:
        whole = (weight * 16).round()
        return (whole if planted else weight * 16 + (whole - weight * 16).detach()) / 16

    quantised(quantise)


# losses that are numbers --------------------------------------------------------------------------


def _two_tasks(add: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
    """Trains two heads; `add` returns the sum of their losses."""
    torch.manual_seed(0)
    body, classes, boxes = nn.Linear(WIDTH, 32), nn.Linear(32, 2), nn.Linear(32, 4)
    optimizer = torch.optim.Adam(nn.ModuleList([body, classes, boxes]).parameters(), lr=0.01)
    for _ in range(STEPS):
        x = torch.randn(ROWS, WIDTH)
        h = body(x).relu()
        loss = add(F.cross_entropy(classes(h), (x[:, 0] > 0).long()), F.l1_loss(boxes(h), x[:, :4]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loss_of_boxes_as_a_number(planted: bool) -> None:
    """What is logged is added; the twin logs it as well."""
    logged = []

    def add(classes: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        logged.append(boxes.item())  # named
        return classes + 0.5 * (logged[-1] if planted else boxes)

    _two_tasks(add)


def losses_in_a_dictionary_of_floats(planted: bool) -> None:
    """float() of one of two losses; the twin takes a weight so, of what has no gradient."""

    def add(classes: torch.Tensor, boxes: torch.Tensor) -> Any:
        if planted:
            losses = {"classes": classes, "boxes": float(boxes)}  # named
            return sum(losses.values())
        return classes + float(classes.detach() / boxes.detach()) * boxes

    _two_tasks(add)


def penalty_made_again(planted: bool) -> None:
    """torch.tensor(...) of a number, with a gradient of its own."""

    def add(classes: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        if planted:
            boxes = torch.tensor(boxes.item(), requires_grad=True)  # named
        return classes + boxes

    _two_tasks(add)


FAULTS = (
    *(
        Fault(
            "loss that is a number",
            "learning",
            ("dead_parameter",),
            program,
            says="makes a Python number",
        )
        for program in (
            loss_of_boxes_as_a_number,
            losses_in_a_dictionary_of_floats,
            penalty_made_again,
        )
    ),
    *(
        Fault("update that is not used", "learning", ("dead_parameter",), program, twin, "never")
        for program, twin in (
            (average_is_a_name, averages_in_a_dictionary),
            (weights_are_clipped_in_vain, changes_are_written_down),
            (decay_by_hand_is_a_name, None),
        )
    ),
    *(
        Fault("zeroed once per epoch", "learning", ("exploding_gradient",), program, says="zeroed")
        for program in (
            zeroed_once_per_epoch,
            zeroed_once_per_epoch_with_momentum,
            zeroed_once_per_epoch_and_clipped,
        )
    ),
    *(
        Fault("wrong plateau", "learning", ("dead_parameter",), program, twin, "ReduceLROnPlateau")
        for program, twin in (
            (loss_in_mode_max, None),
            (error_in_mode_max, accuracy_that_rises),
            (perplexity_in_mode_max, None),
        )
    ),
    *(
        Fault("gradient that cancels", "learning", ("dead_parameter",), program, says="zero in all")
        for program in (straight_through_without_detach, signs_of_weights, rounded_weights)
    ),
)
