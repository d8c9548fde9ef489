"""Programs whose layers should share parameters and do not, or share them and should not, models
that are evaluated in training mode, and targets outside of 0 to 1."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.faults.learning.losses import fit, loss_faults


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
    """`.data = other.data`; the twin begins with values half as large, in its own memory."""

    def tie(model: Any) -> None:
        values = model.table.weight.data
        model.head.weight.data = values if planted else values / 2

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


def _averaged(begin: Callable[[nn.Module], Any], update: Callable[[Any, nn.Module], None]) -> None:
    """Trains, and updates a moving average after each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    average = begin(model)
    for _ in range(12):
        x = torch.randn(16, 10)
        optimizer.zero_grad()
        _largest(model(x), x).backward()
        optimizer.step()
        with torch.no_grad():
            update(average, model)


def _scaled_and_added(average: Any, model: nn.Module) -> None:
    for one, other in zip(average, model.parameters(), strict=True):
        one.mul_(0.9).add_(other, alpha=0.1)


def average_of_live_data(planted: bool) -> None:
    """The average begins as `p.data`; the twin clones it."""

    def begin(model: nn.Module) -> Any:
        return [one.data if planted else one.data.clone() for one in model.parameters()]

    _averaged(begin, _scaled_and_added)


def average_of_the_model_itself(planted: bool) -> None:
    """`ema = model`; the twin copies it deeply."""

    def begin(model: nn.Module) -> Any:
        return list((model if planted else copy.deepcopy(model)).parameters())

    def update(average: Any, model: nn.Module) -> None:
        for one, other in zip(average, model.parameters(), strict=True):
            one.data.lerp_(other.data, 0.1)

    _averaged(begin, update)


def average_of_a_shallow_copy(planted: bool) -> None:
    """copy.copy() of a model has the same parameters; the twin loads its state into another."""

    def begin(model: nn.Module) -> Any:
        if planted:
            return list(copy.copy(model).parameters())
        other = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
        other.load_state_dict(model.state_dict())
        return list(other.parameters())

    _averaged(begin, _scaled_and_added)


def _two_optimizers(first: Any, second: Any, loss_of: Callable[..., torch.Tensor]) -> None:
    for _ in range(12):
        x = torch.randn(16, 10)
        for one in (first, second):
            one.zero_grad()
        loss_of(x).backward()
        for one in (first, second):
            one.step()


def tied_head_in_a_second_optimizer(planted: bool) -> None:
    """The head's optimizer holds the tied table as well; the twin's head has a bias alone."""
    model = Words(lambda one: setattr(one.head, "weight", one.table.weight))
    body = [*model.table.parameters(), *model.inner.parameters()]
    extra = nn.Parameter(torch.zeros(20))
    head = list(model.head.parameters()) if planted else [extra]
    _two_optimizers(
        torch.optim.AdamW(body, 1e-3),
        torch.optim.AdamW(head, 1e-3),
        lambda x: (model(x) + extra).logsumexp(-1).mean(),
    )


def encoder_in_both_optimizers(planted: bool) -> None:
    """Each of two tasks has an optimizer with the encoder, and one loss is their sum."""
    encoder, a, b = nn.Linear(10, 8), nn.Linear(8, 3), nn.Linear(8, 3)
    first = torch.optim.SGD([*encoder.parameters(), *a.parameters()], 0.01)
    own = [*encoder.parameters(), *b.parameters()] if planted else [*b.parameters()]

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        hidden = encoder(x).relu()
        return _largest(a(hidden), x) + _largest(b(hidden), -x)

    _two_optimizers(first, torch.optim.SGD(own, 0.01), loss_of)


def whole_model_beside_its_head(planted: bool) -> None:
    """A second optimizer for the head's rate; the twin steps by turns, each after its backward."""
    model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))
    first = torch.optim.SGD(model.parameters(), 0.01)
    second = torch.optim.SGD(model[2].parameters(), 0.1)
    if planted:
        _two_optimizers(first, second, lambda x: _largest(model(x), x))
        return
    for number in range(24):
        x = torch.randn(16, 10)
        one = (first, second)[number % 2]
        model.zero_grad()
        _largest(model(x), x).backward()
        one.step()


