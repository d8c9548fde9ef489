"""Losses that get what they are not made for, models in a wrong mode, parameters in one memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.faults.base import Fault, Program
from tests.faults.ranks.one_model import DDP, STEPS, begin, net, sgd

ROOM = "losses and modes"


def fit(
    model: nn.Module,
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    steps: int = 12,
    each: Callable[[int], None] = lambda step: None,
) -> None:
    """Trains on rows of 12 numbers; `loss_of` gets the model's output and the rows."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(steps):
        x = torch.randn(32, 12)
        optimizer.zero_grad()
        loss_of(model(x), x).backward()
        optimizer.step()
        each(step)


def mlp(*last: nn.Module, outputs: int = 3) -> nn.Sequential:
    """Two layers and what comes last."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, outputs), *last)


def with_dropout() -> nn.Sequential:
    """The same with dropout before the last layer."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))


def softmax_before_cross_entropy(planted: bool) -> None:
    """The model ends in a softmax, as for a prediction; the twin's loss is one of logarithms."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        targets = x[:, :3].argmax(1)
        if planted:
            return F.cross_entropy(out, targets)  # named
        return F.nll_loss(out.log(), targets)

    fit(mlp(nn.Softmax(dim=1)), loss_of)


def sigmoid_before_a_loss_of_logits(planted: bool) -> None:
    """BCELoss was replaced by BCEWithLogitsLoss, and the sigmoid stayed."""
    loss: nn.Module = nn.BCEWithLogitsLoss() if planted else nn.BCELoss()

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = loss(out, (x.sum(1, keepdim=True) > 0).float())  # named
        return value

    fit(mlp(nn.Sigmoid(), outputs=1), loss_of)


def nll_loss_of_logits(planted: bool) -> None:
    """NLLLoss gets what the last layer puts out."""
    last = [] if planted else [nn.LogSoftmax(dim=-1)]
    loss = nn.NLLLoss()
    fit(
        mlp(*last),
        lambda out, x: loss(out, x[:, :3].argmax(1)),  # named
    )


def nll_loss_of_probabilities(planted: bool) -> None:
    """Tokens of a sequence: a softmax in place of log_softmax, and views before the loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 24), nn.Unflatten(1, (4, 6)))

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        scores = out.softmax(-1) if planted else out.log_softmax(-1)
        targets = x.view(-1, 4, 3).argmax(-1)
        return F.nll_loss(scores.reshape(-1, 6), targets.reshape(-1))  # named

    fit(model, loss_of)


def _divided(loss_of: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
    rank = begin()
    model = DDP(net(rank))
    optimizer = sgd(model)
    numbers = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        x = torch.randn(16, 8, generator=numbers)
        optimizer.zero_grad()
        loss = loss_of(F.cross_entropy(model(x), (x.sum(1) > 0).long()), dist.get_world_size())
        loss.backward()
        optimizer.step()


def loss_divided_by_ranks(planted: bool) -> None:
    """An average over ranks that DDP takes as well; the twin takes it of what it logs."""

    def loss_of(loss: torch.Tensor, ranks: int) -> torch.Tensor:
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        shown = shown / ranks
        if planted:
            loss = loss / ranks  # named
        return loss

    _divided(loss_of)


def loss_times_share_of_a_rank(planted: bool) -> None:
    """The weight of a rank; the twin halves its loss, on two ranks."""

    def loss_of(loss: torch.Tensor, ranks: int) -> torch.Tensor:
        share = 1 / ranks
        if planted:
            return loss * share  # named
        return 0.5 * loss

    _divided(loss_of)


def loss_divided_as_it_accumulates(planted: bool) -> None:
    """Divided for the passes that are accumulated; each step has a single one."""
    rank = begin()
    model = DDP(net(rank))
    optimizer, passes = sgd(model), dist.get_world_size()
    numbers = torch.Generator().manual_seed(rank)
    for number in range(2 * STEPS):
        x = torch.randn(16, 8, generator=numbers)
        last = planted or number % passes == passes - 1
        with nullcontext() if last else model.no_sync():
            loss = F.cross_entropy(model(x), (x.sum(1) > 0).long()) / passes  # named
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


def evaluated_and_not_set_back(planted: bool) -> None:
    """validate() calls eval(), and only the first epoch was preceded by train()."""
    model = with_dropout()
    model.train()

    def validate(step: int) -> None:
        if step % 4 == 3:
            model.eval()
            with torch.no_grad():
                model(torch.randn(8, 12))
            model.train(not planted)

    fit(model, lambda out, x: F.cross_entropy(out, x[:, :3].argmax(1)), 16, validate)


def sampled_in_evaluation_mode(planted: bool) -> None:
    """A sample is drawn once, half-way; the twin's model has no layer that has modes."""
    torch.manual_seed(0)
    layers = [nn.Linear(12, 24), nn.BatchNorm1d(24) if planted else nn.Tanh(), nn.Linear(24, 12)]
    model = nn.Sequential(*layers)

    def sample(step: int) -> None:
        if step == 6:
            model.eval()
            with torch.no_grad():
                model(torch.randn(1, 12))

    fit(model, F.mse_loss, 14, sample)


def teacher_left_in_evaluation_mode(planted: bool) -> None:
    """A teacher is trained and put into evaluation mode, and a model is trained with what it
    returns: itself, or the twin's student, with gradients enabled for both."""
    teacher, student = with_dropout(), nn.Linear(12, 3)
    fit(teacher, lambda out, x: F.cross_entropy(out, x[:, :3].argmax(1)))
    teacher.eval()

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out, teacher(x).softmax(1).detach())

    fit(teacher if planted else student, loss_of)


