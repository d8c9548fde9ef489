"""Trainings in which gradients do not arrive, or nothing uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.faults.base import Fault

STEPS = 30


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of 16 rows of 10 numbers, with their classes."""
    x = torch.randn(16, 10)
    return x, x[:, :3].argmax(1)


def train(model: nn.Module, loss_of: Callable[..., torch.Tensor], optimizer: Any = None) -> None:
    """Trains with Adam."""
    torch.manual_seed(0)
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(*rows()).backward()
        optimizer.step()


def train_classes(model: nn.Module) -> None:
    """Trains a model to name the classes of `rows`."""
    train(model, lambda x, y: F.cross_entropy(model(x), y))


class Experts(nn.Module):
    """Experts in a dict, which parameters() knows only if it is a ModuleDict."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        experts = {name: nn.Linear(10, 8) for name in ("a", "b")}
        self.experts: Any = experts if plain else nn.ModuleDict(experts)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(sum(self.experts[name](x).tanh() for name in ("a", "b")))


def experts_in_a_plain_dict(planted: bool) -> None:
    """A dict in place of a ModuleDict."""
    model = Experts(planted)
    train(model, lambda x, y: F.cross_entropy(model(x), y))


class Stages(nn.Module):
    """Convolutions in a list within a list."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        stages = [[nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4)], [nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4)]]
        self.stages: Any = stages
        if not plain:
            self.stages = nn.ModuleList(nn.ModuleList(stage) for stage in stages)
        self.out = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, None]
        for convolution, norm in self.stages:
            x = norm(convolution(x)).relu()
        return self.out(x.mean(2))


def stages_in_nested_lists(planted: bool) -> None:
    """Lists of lists in place of ModuleLists."""
    model = Stages(planted)
    train(model, lambda x, y: F.cross_entropy(model(x), y))


class Lambdas(nn.Module):
    """A projection that hides in a closure."""

    def __init__(self, hidden: bool) -> None:
        super().__init__()
        projection = nn.Linear(10, 8)
        if not hidden:
            self.projection = projection
        self.project = lambda x: projection(x).relu()
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.project(x))


def layer_in_a_closure(planted: bool) -> None:
    """A layer that only a lambda holds."""
    model = Lambdas(planted)
    train(model, lambda x, y: F.cross_entropy(model(x), y))


def mlp() -> nn.Sequential:
    """Two layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))


def loss_wrapped_again(planted: bool) -> None:
    """The loss's number becomes a new tensor that requires a gradient."""
    model = mlp()

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        if planted:
            loss = torch.tensor(loss.item(), requires_grad=True)
        return loss

    train(model, loss_of)


def predictions_by_argmax(planted: bool) -> None:
    """A loss on the classes that argmax names."""
    model = mlp()

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if planted:
            guess = model(x).argmax(1).float().requires_grad_()
            return F.mse_loss(guess, y.float())
        return F.cross_entropy(model(x), y)

    train(model, loss_of)


def loss_kept_as_a_number(planted: bool) -> None:
    """The loss is detached for the log, and backward runs on the logged tensor."""
    model = mlp()

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        return loss.detach().requires_grad_() if planted else loss

    train(model, loss_of)


def through_numpy(planted: bool) -> None:
    """Features go through numpy on their way to the head."""
    body, head = nn.Linear(10, 16), nn.Linear(16, 3)
    model = nn.Sequential(body, head)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        features = body(x).relu()
        if planted:
            features = torch.from_numpy(features.detach().numpy())  # named
        return F.cross_entropy(head(features), y)

    train(model, loss_of)


def encoder_in_no_grad(planted: bool) -> None:
    """An encoder that runs without gradients, and is meant to learn."""
    torch.manual_seed(0)
    encoder, head = nn.LSTM(5, 12, batch_first=True), nn.Linear(12, 3)
    model = nn.ModuleList([encoder, head])

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(not planted):
            features = encoder(x.view(16, 2, 5))[0][:, -1]
        return F.cross_entropy(head(features), y)

    train(model, loss_of)


def data_of_the_hidden_state(planted: bool) -> None:
    """`.data` cuts what an older program meant to keep."""
    torch.manual_seed(0)
    body, head = nn.Linear(10, 16), nn.Linear(16, 3)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = body(x).tanh()
        return F.cross_entropy(head(hidden.data if planted else hidden), y)

    train(nn.ModuleList([body, head]), loss_of)


def stops_at(step: int, off: bool) -> bool:
    """Whether a later part of the run is reached."""
    return off and step >= 12


