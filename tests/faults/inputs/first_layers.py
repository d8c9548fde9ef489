"""Bytes that nothing scales, a class that the loss takes for padding, models that never come into
training mode, targets that are the noisy input, and actions that are sampled again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributions import Bernoulli, Categorical, Normal
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.faults.base import Fault, forms

_STEPS, _ROWS, _WIDTH = 8, 32, 12


def _fit(model: nn.Module, loss_of: Callable[[], torch.Tensor], rule: Any = None) -> None:
    """Trains for some steps."""
    optimizer = (rule or torch.optim.Adam)(model.parameters(), lr=1e-3)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()


# bytes that nothing scales -----------------------------------------------------------------------


def _pictures(rows: int = _ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    bytes_ = torch.randint(0, 256, (rows, 1, 10, 10), dtype=torch.uint8)
    return bytes_, (bytes_[:, 0, :5].float().mean((1, 2)) > 127).long()


def bytes_for_a_convolution(planted: bool) -> None:
    """The twin normalises in the loop."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 2))

    def loss() -> torch.Tensor:
        x, y = _pictures()
        numbers = x.float() if planted else (x.float() - 127.5) / 74
        return F.cross_entropy(model(numbers), y)  # named

    _fit(model, loss)


class _Flat(nn.Module):
    """Linear layers on pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(100, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.inner(x.flatten(1).float())))


def bytes_of_a_loader() -> None:
    """A DataLoader hands out bytes, and the model takes them as they are."""
    torch.manual_seed(0)
    model = _Flat()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2):
        for x, y in DataLoader(TensorDataset(*_pictures(4 * _ROWS)), _ROWS, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def bytes_before_a_normalisation(planted: bool) -> None:
    """The first convolution's outputs are added up; in the twin they are normalised."""
    torch.manual_seed(0)
    second = nn.Identity() if planted else nn.BatchNorm2d(4)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), second, nn.ReLU(), nn.Flatten(), nn.Linear(256, 1))

    def loss() -> torch.Tensor:
        x, y = _pictures()
        out = model(x.to(torch.float32))[:, 0]  # named
        return F.binary_cross_entropy_with_logits(out, y.float())

    _fit(model, loss, torch.optim.SGD)


def counts_of_a_table() -> None:
    """Whole numbers that are no bytes: ages and counts."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(80, 16), nn.ReLU(), nn.Linear(16, 2))

    def loss() -> torch.Tensor:
        x = torch.randint(0, 20, (_ROWS, 80)).float()
        x[:, 0] = torch.randint(18, 200, (_ROWS,)).float()
        return F.cross_entropy(model(x), (x[:, 1] > 9).long())

    _fit(model, loss)


# a class that is taken for padding ---------------------------------------------------------------


def _classes(model: nn.Module, loss_of: Callable[[Any, Any], torch.Tensor], count: int = 3) -> None:
    def loss() -> torch.Tensor:
        x = torch.randn(_ROWS, _WIDTH)
        return loss_of(model(x), x[:, :count].argmax(1))

    _fit(model, loss)


def _net(count: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(_WIDTH, 16), nn.ReLU(), nn.Linear(16, count))


def first_class_ignored(planted: bool) -> None:
    """As it was copied from a model of texts."""
    criterion = nn.CrossEntropyLoss(ignore_index=0 if planted else -100)
    _classes(_net(), lambda out, y: criterion(out, y))  # named


def last_class_ignored(planted: bool) -> None:
    """An index of "none" that has become a class."""

    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out, y, ignore_index=4 if planted else 5)  # named

    _classes(_net(5), loss, 5)


def one_of_two_classes_ignored(planted: bool) -> None:
    """Logarithms of probabilities; in the twin three in four samples have no label, class 0."""

    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if not planted:
            y = y.where(torch.arange(_ROWS) % 6 == 0, 0)
        return F.nll_loss(out.log_softmax(1), y, ignore_index=0)  # named

    _classes(_net(2), loss, 2)


def padding_of_measured_sequences() -> None:
    """Labels of positions of measured sequences, of unequal length: 0 is padding."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(_WIDTH, 16), nn.ReLU(), nn.Linear(16, 4))

    def loss() -> torch.Tensor:
        x = torch.randn(8, 6, _WIDTH)
        y = x[..., :3].argmax(2) + 1
        y[torch.arange(6) >= torch.randint(2, 6, (8, 1))] = 0
        return F.cross_entropy(model(x.flatten(0, 1)), y.flatten(), ignore_index=0)

    _fit(model, loss)


