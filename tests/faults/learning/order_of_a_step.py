"""Steps whose parts come in the wrong order, or whose gradients are cut to nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import Fault
from tests.faults.learning.cut_off import STEPS, mlp, rows, train_classes


def zeroed_before_the_step(planted: bool) -> None:
    """zero_grad() comes after backward, and before step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        x, y = rows()
        F.cross_entropy(model(x), y).backward()
        if planted:
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()


def model_zeroed_before_the_step(planted: bool) -> None:
    """The model sets its gradients to zero after backward."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x, y = rows()
        if not planted:
            model.zero_grad(set_to_none=False)
        F.cross_entropy(model(x), y).backward()
        if planted:
            model.zero_grad(set_to_none=False)
        optimizer.step()


def step_before_backward(planted: bool) -> None:
    """The optimizer steps before backward."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        x, y = rows()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if planted:
            optimizer.step()
        loss.backward()
        if not planted:
            optimizer.step()


def _clipped(clip: Callable[[Any], Any], optimizer: Any, **settings: float) -> None:
    model = mlp()
    steps = optimizer(model.parameters(), **settings)
    for _ in range(STEPS):
        x, y = rows()
        steps.zero_grad()
        F.cross_entropy(model(x), y).backward()
        clip(model.parameters())
        steps.step()


def values_clipped_to_nothing(planted: bool) -> None:
    """A limit of another unit: 1e-10 in place of 1."""
    limit = 1e-10 if planted else 1.0
    _clipped(lambda p: nn.utils.clip_grad_value_(p, limit), torch.optim.SGD, lr=0.1)


def norm_clipped_below_eps(planted: bool) -> None:
    """Adam does not depend on the gradients' size, unless it is below its eps."""
    limit = 1e-10 if planted else 1e-3
    _clipped(lambda p: nn.utils.clip_grad_norm_(p, limit), torch.optim.Adam, lr=1e-3)


def values_clipped_below_eps(planted: bool) -> None:
    """The same by value."""
    limit = 1e-12 if planted else 1e-4
    _clipped(lambda p: nn.utils.clip_grad_value_(p, clip_value=limit), torch.optim.AdamW, lr=1e-3)


def loss_detached(planted: bool) -> None:
    """`loss = loss.detach()`, made to require a gradient so that backward runs."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        x, y = rows()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if planted:
            loss = loss.detach()  # named
            loss.requires_grad = True
        loss.backward()
        optimizer.step()


def loss_of_a_number(planted: bool) -> None:
    """The loss's number is summed up, and backward runs on a tensor of it."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        x, y = rows()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if planted:
            number = loss.item()  # named
            loss = torch.tensor(number, requires_grad=True)
        loss.backward()
        optimizer.step()


def forward_without_gradients(planted: bool) -> None:
    """no_grad around the forward of a training; the program ends with torch's error."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        x, y = rows()
        with torch.set_grad_enabled(not planted):
            out = model(x)  # named
        optimizer.zero_grad()
        F.cross_entropy(out, y).backward()
        optimizer.step()


def detached_loss_without_a_graph(planted: bool) -> None:
    """The detached loss ends the program."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        x, y = rows()
        loss = F.cross_entropy(model(x), y)
        shown = loss.detach() if planted else loss  # named
        optimizer.zero_grad()
        shown.backward()
        optimizer.step()


def _two_optimizers(
    kinds: tuple[Callable[..., Any], Callable[..., Any]], both: bool, *, sparse: bool = False
) -> None:
    torch.manual_seed(0)
    table, head = nn.Embedding(20, 8, sparse=sparse), nn.Linear(8, 3)
    optimizers = [kinds[0](table.parameters(), lr=0.01), kinds[1](head.parameters(), lr=0.01)]
    for _ in range(STEPS):
        words = torch.randint(20, (16,))
        for one in optimizers:
            one.zero_grad()
        F.cross_entropy(head(table(words)), words % 3).backward()
        for one in optimizers if both else optimizers[1:]:
            one.step()


def sparse_optimizer_forgotten(planted: bool) -> None:
    """Of an optimizer of sparse gradients and another only the other steps."""
    kinds = torch.optim.SparseAdam, torch.optim.Adam
    _two_optimizers(kinds, not planted, sparse=True)


def optimizer_of_the_table_forgotten(planted: bool) -> None:
    """The same with dense gradients."""
    _two_optimizers((torch.optim.SGD, torch.optim.AdamW), not planted)


def optimizer_of_the_body_forgotten(planted: bool) -> None:
    """The first layer has an optimizer of its own; the twin's steps now and then."""
    torch.manual_seed(0)
    model = mlp()
    first = torch.optim.RMSprop(model[0].parameters())
    second = torch.optim.Adam(model[2].parameters())
    for step in range(STEPS):
        x, y = rows()
        first.zero_grad()
        second.zero_grad()
        F.cross_entropy(model(x), y).backward()
        second.step()
        if not planted and step % 3 == 0:
            first.step()