def detached_after_a_warmup(planted: bool) -> None:
    """From step 12 on the body's output is detached."""
    torch.manual_seed(0)
    body, head = nn.Linear(10, 16), nn.Linear(16, 3)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()])
    for step in range(STEPS):
        x, y = rows()
        hidden = body(x).relu()
        if stops_at(step, planted):
            hidden = hidden.detach()
        F.cross_entropy(head(hidden), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def weight_of_a_loss_decays_to_zero(planted: bool) -> None:
    """An auxiliary head's loss gets a weight of 0 after a third of the run."""
    torch.manual_seed(0)
    body, head, side = nn.Linear(10, 16), nn.Linear(16, 3), nn.Linear(16, 3)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters(), *side.parameters()])
    for step in range(STEPS):
        x, y = rows()
        hidden = body(x).relu()
        weight = 0.0 if stops_at(step, planted) else 0.3
        loss = F.cross_entropy(head(hidden), y) + weight * F.cross_entropy(side(hidden), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def evaluation_leaves_gradients_off(planted: bool) -> None:
    """Gradients are switched off for an evaluation, and on again for the head alone."""
    torch.manual_seed(0)
    body, head = nn.Linear(10, 16), nn.Linear(16, 3)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for step in range(STEPS):
        x, y = rows()
        if step == 12:
            torch.set_grad_enabled(False)
            body(x)
        if not planted:
            torch.set_grad_enabled(True)
        hidden = body(x).relu()
        torch.set_grad_enabled(True)
        F.cross_entropy(head(hidden), y).backward()
        if step >= 12 and planted:
            torch.set_grad_enabled(False)
        optimizer.step()
        optimizer.zero_grad()


def second_optimizer_never_steps(planted: bool) -> None:
    """Of two optimizers, for encoder and decoder, one never steps."""
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(10, 4), nn.Linear(4, 10)
    first = torch.optim.Adam(encoder.parameters(), lr=1e-2)
    second = torch.optim.Adam(decoder.parameters(), lr=1e-2)
    for _ in range(STEPS):
        x, _ = rows()
        first.zero_grad()
        second.zero_grad()
        F.mse_loss(decoder(encoder(x).tanh()), x).backward()
        if not planted:
            first.step()
        second.step()


def step_is_not_called(planted: bool) -> None:
    """`optimizer.step` without its brackets."""
    model = mlp()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x, y = rows()
        F.cross_entropy(model(x), y).backward()
        if planted:
            _ = optimizer.step
        else:
            optimizer.step()


def scaler_updates_without_a_step(planted: bool) -> None:
    """scaler.update() is called, and scaler.step(optimizer) is not."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for _ in range(STEPS):
        x, y = rows()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if not planted:
            scaler.step(optimizer)
            scaler.update()


def blocks_in_reentrant_checkpoints(planted: bool) -> None:
    """No input of the first block needs a gradient, so that all blocks lose theirs."""
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(10, 10), nn.Tanh()) for _ in range(2))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks, self.head = blocks, nn.Linear(10, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=planted)
            return self.head(x)

    train_classes(Net())


def segments_in_reentrant_checkpoints(planted: bool) -> None:
    """By checkpoint_sequential(), whose last segment trains; the twin's input needs a gradient."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(10, 10) for _ in range(2)))
            self.head = nn.Linear(10, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.requires_grad_(not planted)
            return self.head(checkpoint_sequential(self.layers, 2, x, use_reentrant=True))

    train_classes(Net())


def encoder_behind_frozen_features(planted: bool) -> None:
    """The layer before the checkpoint is frozen, in the twin trained."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Linear(10, 10).requires_grad_(not planted)
            self.encoder, self.head = nn.Linear(10, 10), nn.Linear(10, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(checkpoint(self.encoder, self.features(x), use_reentrant=True))

    train_classes(Net())


def mean_of_reentrant_checkpoints(planted: bool) -> None:
    """A mean, which has no parameters, reads the result."""
    embedding = nn.Linear(10, 10).requires_grad_(not planted)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.blocks = embedding, nn.ModuleList((nn.Linear(10, 10),))
            self.head = nn.Linear(10, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.embedding(x)[:, None].expand(-1, 4, -1)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=True)
            return self.head(x.mean(1))

    train_classes(Net())


LISTS, NOTHING, PARTS = "modules in plain lists and dicts", "nothing trains", "a part cut off"
STOPS, NO_STEP = "a gradient that stops half-way", "no optimizer step"


def _faults(name: str, *forms: Any, says: str = "") -> tuple[Fault, ...]:
    return tuple(Fault(name, "gradients", ("dead_parameter",), form, says=says) for form in forms)


FAULTS = (
    *_faults(
        LISTS,
        experts_in_a_plain_dict,
        stages_in_nested_lists,
        layer_in_a_closure,
        says="no optimizer uses",
    ),
    *_faults(
        NOTHING,
        loss_wrapped_again,
        predictions_by_argmax,
        loss_kept_as_a_number,
        says="No parameter has a gradient",
    ),
    *_faults(
        "a reentrant checkpoint without gradients",
        blocks_in_reentrant_checkpoints,
        segments_in_reentrant_checkpoints,
        encoder_behind_frozen_features,
        mean_of_reentrant_checkpoints,
        says="use_reentrant=False",
    ),
    *_faults(PARTS, through_numpy, encoder_in_no_grad, data_of_the_hidden_state),
    *_faults(
        STOPS,
        detached_after_a_warmup,
        weight_of_a_loss_decays_to_zero,
        evaluation_leaves_gradients_off,
    ),
    *_faults(
        NO_STEP,
        second_optimizer_never_steps,
        step_is_not_called,
        scaler_updates_without_a_step,
    ),
)
