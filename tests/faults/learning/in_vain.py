"""Trainings with a call or a group that gets nothing to do, or does it to the wrong thing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.faults.base import Fault

STEPS = 24


def net(*middle: nn.Module) -> nn.Sequential:
    """A small classifier."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), *middle, nn.Linear(16, 3))


def fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    before: Callable[[], object] = lambda: None,
    clip: Callable[[], object] = lambda: None,
    after: Callable[[int], object] = lambda step: None,
) -> None:
    """Classifies rows; calls `before` backward, `clip` after it, and `after` each step."""
    for step in range(STEPS):
        x = torch.randn(8, 12)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        before()
        loss.backward()
        clip()
        optimizer.step()
        after(step)


# clipping ----------------------------------------------------------------------------------------


def clipped_by_a_used_up_generator(planted: bool) -> None:
    """The optimizer has gone through the generator that the clipping gets as well."""
    model = net()
    parameters: Any = model.parameters()
    parameters = parameters if planted else list(parameters)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    fit(model, optimizer, clip=lambda: clip_norm(parameters))


def clip_norm(parameters: Iterable[torch.Tensor]) -> None:
    """Clips as a helper of the program would."""
    nn.utils.clip_grad_norm_(parameters, 0.1)  # named


def clipped_before_backward(planted: bool) -> None:
    """The clipping comes after zero_grad, when there is no gradient yet."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def clip() -> None:
        nn.utils.clip_grad_norm_(list(model.parameters()), 0.05)  # named

    if planted:
        fit(model, optimizer, before=clip)
    else:
        fit(model, optimizer, clip=clip)


def clipped_in_another_model(planted: bool) -> None:
    """The copy that was made for an average is clipped, and not the model that trains."""
    model = net()
    average = copy.deepcopy(model).requires_grad_(False)
    clipped = average if planted else model

    def clip() -> None:
        nn.utils.clip_grad_norm_(clipped.parameters(), 0.1)  # named

    def follow(step: int) -> None:
        with torch.no_grad():
            for mean, now in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(now, 0.1)

    fit(model, torch.optim.SGD(model.parameters(), lr=0.1), clip=clip, after=follow)


# factors of a learning rate ----------------------------------------------------------------------


def scheduled(model: nn.Module, rate: float, function: Callable[[int], float]) -> None:
    """Trains with LambdaLR."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, function)
    fit(model, optimizer, after=lambda step: scheduler.step())


def rates_that_decay(planted: bool) -> None:
    """The function returns the learning rate of an epoch."""
    rate = 1e-3
    scheduled(net(), rate, lambda step: (rate if planted else 1) * 0.95**step)


def rates_with_a_warmup(planted: bool) -> None:
    """A warm-up to the rate, and a line to zero."""
    rate, warmup = 5e-4, 6

    def function(step: int) -> float:
        line = min((step + 1) / warmup, (STEPS - step) / (STEPS - warmup))
        return max(line, 0.0) * (rate if planted else 1)

    scheduled(net(), rate, function)


def rates_of_noam(planted: bool) -> None:
    """Factors of the transformer paper are rates: they are for an optimizer with a rate of 1."""

    def function(step: int) -> float:
        return float(64**-0.5 * min((step + 1) ** -0.5, (step + 1) * 8**-1.5)) / 4

    scheduled(net(), 1e-2 if planted else 1.0, function)


# random numbers of checkpointed functions --------------------------------------------------------


class Checkpointed(nn.Module):
    """Runs a part of a model in a checkpoint."""

    def __init__(self, keep: bool, reentrant: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.4), nn.ReLU())
        self.options: dict[str, Any] = {"use_reentrant": reentrant, "preserve_rng_state": keep}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(self.inner, x, **self.options)  # named
        return out


def dropout_in_a_checkpoint(planted: bool) -> None:
    """The state is not kept, to save time."""
    model = net(Checkpointed(not planted, reentrant=False))
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3))