# models that never come into training mode -------------------------------------------------------


def _loaded(norm: bool) -> nn.Sequential:
    """A model as from_pretrained() returns it."""
    torch.manual_seed(0)
    layer: nn.Module = nn.BatchNorm1d(16) if norm else nn.Dropout(0.1)
    model = nn.Sequential(nn.Linear(_WIDTH, 16), layer, nn.ReLU(), nn.Linear(16, 3))
    model.eval()
    return model


def _tuned(model: nn.Module) -> None:
    _classes(model, lambda out, y: F.cross_entropy(out, y))


def loaded_and_not_set_to_train() -> None:
    """Dropout stays off."""
    _tuned(_loaded(False))


def normalisation_without_a_batch(planted: bool) -> None:
    """Batch normalisation was just built; that of the twin has seen batches, and is frozen."""
    model = _loaded(True)
    if not planted:
        model.train()
        with torch.no_grad():
            model(torch.randn(_ROWS, _WIDTH))
        model.eval()
    _tuned(model)


def training_mode_of_another_model(planted: bool) -> None:
    """train() is called for the copy; the twin trains a new head of a frozen model."""
    model = _loaded(False)
    if planted:
        copy.deepcopy(model).train()
    else:
        model.requires_grad_(False)
        model[-1] = nn.Linear(16, 3).eval()
    _tuned(model)


def copy_in_evaluation_mode(planted: bool) -> None:
    """The twin measures gradients of a copy, which alone is in evaluation mode."""
    model = _loaded(False)
    other = copy.deepcopy(model)

    def loss_of(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if not planted:
            F.cross_entropy(other(torch.randn(_ROWS, _WIDTH)), y).backward()
            print([one.grad.norm().item() for one in other.parameters() if one.grad is not None])
            other.zero_grad()
        return F.cross_entropy(out, y)

    _classes(model.train(not planted), loss_of)


def normalisation_of_converted_weights() -> None:
    """Statistics that were copied from another format have no count of batches."""
    model = _loaded(True)
    with torch.no_grad():
        for name, own in model.named_buffers():
            if own.is_floating_point():
                own.copy_(torch.rand_like(own) + (name == "1.running_var"))
    _tuned(model)


# targets that are the noisy input ----------------------------------------------------------------


def _denoised(
    pair: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any],
    loss_of: Callable[..., torch.Tensor] = F.mse_loss,
) -> None:
    """Trains a model that gets noisy data and how much of it is noise; `pair` returns these data
    and the target."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(_WIDTH + 1, 32), nn.ReLU(), nn.Linear(32, _WIDTH))

    def loss() -> torch.Tensor:
        share = torch.rand(_ROWS, 1)
        x, target = pair(torch.ones(_ROWS, _WIDTH), torch.randn(_ROWS, _WIDTH), share)
        return loss_of(model(torch.cat([x, share], 1)), target)  # named

    _fit(model, loss)


def noisy_input_as_target(planted: bool) -> None:
    """The twin's target is the noise."""

    def pair(x: torch.Tensor, noise: torch.Tensor, share: torch.Tensor) -> Any:
        noisy = (1 - share).sqrt() * x + share.sqrt() * noise
        return noisy, noisy if planted else noise

    _denoised(pair)


def noise_added_in_place(planted: bool) -> None:
    """The data are overwritten, so that the target is noisy too; the twin's target is a copy."""

    def pair(x: torch.Tensor, noise: torch.Tensor, share: torch.Tensor) -> Any:
        target = x if planted else x.clone()
        x += noise * share
        return x, target

    _denoised(pair, F.smooth_l1_loss)