class _Product(torch.autograd.Function):
    """A product with a weight; the gradients of the weight that it returns are chosen."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, returned: bool) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.returned = returned
        return x * weight if weight.dim() == 1 else x @ weight.T

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,), (x, weight) = gradients, ctx.saved_tensors
        if weight.dim() == 1:
            return gradient * weight, (gradient * x).sum(0) if ctx.returned else None, None
        return gradient @ weight, gradient.T @ x if ctx.returned else None, None


class Weighted(nn.Module):
    """A weight in a function of its own, and a bias beside it or none."""

    def __init__(self, shape: tuple[int, ...], bias: bool, returned: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape) * 0.3)
        self.bias = nn.Parameter(torch.zeros(shape[0])) if bias else None
        self.returned = returned

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = _Product.apply(x, self.weight, self.returned)
        return x if self.bias is None else x + self.bias


def _weighted(shape: tuple[int, ...], bias: bool, returned: bool) -> None:
    torch.manual_seed(0)
    middle = Weighted(shape, bias, returned)
    model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), middle, nn.Linear(8, 3))
    train_classes(model)


def weight_without_its_gradient(planted: bool) -> None:
    """A linear function whose backward returns None for its weight; the bias is another's."""
    _weighted((8, 8), bias=True, returned=not planted)


def scale_without_its_gradient(planted: bool) -> None:
    """The scale of a normalisation, with a bias."""
    _weighted((8,), bias=True, returned=not planted)


def lone_weight_without_its_gradient(planted: bool) -> None:
    """And a layer that has nothing else."""
    _weighted((8, 8), bias=False, returned=not planted)


def each_step_fails(planted: bool) -> None:
    """Labels are too large, and what the loss raises is passed over; the twin's are so at times."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        x, y = rows()
        bad = planted or step % 4 == 3
        try:
            loss = F.cross_entropy(model(x), y + 100 * bad)  # named
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        except IndexError:
            continue


def each_update_fails(planted: bool) -> None:
    """A log of the loss fails before backward; the twin searches for weights without gradients."""
    model = mlp()
    best = float("inf")
    for _ in range(STEPS):
        x, y = rows()
        with suppress(AttributeError):
            loss = F.cross_entropy(model(x), y)  # named
            if planted:
                cast(Any, loss).mean_value()
                loss.backward()
            best = min(best, loss.item())
            for one in model.parameters():
                one.data.add_(torch.randn_like(one), alpha=0.01 * best)


def each_metric_fails(planted: bool) -> None:
    """A metric fails before backward, as its labels are of another batch; the twin is an evaluation
    that was not put under no_grad."""
    model = mlp()
    losses = []
    for _ in range(STEPS):
        x, y = rows()
        out = model(x)
        loss = F.mse_loss(out[:, 0], y.float())  # named
        with suppress(RuntimeError):
            if planted:
                (out.argmax(1) == y[:3]).float().mean()
                loss.backward()
            losses.append(loss)
    if losses:
        torch.stack(losses).mean()


def lost_gradients(name: str, says: str, *forms: Any) -> tuple[Fault, ...]:
    """Forms of a fault that leaves parameters untrained; `says`: what the finding says."""
    return tuple(
        Fault(name, "gradients", ("dead_parameter",), form, says=says, slow=place > 0)
        for place, form in enumerate(forms)
    )


FAULTS = (
    *lost_gradients(
        "gradients thrown away before the step",
        "backward",
        zeroed_before_the_step,
        model_zeroed_before_the_step,
        step_before_backward,
    ),
    *lost_gradients(
        "gradients clipped to nothing",
        "clipped to almost nothing",
        values_clipped_to_nothing,
        norm_clipped_below_eps,
        values_clipped_below_eps,
    ),
    *lost_gradients(
        "a loss without its graph",
        "The gradient ends at",
        loss_detached,
        loss_of_a_number,
        forward_without_gradients,
        detached_loss_without_a_graph,
    ),
    *lost_gradients(
        "a function that returns no gradient",
        "though the loss leads to it",
        weight_without_its_gradient,
        scale_without_its_gradient,
        lone_weight_without_its_gradient,
    ),
    *lost_gradients(
        "one of two optimizers never steps",
        "never steps",
        sparse_optimizer_forgotten,
        optimizer_of_the_table_forgotten,
        optimizer_of_the_body_forgotten,
    ),
    *lost_gradients(
        "no backward at all",
        "backward() never runs",
        each_step_fails,
        each_update_fails,
        each_metric_fails,
    ),
)
