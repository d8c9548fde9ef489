"""Losses that get what they are not made for, models in the wrong mode, and parameters in one
memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.faults.base import Fault, Program
from tests.faults.ranks import DDP, STEPS, begin, net, sgd

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


def squared_error_of_a_column(planted: bool) -> None:
    """Outputs of shape [N, 1] and targets of [N]."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        out = out if planted else out.squeeze(1)
        return (out - x.sum(1)).square().mean()  # named

    fit(mlp(outputs=1), loss_of)


def value_function_of_a_column(planted: bool) -> None:
    """Returns minus values; the twin compares all outputs with each other, on purpose."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        returns = x.sum(1)
        if planted:
            return 0.5 * (returns - out).pow(2).sum() / len(x)  # named
        scores = out.squeeze(1)
        margins = (scores[:, None] - scores) * (returns[:, None] - returns).sign()
        return (1 - margins).relu().mean()

    fit(mlp(outputs=1), loss_of)


def huber_loss_of_a_column(planted: bool) -> None:
    """torch's own loss, whose warning is lost in the log."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        targets = x.sum(1) if planted else x.sum(1, keepdim=True)
        return F.smooth_l1_loss(out, targets)  # named

    fit(mlp(outputs=1), loss_of)


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


class Words(nn.Module):
    """Predicts the next word; `tie` makes the head use the table of the words."""

    def __init__(self, tie: Callable[[Any], None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.inner = nn.Embedding(20, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 20, bias=False)
        tie(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = (x * 3).long().abs().clamp(max=19)
        out: torch.Tensor = self.head(self.inner(self.table(words)).relu())
        return out


def _next_word(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    words = (x * 3).long().abs().clamp(max=19)
    return F.cross_entropy(out[:, :-1].flatten(0, 1), words[:, 1:].flatten())


def tied_by_a_new_parameter(planted: bool) -> None:
    """nn.Parameter around the table makes another parameter of the same memory."""

    def tie(model: Any) -> None:
        table = model.table.weight
        model.head.weight = nn.Parameter(table) if planted else table

    fit(Words(tie), _next_word)


def tied_by_data(planted: bool) -> None:
    """`.data = other.data`; the twin begins with the same values in its own memory."""

    def tie(model: Any) -> None:
        values = model.table.weight.data
        model.head.weight.data = values if planted else values.clone()

    fit(Words(tie), _next_word)


def towers_assigned_from_one_state(planted: bool) -> None:
    """load_state_dict(assign=True) of a state that another tower lives in."""
    torch.manual_seed(0)
    towers = nn.ModuleList([nn.Linear(12, 4), nn.Linear(12, 4)])
    towers[1].load_state_dict(towers[0].state_dict(), assign=planted)

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.towers = towers

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mm(self.towers[0](x), self.towers[1](x.roll(1, 1)).T)

    fit(Pair(), lambda out, x: F.cross_entropy(out, torch.arange(len(x))))


class Stack(nn.Module):
    """A layer before, a stack of layers, and heads for what each of them makes."""

    def __init__(self, layers: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.layers = nn.ModuleList(layers)
        self.heads = nn.ModuleList([head] * len(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, outputs = self.first(x), []
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = x + layer(x).tanh()
            outputs.append(head(x))
        return torch.stack(outputs).mean(0)


def block_multiplied(planted: bool) -> None:
    """[block] * 4; the twin copies the block, and both list one head for all layers."""
    torch.manual_seed(0)
    block = nn.Linear(16, 16)
    layers = [block] * 4 if planted else [copy.deepcopy(block) for _ in range(4)]
    fit(Stack(layers, nn.Linear(16, 3)), _largest)


def sequence_of_one_layer(planted: bool) -> None:
    """A factory that makes its layer before the loop; the twin calls one layer in a loop."""
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(24, 24), nn.LayerNorm(24), nn.GELU())

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = self.cell(x)
            return x

    inner = nn.Sequential(*(layer for _ in range(3))) if planted else Recurrent()
    fit(nn.Sequential(nn.Linear(12, 24), inner, nn.Linear(24, 3)), _largest)


def convolutions_listed_twice(planted: bool) -> None:
    """A stage of a network for images; the twin's branches share an encoder, side by side."""
    torch.manual_seed(0)

    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            conv = nn.Conv2d(4, 4, 3, padding=1)
            self.stage = nn.ModuleList([conv, conv])
            self.out = nn.Linear(4 if planted else 8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            images = x[:, :, None, None].expand(-1, -1, 3, 3).reshape(-1, 4, 9, 3)
            if planted:
                for conv in self.stage:
                    images = conv(images).relu()
                return self.out(images.mean((2, 3)))
            views = [
                conv(one).relu() for conv, one in zip(self.stage, (images, -images), strict=True)
            ]
            return self.out(torch.cat(views, 1).mean((2, 3)))

    fit(Images(), _largest)


def _largest(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out, x[:, :3].argmax(1))


def evaluated_and_not_set_back(planted: bool) -> None:
    """validate() calls eval(), and only the first epoch was preceded by train()."""
    model = mlp(nn.Dropout(0.1))
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


def wrapped_model_left_in_evaluation_mode(planted: bool) -> None:
    """The model inside of the wrapper is evaluated; the twin was in evaluation mode throughout."""
    rank = begin()
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 2))
    model = DDP(inner.train(planted))
    optimizer = sgd(model)
    numbers = torch.Generator().manual_seed(rank)
    torch.manual_seed(rank)
    for step in range(STEPS):
        if step == STEPS // 2:
            inner.eval()
        x = torch.randn(16, 8, generator=numbers)
        optimizer.zero_grad()
        F.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
        optimizer.step()


def _faults(
    name: str, kind: str, says: str, *programs: Program, ranks: int = 0
) -> tuple[Fault, ...]:
    return tuple(
        Fault(name, ROOM, (kind,), one, says=says, ranks=ranks, slow=place > 0)
        for place, one in enumerate(programs)
    )


FAULTS = (
    *_faults(
        "probabilities in place of logits",
        "wrong_loss",
        "gets",
        softmax_before_cross_entropy,
        sigmoid_before_a_loss_of_logits,
        nll_loss_of_logits,
        nll_loss_of_probabilities,
    ),
    *_faults(
        "a loss that is broadcast",
        "wrong_loss",
        "are broadcast to",
        squared_error_of_a_column,
        value_function_of_a_column,
        huber_loss_of_a_column,
    ),
    *_faults(
        "a loss divided by the number of ranks",
        "wrong_loss",
        "the number of ranks",
        loss_divided_by_ranks,
        loss_times_share_of_a_rank,
        loss_divided_as_it_accumulates,
        ranks=2,
    ),
    *_faults(
        "two parameters in one memory",
        "shared_parameter",
        "in the same memory",
        tied_by_a_new_parameter,
        tied_by_data,
        towers_assigned_from_one_state,
    ),
    *_faults(
        "layers that are one module",
        "shared_parameter",
        "lists one",
        block_multiplied,
        sequence_of_one_layer,
        convolutions_listed_twice,
    ),
    *_faults(
        "training in evaluation mode",
        "evaluation_mode",
        "trains in evaluation mode",
        evaluated_and_not_set_back,
        sampled_in_evaluation_mode,
    ),
    *_faults(
        "training in evaluation mode",
        "evaluation_mode",
        "trains in evaluation mode",
        wrapped_model_left_in_evaluation_mode,
        ranks=2,
    ),
)