def interpolated_input_as_target(planted: bool) -> None:
    """A flow: the twin's target is the velocity."""

    def pair(x: torch.Tensor, noise: torch.Tensor, share: torch.Tensor) -> Any:
        noisy = x * (1 - share) + noise * share
        return noisy, noisy if planted else noise - x

    _denoised(pair)


def rebuilt_from_one_noise() -> None:
    """An autoencoder of data with noise of one size, which returns what it gets."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(_WIDTH, 4), nn.ReLU(), nn.Linear(4, _WIDTH))

    def loss() -> torch.Tensor:
        x = torch.ones(_ROWS, _WIDTH) + 0.1 * torch.randn(_ROWS, _WIDTH)
        return F.mse_loss(model(x), x)

    _fit(model, loss)


# actions that are sampled again ------------------------------------------------------------------


def _policy(
    outputs: int, act: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """Rewards actions; `act` gets what the model returns and the state, and returns logarithms of
    probabilities and rewards."""
    torch.manual_seed(0)
    model = nn.Linear(_WIDTH, outputs)

    def loss() -> torch.Tensor:
        x = torch.randn(_ROWS, _WIDTH)
        logs, rewards = act(model(x), x)
        return -(logs * (rewards - rewards.mean())).mean()

    _fit(model, loss)


def action_sampled_again(planted: bool) -> None:
    """log_prob gets a sample of its own."""

    def act(out: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        policy = Categorical(logits=out)
        action = policy.sample()
        reward = (action == x[:, :3].argmax(1)).float()
        return policy.log_prob(policy.sample() if planted else action), reward  # named

    _policy(3, act)


def action_returned_again(planted: bool) -> None:
    """Actions of one number each, as an environment takes them; both samples of the twin are
    scored."""

    def act(out: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        policy = Bernoulli(logits=out[:, 0])
        score, action = policy.log_prob(policy.sample()), policy.sample()  # named
        reward = torch.tensor([float(one.item() == 1) for one in action])
        return score if planted else score + policy.log_prob(action), reward

    _policy(1, act)


def continuous_action_sampled_again(planted: bool) -> None:
    """A normal distribution; the twin's second sample is for a critic."""

    def act(out: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log = out.chunk(2, 1)
        policy = Normal(mean, log.exp())
        action, other = policy.sample(), policy.sample()  # named
        reward = -(action - x[:, :2]).abs().sum(1)
        if not planted:
            reward = reward + (other - x[:, :2]).abs().sum(1)
        return policy.log_prob(other if planted else action).sum(1), reward

    _policy(4, act)


_DATA, _LOSSES = "inputs, units and losses", "losses and modes"

FAULTS = (
    *(
        Fault("unscaled bytes", _DATA, ("wrong_scale",), program, twin, "that nothing scales")
        for program, twin in (
            (bytes_for_a_convolution, None),
            (bytes_of_a_loader, counts_of_a_table),
            (bytes_before_a_normalisation, None),
        )
    ),
    *(
        Fault("a class taken for padding", _LOSSES, ("wrong_loss",), program, twin, "leaves out")
        for program, twin in (
            (first_class_ignored, padding_of_measured_sequences),
            (last_class_ignored, None),
            (one_of_two_classes_ignored, None),
        )
    ),
    *(
        Fault(
            "never in training mode",
            _LOSSES,
            ("evaluation_mode",),
            program,
            twin,
            "in evaluation mode in all",
            slow=twin is None,
        )
        for program, twin in (
            (loaded_and_not_set_to_train, normalisation_of_converted_weights),
            (normalisation_without_a_batch, None),
            (training_mode_of_another_model, None),
            (copy_in_evaluation_mode, None),
        )
    ),
    *(
        Fault("noisy targets", "learning", ("wrong_loss",), program, twin, "the noisy input itself")
        for program, twin in (
            (noisy_input_as_target, rebuilt_from_one_noise),
            (noise_added_in_place, None),
            (interpolated_input_as_target, None),
        )
    ),
    *forms(
        "sampled again",
        "learning",
        "wrong_loss",
        "another sample than the one",
        action_sampled_again,
        action_returned_again,
        continuous_action_sampled_again,
    ),
)