def dropout_in_a_reentrant_checkpoint(planted: bool) -> None:
    """The twin keeps no state either, and has no dropout."""
    model = net(Checkpointed(keep=False, reentrant=True))
    if not planted:
        model[2].inner[1] = nn.Identity()
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3))


def dropout_in_checkpointed_segments(planted: bool) -> None:
    """Segments of a Sequential."""
    inner = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.2)) for _ in range(4)))

    class Segments(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            keep: dict[str, Any] = {"preserve_rng_state": not planted}
            out: torch.Tensor = checkpoint_sequential(inner, 2, x, use_reentrant=False, **keep)
            return out

    model = net(Segments())
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3))


# states of the model itself ----------------------------------------------------------------------


def target_network_is_the_network(planted: bool) -> None:
    """Values of actions; the target is another name of the network."""
    network = net()
    target = network if planted else copy.deepcopy(network)
    optimizer = torch.optim.RMSprop(network.parameters(), lr=1e-3)
    for step in range(STEPS):
        state, reward = torch.randn(8, 12), torch.randn(8)
        with torch.no_grad():
            wanted = reward + 0.9 * target(torch.randn(8, 12)).max(1).values
        values = network(state).max(1).values
        loss = F.smooth_l1_loss(values, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 6 == 0:
            target.load_state_dict(network.state_dict())  # named


def teacher_is_the_student(planted: bool) -> None:
    """A teacher that should be renewed after each few steps is a shallow copy."""
    student = net()
    teacher = copy.copy(student) if planted else copy.deepcopy(student)

    def renew(step: int) -> None:
        if step % 8 == 7:
            teacher.load_state_dict(student.state_dict())  # named

    fit(student, torch.optim.SGD(student.parameters(), lr=0.1), after=renew)


def old_policy_is_the_policy(planted: bool) -> None:
    """The policy of the rollout is held by the same dictionary."""
    policy = net()
    models = {"new": policy, "old": policy if planted else copy.deepcopy(policy)}

    def renew(step: int) -> None:
        models["old"].load_state_dict(models["new"].state_dict())  # named

    fit(policy, torch.optim.Adam(policy.parameters(), lr=1e-3), after=renew)


# momentum of batch normalisation -----------------------------------------------------------------


def momentum_of_a_flat_norm(planted: bool) -> None:
    """Ported as it was written."""
    model = net(nn.BatchNorm1d(16, momentum=0.99 if planted else 0.01))
    fit(model, torch.optim.SGD(model.parameters(), lr=0.1))


def momentum_of_convolutions(planted: bool) -> None:
    """Two layers of images, with the momentum of another framework."""
    momentum = 0.9 if planted else 0.1
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4, momentum=momentum),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.BatchNorm2d(4, momentum=momentum),
        nn.Flatten(),
        nn.Linear(48, 3),
    )
    fit(model, torch.optim.SGD(model.parameters(), lr=0.1))


def momentum_set_for_all_layers(planted: bool) -> None:
    """A loop sets the momentum of all layers; the twin's averages are cumulative."""
    model = net(nn.BatchNorm1d(16), nn.Linear(16, 16), nn.BatchNorm1d(16))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.momentum = 0.997 if planted else None
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3))


# groups without weight decay ---------------------------------------------------------------------


def _blocks() -> nn.Module:
    return net(*(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16)) for _ in range(3)))


def _decays(model: nn.Module, left_out: Callable[[str], bool]) -> None:
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    groups = [
        {"params": [one for name, one in named if not left_out(name)], "weight_decay": 0.01},
        {"params": [one for name, one in named if left_out(name)], "weight_decay": 0.0},  # named
    ]
    fit(model, torch.optim.AdamW(groups, lr=1e-3))