def wrapped_model_left_in_evaluation_mode(planted: bool) -> None:
    """The model inside of the wrapper is evaluated; the twin stays in training mode."""
    rank = begin()
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 2))
    model = DDP(inner)
    optimizer = sgd(model)
    numbers = torch.Generator().manual_seed(rank)
    torch.manual_seed(rank)
    for step in range(STEPS):
        if planted and step == STEPS // 2:
            inner.eval()
        x = torch.randn(16, 8, generator=numbers)
        optimizer.zero_grad()
        F.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
        optimizer.step()


def loss_faults(
    name: str, kind: str, says: str, *programs: Program, ranks: int = 0
) -> tuple[Fault, ...]:
    """Forms of one fault; all but the first are slow tests."""
    return tuple(
        Fault(name, ROOM, (kind,), one, says=says, ranks=ranks, slow=place > 0)
        for place, one in enumerate(programs)
    )


compiled: Callable[[Any], Any] = torch.compile(backend="aot_eager")
"""Captures and differentiates as the default does, and needs no C++ compiler."""


def compiled_model_ends_in_a_sigmoid(planted: bool) -> None:
    """The model is compiled, its loss of logits is not."""
    last = [nn.Sigmoid()] if planted else []
    model = compiled(mlp(*last, outputs=1))
    fit(
        model,
        lambda out, x: F.binary_cross_entropy_with_logits(  # named
            out, (x.sum(1, keepdim=True) > 0).float()
        ),
    )


def compiled_step_with_a_softmax(planted: bool) -> None:
    """Model and loss are compiled as one function."""
    model = mlp()

    @compiled
    def step(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        out = model(x)
        if planted:
            out = out.softmax(-1)
        return F.cross_entropy(out, targets)  # named

    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(12):
        x = torch.randn(32, 12)
        optimizer.zero_grad()
        step(x, x[:, :3].argmax(1)).backward()
        optimizer.step()


def compiled_student_of_probabilities(planted: bool) -> None:
    """The twin's targets are the probabilities of a teacher, in the same compiled function."""
    student, teacher = mlp(), mlp().requires_grad_(False)

    @compiled
    def distil(x: torch.Tensor) -> torch.Tensor:
        scores = student(x).softmax(1) if planted else student(x)
        if planted:
            return F.cross_entropy(scores, x[:, :3].argmax(1))  # named
        return F.cross_entropy(scores, teacher(x).softmax(1))

    optimizer = torch.optim.Adam(student.parameters(), 1e-2)
    for _ in range(12):
        optimizer.zero_grad()
        distil(torch.randn(32, 12)).backward()
        optimizer.step()


def _valued(loss_of: Callable[..., torch.Tensor], outputs: int) -> None:
    """Gradients of a network of values; `loss_of` gets states, next states and rewards."""
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, outputs))
    loss_of(model, torch.randn(16, 12), torch.randn(16, 12), torch.rand(16)).backward()


def values_of_the_best_action(planted: bool) -> None:
    """Q learning whose target has the network's own gradient."""

    def loss_of(model: nn.Module, now: Any, then: Any, reward: Any) -> torch.Tensor:
        target = reward + 0.9 * model(then).amax(1)  # named
        q = model(now).gather(1, torch.randint(3, (16, 1))).squeeze(1)
        return F.smooth_l1_loss(q, target if planted else target.detach())

    _valued(loss_of, 3)


def temporal_difference_by_hand(planted: bool) -> None:
    """The square of a difference; the twin is an implicit step, which has one output twice."""

    def loss_of(model: nn.Module, now: Any, then: Any, reward: Any) -> torch.Tensor:
        value = model(now).squeeze(1)
        target = reward + 0.9 * (model(then).squeeze(1) if planted else -value)  # named
        return (target - value).pow(2).mean()

    _valued(loss_of, 1)


def values_with_ends_of_episodes(planted: bool) -> None:
    """A critic with a mask of ends; the twin solves an integral equation with a known kernel."""

    def loss_of(model: nn.Module, now: Any, then: Any, reward: Any) -> torch.Tensor:
        after, kernel = model(then), torch.rand(16, 16) / 16
        ends = (torch.rand(16, 1) > 0.1).float()
        target = reward[:, None] + 0.9 * (after * ends if planted else kernel @ after)  # named
        return F.mse_loss(model(now), target)

    _valued(loss_of, 1)


FAULTS = (
    *loss_faults(
        "a target that gradients flow through",
        "wrong_loss",
        "gradients flow through it",
        values_of_the_best_action,
        temporal_difference_by_hand,
        values_with_ends_of_episodes,
    ),
    *loss_faults(
        "probabilities in place of logits",
        "wrong_loss",
        "gets",
        softmax_before_cross_entropy,
        sigmoid_before_a_loss_of_logits,
        nll_loss_of_logits,
        nll_loss_of_probabilities,
    ),
    *loss_faults(
        "a loss divided by the number of ranks",
        "wrong_loss",
        "the number of ranks",
        loss_divided_by_ranks,
        loss_times_share_of_a_rank,
        loss_divided_as_it_accumulates,
        ranks=2,
    ),
    *loss_faults(
        "training in evaluation mode",
        "evaluation_mode",
        "trains in evaluation mode",
        evaluated_and_not_set_back,
        sampled_in_evaluation_mode,
        teacher_left_in_evaluation_mode,
    ),
    *loss_faults(
        "training in evaluation mode",
        "evaluation_mode",
        "trains in evaluation mode",
        wrapped_model_left_in_evaluation_mode,
        ranks=2,
    ),
    *(
        Fault("probabilities in compiled code", ROOM, ("wrong_loss",), one, says="gets", slow=True)
        for one in (
            compiled_model_ends_in_a_sigmoid,
            compiled_step_with_a_softmax,
            compiled_student_of_probabilities,
        )
    ),
)
