"""Functions whose gradient is 0, teachers in training mode, gradients that are zeroed between two
losses, and derivatives that are constants."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import Fault, Program, forms
from tests.faults.learning.graph_order import fit as fit_tokens
from tests.faults.learning.tokens import LENGTH, WORDS, Tagger

_STEPS, _ROWS, _WIDTH = 10, 32, 12


def _net(*last: nn.Module, outputs: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(_WIDTH, 16), nn.ReLU(), nn.Linear(16, outputs), *last)


def _fit(model: nn.Module, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss_of(torch.randn(_ROWS, _WIDTH)).backward()
        optimizer.step()


def _label(x: torch.Tensor) -> torch.Tensor:
    return (x.sum(1, keepdim=True) > 0).float()


# a softmax of one output -------------------------------------------------------------------------


def cross_entropy_of_one_output(planted: bool) -> None:
    """Its targets have the shape of the output; the twin's loss is one of logits."""
    model, loss = _net(outputs=1), nn.CrossEntropyLoss() if planted else nn.BCEWithLogitsLoss()
    _fit(model, lambda x: loss(model(x), _label(x)))


def softmax_module_of_one_output(planted: bool) -> None:
    """A softmax is the last layer; in the twin a sigmoid."""
    model = _net(nn.Softmax(dim=1) if planted else nn.Sigmoid(), outputs=1)
    _fit(model, lambda x: F.binary_cross_entropy(model(x), _label(x)))  # named


def log_softmax_of_one_output(planted: bool) -> None:
    """Logarithms by hand; the twin has two outputs."""
    model = _net(outputs=1 if planted else 2)

    def loss(x: torch.Tensor) -> torch.Tensor:
        scores = F.log_softmax(model(x), dim=-1)  # named
        return F.nll_loss(scores, (0 if planted else 1) * _label(x)[:, 0].long())

    _fit(model, loss)


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
    model = _net(_Steps(function, not planted), nn.Linear(4, 2), outputs=4)
    _fit(model, lambda x: F.cross_entropy(model(x), _label(x)[:, 0].long()))


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
        middle = nn.Linear(_WIDTH, 16), layer, nn.ReLU()
        self.teacher = nn.Sequential(*middle, nn.Linear(16, 4)).requires_grad_(False)
        self.student = nn.Linear(_WIDTH, 4)


def _distilled(pair: _Pair, each: Callable[[], object]) -> None:
    """Trains the student; `each` is called before each step."""
    optimizer = torch.optim.Adam(pair.student.parameters(), lr=1e-3)
    for _ in range(_STEPS):
        each()
        x = torch.randn(_ROWS, _WIDTH)
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
    trunk, first, second = (nn.Linear(_WIDTH, 8), nn.Linear(8, 1), nn.Linear(8, 2))
    model = nn.ModuleList((trunk, first, second))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(_STEPS):
        x = torch.randn(_ROWS, _WIDTH)
        optimizer.zero_grad()
        hidden = trunk(x).relu()
        F.mse_loss(first(hidden), x[:, :1]).backward(retain_graph=True)
        if planted:
            zero(model, optimizer)
        F.cross_entropy(second(hidden), _label(x)[:, 0].long()).backward()  # named
        optimizer.step()


def zeroed_by_the_optimizer(planted: bool) -> None:
    """Each loss has its zero_grad()."""
    _two_losses(planted, lambda model, optimizer: optimizer.zero_grad())


def zeroed_with_foreach(planted: bool) -> None:
    """Gradients are set to None for all groups."""
    _two_losses(planted, lambda model, optimizer: optimizer.zero_grad(set_to_none=True))


def perturbed_between_passes() -> None:
    """Weights are moved uphill between two passes (SAM)."""
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(_STEPS):
        x = torch.randn(_ROWS, _WIDTH)
        optimizer.zero_grad()
        F.cross_entropy(model(x), _label(x)[:, 0].long()).backward()
        with torch.no_grad():
            moves = [0.05 * one.grad for one in model.parameters() if one.grad is not None]
            for one, move in zip(model.parameters(), moves, strict=True):
                one += move
        optimizer.zero_grad()
        F.cross_entropy(model(x), _label(x)[:, 0].long()).backward()
        with torch.no_grad():
            for one, move in zip(model.parameters(), moves, strict=True):
                one -= move
        optimizer.step()


# passes of a closure, and slices of tokens --------------------------------------------------------


def passes_between_steps() -> None:
    """zero_grad() before each of two passes."""
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2 * _STEPS):
        x = torch.randn(_ROWS, _WIDTH)
        optimizer.zero_grad()
        F.cross_entropy(model(x), _label(x)[:, 0].long()).backward()
        if number % 2:
            optimizer.step()


def passes_of_a_closure() -> None:
    """LBFGS computes the loss several times in a step."""
    model, x = _net(), torch.randn(_ROWS, _WIDTH)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), _label(x)[:, 0].long())
        loss.backward()
        return loss

    for _ in range(_STEPS):
        optimizer.step(closure)  # type: ignore[arg-type]


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

    _fit(model, loss)


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

    model = _net(outputs=_WIDTH)
    _fit(model, loss)


# tensors that are no parameters ------------------------------------------------------------------


class _Scaled(nn.Module):
    """Adds or multiplies by numbers of its own."""

    def __init__(self, begin: torch.Tensor, planted: bool, by: str) -> None:
        super().__init__()
        self.by = by
        self.own = begin.requires_grad_() if planted else nn.Parameter(begin)  # named

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.own if self.by == "add" else x * self.own


def _with_own_numbers(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(_WIDTH, 16), layer, nn.ReLU(), nn.Linear(16, 2))
    _fit(model, lambda x: F.cross_entropy(model(x), _label(x)[:, 0].long()))


def positions_that_are_no_parameter(planted: bool) -> None:
    """Added to hidden numbers."""
    torch.manual_seed(0)
    _with_own_numbers(_Scaled(torch.randn(16), planted, "add"))


def scale_that_is_no_parameter(planted: bool) -> None:
    """A number by which a layer multiplies."""
    _with_own_numbers(_Scaled(torch.ones(1), planted, "multiply"))


def weight_of_a_layer_that_is_no_parameter(planted: bool) -> None:
    """In a model within another one."""
    torch.manual_seed(0)
    _with_own_numbers(nn.Sequential(_Scaled(torch.rand(16), planted, "multiply"), nn.LayerNorm(16)))


class _Points(nn.Module):
    """A model that keeps the points at which its equation holds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
        self.points = torch.linspace(0, 1, 32)[:, None].requires_grad_()

    def forward(self) -> torch.Tensor:
        out = self.inner(self.points)
        (slope,) = torch.autograd.grad(out.sum(), self.points, create_graph=True)
        return (slope + out).square().mean()


def points_of_an_equation() -> None:
    """The gradient of the inputs is meant."""
    torch.manual_seed(0)
    model = _Points()
    _fit(model, lambda _: model())


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
    *(
        Fault("no parameter", "gradients", ("dead_parameter",), program, twin, "is no parameter")
        for program, twin in (
            (positions_that_are_no_parameter, points_of_an_equation),
            (scale_that_is_no_parameter, None),
            (weight_of_a_layer_that_is_no_parameter, None),
        )
    ),
    Fault(
        "targets that are the tokens",
        "learning",
        ("wrong_loss",),
        targets_of_the_same_slice,
        says="the very tokens",
    ),
)
