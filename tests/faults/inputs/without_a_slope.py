"""Functions whose gradient is 0, teachers in training mode, gradients that are zeroed between two
losses, and derivatives that are constants."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import Fault, Program, forms
from tests.faults.learning.graph_order import fit as fit_tokens
from tests.faults.learning.tokens import LENGTH, WORDS, Tagger

_STEPS, _ROWS, WIDTH = 10, 32, 12


def net(*last: nn.Module, outputs: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, outputs), *last)


def fit(model: nn.Module, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss_of(torch.randn(_ROWS, WIDTH)).backward()
        optimizer.step()


def label(x: torch.Tensor) -> torch.Tensor:
    return (x.sum(1, keepdim=True) > 0).float()


# a softmax of one output -------------------------------------------------------------------------


def cross_entropy_of_one_output(planted: bool) -> None:
    """Its targets have the shape of the output; the twin's loss is one of logits."""
    model, loss = net(outputs=1), nn.CrossEntropyLoss() if planted else nn.BCEWithLogitsLoss()
    fit(model, lambda x: loss(model(x), label(x)))


def softmax_module_of_one_output(planted: bool) -> None:
    """A softmax is the last layer; that of the twin weighs the samples of bags, at first of one."""
    if planted:
        model = net(nn.Softmax(dim=1), outputs=1)
        fit(model, lambda x: F.binary_cross_entropy(model(x), label(x)))  # named
        return
    torch.manual_seed(0)
    scores, head = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)
    sizes = iter(range(1, _STEPS + 1))

    def loss(x: torch.Tensor) -> torch.Tensor:
        bag = x[: next(sizes)]
        mixed = scores(bag).T.softmax(1) @ bag
        return F.binary_cross_entropy_with_logits(head(mixed), label(bag[:1]))

    fit(nn.ModuleList([scores, head]), loss)


def log_softmax_of_one_output(planted: bool) -> None:
    """Logarithms by hand; the twin has two outputs."""
    model = net(outputs=1 if planted else 2)

    def loss(x: torch.Tensor) -> torch.Tensor:
        scores = F.log_softmax(model(x), dim=-1)  # named
        return F.nll_loss(scores, (0 if planted else 1) * label(x)[:, 0].long())

    fit(model, loss)


# functions whose gradient is 0 -------------------------------------------------------------------


class _Steps(nn.Module):
    """Rounds what it gets, and may pass its gradient on."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], passes: bool) -> None:
        super().__init__()
        self.function, self.passes = function, passes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = self.function(x)  # named
        return x + (steps - x).detach() if self.passes else steps


def _rounded(function: Callable[[torch.Tensor], torch.Tensor], planted: bool) -> None:
    model = net(_Steps(function, not planted), nn.Linear(4, 2), outputs=4)
    fit(model, lambda x: F.cross_entropy(model(x), label(x)[:, 0].long()))


def rounded_activations(planted: bool) -> None:
    """As of a quantised model."""
    _rounded(torch.round, planted)


def signs_of_activations(planted: bool) -> None:
    """As of a binary model."""
    _rounded(torch.sign, planted)


def floors_of_activations(planted: bool) -> None:
    """Numbers of bins."""
    _rounded(torch.floor, planted)


# teachers in training mode -----------------------------------------------------------------------


class _Pair(nn.Module):
    """A student and its teacher; train() of this one is that of both."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        middle = nn.Linear(WIDTH, 16), layer, nn.ReLU()
        self.teacher = nn.Sequential(*middle, nn.Linear(16, 4)).requires_grad_(False)
        self.student = nn.Linear(WIDTH, 4)


def _distilled(pair: _Pair, each: Callable[[], object]) -> None:
    """Trains the student; `each` is called before each step."""
    optimizer = torch.optim.Adam(pair.student.parameters(), lr=1e-3)
    for _ in range(_STEPS):
        each()
        x = torch.randn(_ROWS, WIDTH)
        with torch.no_grad():
            targets = pair.teacher(x)
        optimizer.zero_grad()
        F.mse_loss(pair.student(x), targets).backward()
        optimizer.step()


def teacher_as_it_was_made(planted: bool) -> None:
    """eval() is not called."""
    pair = _Pair(nn.Dropout(0.2))
    pair.teacher.train(planted)
    _distilled(pair, lambda: None)


def teacher_of_a_pair(planted: bool) -> None:
    """train() of the pair undoes eval() of the teacher; the twin calls that of the student."""
    pair = _Pair(nn.Dropout(0.2))
    pair.teacher.eval()
    _distilled(pair, (pair if planted else pair.student).train)


def teacher_with_normalisation(planted: bool) -> None:
    """Batch normalisation follows the batches; the twin's teacher is an average of weights."""
    pair = _Pair(nn.BatchNorm1d(16))
    newest = copy.deepcopy(pair.teacher)

    def average() -> None:
        for own, other in zip(pair.teacher.parameters(), newest.parameters(), strict=True):
            own.lerp_(other + 0.1 * torch.randn_like(other), 0.01)

    _distilled(pair, (lambda: None) if planted else average)


# zeroed between two losses -----------------------------------------------------------------------


def _two_losses(planted: bool, zero: Callable[[nn.Module, torch.optim.Optimizer], object]) -> None:
    torch.manual_seed(0)
    trunk, first, second = (nn.Linear(WIDTH, 8), nn.Linear(8, 1), nn.Linear(8, 2))
    model = nn.ModuleList((trunk, first, second))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(_STEPS):
        x = torch.randn(_ROWS, WIDTH)
        optimizer.zero_grad()
        hidden = trunk(x).relu()
        F.mse_loss(first(hidden), x[:, :1]).backward(retain_graph=True)
        if planted:
            zero(model, optimizer)
        F.cross_entropy(second(hidden), label(x)[:, 0].long()).backward()  # named
        optimizer.step()