def _classifier(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), *layers, nn.Linear(24, 3))


def accuracy_without_eval(planted: bool) -> None:
    """Dropout is on in the validation after each epoch."""
    model = _classifier(nn.ReLU(), nn.Dropout(0.3))

    def validate(step: int) -> None:
        model.train(planted)
        with torch.no_grad():
            for x in torch.randn(4, 16, 12):
                (model(x).argmax(1) == x[:, :3].argmax(1)).float().mean().item()  # named
        model.train()

    fit(model, _largest, 9, lambda step: validate(step) if step % 3 == 2 else None)


def loss_without_eval(planted: bool) -> None:
    """Batch normalisation learns from the validation; the twin renews its statistics on purpose."""
    model = _classifier(nn.BatchNorm1d(24), nn.ReLU())

    def validate(step: int) -> None:
        with torch.no_grad():
            for x in torch.randn(5, 16, 12):
                out = model(x)
                if planted:
                    F.cross_entropy(out, x[:, :3].argmax(1)).item()  # named

    fit(model, _largest, 8, lambda step: validate(step) if step % 4 == 3 else None)


def tested_once_without_eval(planted: bool) -> None:
    """A test at the end; the twin keeps dropout on, and compares the mean of many samples."""
    model = _classifier(nn.Dropout(0.2))
    fit(model, _largest)
    with torch.inference_mode():
        for x in torch.randn(3, 16, 12):
            y = x[:, :3].argmax(1)
            if planted:
                model(x).argmax(1).eq(y).sum()  # named
            else:
                torch.stack([model(x) for _ in range(6)]).mean(0).argmax(1).eq(y).sum()


def masks_of_0_and_255(planted: bool) -> None:
    """Masks as PNG files hold them; the twin divides them by 255."""
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1))
    scale = 1 if planted else 255
    fit(
        model,
        lambda out, x: F.binary_cross_entropy_with_logits(  # named
            out, (x[:, :1] > 0.3).to(torch.uint8).mul(255).float() / scale
        ),
    )


def labels_of_minus_one(planted: bool) -> None:
    """Labels of -1 and 1 for a loss of logits; the twin's loss is minus a cross-entropy, which a
    discriminator's opponent makes larger."""
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1), nn.Flatten(0))
    compares = nn.BCEWithLogitsLoss()

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        labels = x[:, 0].sign() if planted else (x[:, 0] > 0).float()
        loss: torch.Tensor = compares(out, labels)  # named
        return loss if planted else -loss

    fit(model, loss_of, 40)


def percentages_for_probabilities(planted: bool) -> None:
    """Shares of 0 to 100, and a weight for each of them; the twin's are of 0 to 1."""
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))
    weights = torch.rand(4) + 0.5

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        shares = x[:, :4].sigmoid() * (100 if planted else 1)
        return F.binary_cross_entropy_with_logits(out, shares, weights)  # named

    fit(model, loss_of, 20)


FAULTS = (
    *loss_faults(
        "two parameters in one memory",
        "shared_parameter",
        "in the same memory",
        tied_by_a_new_parameter,
        tied_by_data,
        towers_assigned_from_one_state,
    ),
    *loss_faults(
        "layers that are one module",
        "shared_parameter",
        "lists one",
        block_multiplied,
        sequence_of_one_layer,
        convolutions_listed_twice,
    ),
    *loss_faults(
        "an average of a model with itself",
        "shared_parameter",
        "with itself",
        average_of_live_data,
        average_of_the_model_itself,
        average_of_a_shallow_copy,
    ),
    *loss_faults(
        "a parameter in two optimizers",
        "shared_parameter",
        "Two optimizers",
        tied_head_in_a_second_optimizer,
        encoder_in_both_optimizers,
        whole_model_beside_its_head,
    ),
    *loss_faults(
        "evaluation in training mode",
        "evaluation_mode",
        "evaluated in training mode",
        accuracy_without_eval,
        loss_without_eval,
        tested_once_without_eval,
    ),
    *loss_faults(
        "targets outside of 0 to 1",
        "wrong_loss",
        "below zero",
        masks_of_0_and_255,
        labels_of_minus_one,
        percentages_for_probabilities,
    ),
)