def names_taken_for_paths(planted: bool) -> None:
    """`name in no_decay`, though names are paths."""
    parts = ["bias", "LayerNorm.weight"]
    _decays(_blocks(), lambda n: n in parts if planted else any(one in n for one in parts))


def norms_of_another_model(planted: bool) -> None:
    """The norms have other names in this model. The twin trains no bias and no norm."""
    model = _blocks()
    if not planted:
        for one in model.parameters():
            one.requires_grad = one.dim() > 1
    _decays(model, lambda name: "LayerNorm" in name or name.endswith("gamma"))


def names_of_the_outermost_module(planted: bool) -> None:
    """Only a parameter of the model itself is left out. The twin leaves out a weight on purpose."""
    model = _blocks()
    _decays(model, lambda name: name == ("0.bias" if planted else "0.weight"))


# soft updates of the model ------------------------------------------------------------------------


def _followed(write: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    """Trains a model; `write` gets each parameter and that of a target after a step."""
    model = net()
    target = copy.deepcopy(model).requires_grad_(False)

    def after(_: int) -> None:
        with torch.no_grad():
            target(torch.randn(8, 12))
            for one, other in zip(model.parameters(), target.parameters(), strict=True):
                write(one, other)

    fit(model, torch.optim.SGD(model.parameters(), lr=0.1), after=after)


def sum_written_to_the_network(planted: bool) -> None:
    """A sum of both is written to the wrong one."""

    def write(one: torch.Tensor, other: torch.Tensor) -> None:
        (one if planted else other).copy_(0.01 * one + 0.99 * other)  # named

    _followed(write)


def network_scaled_in_place(planted: bool) -> None:
    """In place; the twin keeps the target's share."""

    def write(one: torch.Tensor, other: torch.Tensor) -> None:
        to, by = (one, other) if planted else (other, one)
        share = 0.05 if planted else 0.95
        to.mul_(share).add_(by, alpha=1 - share)  # named

    _followed(write)


def network_that_follows_its_target(planted: bool) -> None:
    """lerp_() of the wrong one; the twin holds the network near its first state, on purpose."""
    if planted:
        _followed(lambda one, other: one.lerp_(other, 0.99))  # named
    else:
        _followed(lambda one, other: one.copy_(other.lerp(one, 0.99)))


def _faults(name: str, kind: str, says: str, *programs: Any) -> tuple[Fault, ...]:
    return tuple(Fault(name, "losses and modes", (kind,), one, says=says) for one in programs)


FAULTS = (
    *_faults(
        "a clipping that gets no gradient",
        "exploding_gradient",
        "clips nothing",
        clipped_by_a_used_up_generator,
        clipped_before_backward,
        clipped_in_another_model,
    ),
    *_faults(
        "a learning rate in place of a factor",
        "dead_parameter",
        "must return a factor",
        rates_that_decay,
        rates_with_a_warmup,
        rates_of_noam,
    ),
    *_faults(
        "a checkpoint that draws other numbers",
        "wrong_gradient",
        "with other ones",
        dropout_in_a_checkpoint,
        dropout_in_a_reentrant_checkpoint,
        dropout_in_checkpointed_segments,
    ),
    *_faults(
        "a target that is the model",
        "shared_parameter",
        "onto itself",
        target_network_is_the_network,
        teacher_is_the_student,
        old_policy_is_the_policy,
    ),
    *_faults(
        "momentum as others define it",
        "evaluation_mode",
        "newest batch",
        momentum_of_a_flat_norm,
        momentum_of_convolutions,
        momentum_set_for_all_layers,
    ),
    *_faults(
        "a group without weight decay that leaves out little",
        "unread_setting",
        "decay with the weights",
        names_taken_for_paths,
        norms_of_another_model,
        names_of_the_outermost_module,
    ),
    *_faults(
        "a soft update of the model",
        "wrong_average",
        "goes the wrong way",
        sum_written_to_the_network,
        network_scaled_in_place,
        network_that_follows_its_target,
    ),
)