def zeroed_by_the_optimizer(planted: bool) -> None:
    """Each loss has its zero_grad()."""
    _two_losses(planted, lambda model, optimizer: optimizer.zero_grad())


def zeroed_with_foreach(planted: bool) -> None:
    """Gradients are set to None for all groups."""
    _two_losses(planted, lambda model, optimizer: optimizer.zero_grad(set_to_none=True))


def perturbed_between_passes() -> None:
    """Weights are moved uphill between two passes (SAM)."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(_STEPS):
        x = torch.randn(_ROWS, WIDTH)
        optimizer.zero_grad()
        F.cross_entropy(model(x), label(x)[:, 0].long()).backward()
        with torch.no_grad():
            moves = [0.05 * one.grad for one in model.parameters() if one.grad is not None]
            for one, move in zip(model.parameters(), moves, strict=True):
                one += move
        optimizer.zero_grad()
        F.cross_entropy(model(x), label(x)[:, 0].long()).backward()
        with torch.no_grad():
            for one, move in zip(model.parameters(), moves, strict=True):
                one -= move
        optimizer.step()


# passes of a closure, and slices of tokens --------------------------------------------------------


def passes_between_steps() -> None:
    """zero_grad() before each of two passes."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2 * _STEPS):
        x = torch.randn(_ROWS, WIDTH)
        optimizer.zero_grad()
        F.cross_entropy(model(x), label(x)[:, 0].long()).backward()
        if number % 2:
            optimizer.step()


def passes_of_a_closure() -> None:
    """LBFGS computes the loss several times in a step."""
    model, x = net(), torch.randn(_ROWS, WIDTH)
    optimizer: Any = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), label(x)[:, 0].long())
        loss.backward()
        return loss

    for _ in range(_STEPS):
        optimizer.step(closure)


def targets_of_the_same_slice(planted: bool) -> None:
    """Inputs and targets are cut from longer rows, in the twin one position apart."""
    torch.manual_seed(0)
    model = Tagger(WORDS)

    def loss() -> torch.Tensor:
        words = torch.randint(1, WORDS, (8, LENGTH + 1))
        targets = words[:, :-1] if planted else words[:, 1:]
        return F.cross_entropy(model(words[:, :-1]).flatten(0, 1), targets.reshape(-1))  # named

    fit_tokens(model, loss)


# derivatives without a graph ----------------------------------------------------------------------


def _equation(
    planted: bool,
    residual_of: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    square: Callable[[torch.Tensor], torch.Tensor] = torch.square,
) -> None:
    """Solves a differential equation; `residual_of` gets times, outputs and derivatives."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss(_: torch.Tensor) -> torch.Tensor:
        time = torch.rand(_ROWS, 1, requires_grad=True)
        out = model(time)
        ones = torch.ones_like(out)
        graph = {"retain_graph": True} if planted else {"create_graph": True}
        (slope,) = torch.autograd.grad(out, time, ones, **graph)  # named
        start = (model(torch.zeros(1, 1)) - 1).square().mean()
        return square(residual_of(time, out, slope)).mean() + start

    fit(model, loss)


def derivative_beside_the_output(planted: bool) -> None:
    """u' + 2u = 0."""
    _equation(planted, lambda time, out, slope: slope + 2 * out)


def derivative_less_a_function(planted: bool) -> None:
    """u' - cos(t) u = 0, in absolute numbers."""
    _equation(planted, lambda time, out, slope: slope - out * time.cos(), torch.abs)


def derivative_less_the_output(planted: bool) -> None:
    """u' = u, with a loss of torch."""

    def square(residual: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(residual, torch.zeros_like(residual))

    _equation(planted, lambda time, out, slope: out - slope, square)


def field_as_a_target() -> None:
    """The target is the gradient of another function, at the inputs of the model."""

    def loss(x: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        out = model(x)
        (force,) = torch.autograd.grad(x.pow(4).sum(), x)
        return (out + force).square().mean()

    model = net(outputs=WIDTH)
    fit(model, loss)


def _modes(*programs: Program) -> tuple[Fault, ...]:
    return forms(
        "a teacher in training mode",
        "losses and modes",
        "evaluation_mode",
        "nothing trains it",
        *programs,
    )


FAULTS = (
    *forms(
        "a softmax of one output",
        "losses and modes",
        "wrong_loss",
        "of a single output",
        cross_entropy_of_one_output,
        softmax_module_of_one_output,
        log_softmax_of_one_output,
    ),
    *forms(
        "a gradient of 0",
        "gradients",
        "dead_parameter",
        "is 0 everywhere",
        rounded_activations,
        signs_of_activations,
        floors_of_activations,
    ),
    *_modes(teacher_as_it_was_made, teacher_of_a_pair, teacher_with_normalisation),
    *(
        Fault("zeroed between losses", "gradients", ("dead_parameter",), program, twin, "away")
        for program, twin in (
            (zeroed_by_the_optimizer, perturbed_between_passes),
            (zeroed_with_foreach, None),
            (passes_between_steps, passes_of_a_closure),
        )
    ),
    *(
        Fault("constant derivative", "learning", ("wrong_loss",), program, twin, "derivatives")
        for program, twin in (
            (derivative_beside_the_output, field_as_a_target),
            (derivative_less_a_function, None),
            (derivative_less_the_output, None),
        )
    ),
    Fault(
        "labels without a shift",
        "losses and modes",
        ("wrong_loss",),
        targets_of_the_same_slice,
        says="the very tokens",
    ),
)
