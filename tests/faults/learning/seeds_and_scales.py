"""Accuracies in mode "min", seeds of samples, inputs of evaluation on another scale, an eps that is
0 in float16, and samples that pass no gradient."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.faults.base import Fault, forms

_EPOCHS, _ROWS, _WIDTH = 8, 64, 12
_ACCURACIES = (20, 41, 44, 57, 52, 60, 61, 59)
"""Of 64 rows those that are right, by epoch."""


def _net(outputs: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(_WIDTH, 16), nn.ReLU(), nn.Linear(16, outputs))


def _labels(x: torch.Tensor) -> torch.Tensor:
    return (x.flatten(1).sum(1) > 0).long()


# plateaus of accuracies --------------------------------------------------------------------------


def _plateau(mode: Any, number: Callable[[int], float]) -> None:
    """Gives a scheduler a number after each epoch."""
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode, patience=1)
    for epoch in range(_EPOCHS):
        x = torch.randn(_ROWS, _WIDTH)
        optimizer.zero_grad()
        F.cross_entropy(model(x), _labels(x)).backward()
        optimizer.step()
        scheduler.step(number(epoch))  # named


def accuracy_in_mode_min(planted: bool) -> None:
    """The default mode, and a share of the rows."""
    _plateau("min" if planted else "max", lambda epoch: _ACCURACIES[epoch] / 64)


def percent_in_mode_min(planted: bool) -> None:
    """In percent; the twin's falls, an error rate."""

    def number(epoch: int) -> float:
        right = _ACCURACIES[epoch] if planted else 64 - _ACCURACIES[epoch]
        return 100.0 * right / 64

    _plateau("min", number)


def mean_of_hits_in_mode_min(planted: bool) -> None:
    """A mean in float32; the twin's is a loss that rises, as where a model overfits."""

    def number(epoch: int) -> float:
        hits = torch.zeros(640)
        hits[: 10 * _ACCURACIES[epoch] + 3] = 1
        return hits.mean().item() if planted else 0.3 + 0.07 * epoch**0.9

    _plateau("min", number)


# seeds of samples --------------------------------------------------------------------------------


class _Augmented(Dataset[Any]):
    """Adds noise to rows; `seed` is called for each with its index."""

    def __init__(self, seed: Callable[[int], object]) -> None:
        self.seed = seed
        self.x = torch.randn(_ROWS, _WIDTH)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        self.seed(index)
        x = self.x[index]
        return x + 0.1 * torch.randn(_WIDTH), (x.sum() > 0).long()


def _trained(dataset: Dataset[Any], each: Callable[[nn.Module], object] | None = None) -> None:
    """Trains for some epochs; `each` is called after each."""
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(dataset, batch_size=16, shuffle=True)
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        if each is not None:
            each(model)


def seed_of_each_sample(planted: bool) -> None:
    """The twin's seeds are the samples' numbers."""

    def seed(index: int) -> None:
        torch.manual_seed(42 if planted else index)

    _trained(_Augmented(seed))


def _everything(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)


def seed_everything_in_the_transform(planted: bool) -> None:
    """A function that seeds all generators; in the twin for the samples of an evaluation."""

    def nothing(index: int) -> None:
        return None

    def evaluate(model: nn.Module) -> None:
        for x, y in DataLoader(_Augmented(lambda index: _everything(7)), batch_size=16):
            with torch.no_grad():
                F.cross_entropy(model(x), y)

    if planted:
        _trained(_Augmented(lambda index: _everything(7)))
    else:
        _trained(_Augmented(nothing), evaluate)


def seed_before_a_random_crop(planted: bool) -> None:
    """To crop two images alike; the twin draws the seed."""

    def seed(index: int) -> None:
        torch.manual_seed(0 if planted else int(torch.randint(1 << 30, ())))

    _trained(_Augmented(seed))


# inputs of evaluation ----------------------------------------------------------------------------


def _evaluated(
    train: Callable[[torch.Tensor], torch.Tensor], other: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Trains on bytes that `train` transforms, and evaluates after each epoch on `other`'s."""
    torch.manual_seed(0)
    bytes_ = torch.randint(0, 256, (_ROWS * 2, _WIDTH)).float()
    y = (bytes_[:, 0] > 128).long()
    seen, held = TensorDataset(train(bytes_), y), TensorDataset(other(bytes_[:_ROWS]), y[:_ROWS])

    def evaluate(model: nn.Module) -> None:
        model.eval()
        hits = 0
        with torch.no_grad():
            for x, target in DataLoader(held, batch_size=16):
                hits += int((model(x).argmax(1) == target).sum())
        model.train()

    _trained(seen, evaluate)


def _normal(x: torch.Tensor) -> torch.Tensor:
    return (x - 127.5) / 74


def evaluated_on_bytes(planted: bool) -> None:
    """Those of training are normalised; the twin's others are in [0, 1]."""
    _evaluated(_normal, (lambda x: x) if planted else (lambda x: x / 255))


def evaluated_on_numbers_below_one(planted: bool) -> None:
    """Those of training are bytes."""
    _evaluated(lambda x: x, (lambda x: x / 255) if planted else (lambda x: x.clamp(10, 200)))


def normalised_twice(planted: bool) -> None:
    """The numbers of evaluation are divided by 255 again."""
    _evaluated(lambda x: x / 255, lambda x: x / 255 / 255 if planted else x / 255 - 0.4)


# an eps that is 0 --------------------------------------------------------------------------------


def _half(rule: Any, **settings: Any) -> None:
    """Trains a model in float16, with units that get no gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(_WIDTH, 64), nn.ReLU(), nn.Linear(64, 2)).half()
    with torch.no_grad():
        model[0].bias[:8] = -100
    optimizer = rule(model.parameters(), **settings)
    for _ in range(_EPOCHS):
        x = torch.randn(_ROWS, _WIDTH)
        optimizer.zero_grad()
        F.cross_entropy(model(x.half()).float(), _labels(x)).backward()
        optimizer.step()


def adam_in_float16(planted: bool) -> None:
    """The default eps; a larger one in the twin."""
    _half(torch.optim.Adam, lr=1e-3, eps=1e-8 if planted else 1e-4)


def adamw_in_float16(planted: bool) -> None:
    """Without decay; the twin is fused."""
    _half(torch.optim.AdamW, lr=1e-3, weight_decay=0.0, fused=not planted)


def rmsprop_in_float16(planted: bool) -> None:
    """Its default eps."""
    _half(torch.optim.RMSprop, lr=1e-3, eps=1e-8 if planted else 1e-3)


# samples that pass no gradient -------------------------------------------------------------------


class _Autoencoder(nn.Module):
    """A variational autoencoder; `sample` draws from mean and deviation."""

    def __init__(self, sample: Callable[[Any, Any], torch.Tensor], extra: int = 0) -> None:
        super().__init__()
        self.sample, self.extra = sample, extra
        self.encoder = nn.Sequential(nn.Linear(_WIDTH, 16), nn.ReLU(), nn.Linear(16, 8))
        self.decoder = nn.Sequential(nn.Linear(4 + extra, 16), nn.ReLU(), nn.Linear(16, _WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, log = self.encoder(x).chunk(2, 1)
        z = self.sample(mean, (log / 2).exp())
        known = [x[:, : self.extra]] if self.extra else []
        again = self.decoder(torch.cat([z, *known], 1))
        divergence = -0.5 * (1 + log - mean**2 - log.exp()).sum(1).mean()
        return F.mse_loss(again, x) + 0.1 * divergence


def _encoded(model: nn.Module) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(_EPOCHS):
        optimizer.zero_grad()
        model(torch.randn(_ROWS, _WIDTH)).backward()
        optimizer.step()


def latent_by_sample(planted: bool) -> None:
    """`sample()`; the twin calls `rsample()`."""

    def sample(mean: Any, deviation: Any) -> torch.Tensor:
        own = Normal(mean, deviation)
        return own.sample() if planted else own.rsample()

    _encoded(_Autoencoder(sample))


def latent_by_torch_normal(planted: bool) -> None:
    """`torch.normal(mean, deviation)`; the twin scales noise."""

    def sample(mean: Any, deviation: Any) -> torch.Tensor:
        if planted:
            return torch.normal(mean, deviation)
        return mean + deviation * torch.randn_like(deviation)

    _encoded(_Autoencoder(sample))


def latent_beside_a_condition(planted: bool) -> None:
    """It is joined with known numbers; the twin adds noise to the mean."""

    def sample(mean: Any, deviation: Any) -> torch.Tensor:
        if planted:
            return Normal(mean, deviation).sample()
        return mean + Normal(torch.zeros_like(mean), 1.0).sample() * deviation

    _encoded(_Autoencoder(sample, extra=3))


def critic_of_sampled_actions() -> None:
    """An actor and a critic with one loss: the policy's gradient reads the action as well."""
    torch.manual_seed(0)
    actor, critic = nn.Linear(_WIDTH, 4), nn.Linear(_WIDTH + 2, 1)
    both = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(both, lr=1e-3)
    for _ in range(_EPOCHS):
        x = torch.randn(_ROWS, _WIDTH)
        mean, log = actor(x).chunk(2, 1)
        policy = Normal(mean, log.exp())
        action = policy.sample()
        value = critic(torch.cat([x, action], 1))[:, 0]
        reward = -(action - x[:, :2]).square().sum(1)
        gain = (reward - value.detach()) * policy.log_prob(action).sum(1)
        optimizer.zero_grad()
        (F.mse_loss(value, reward) - gain.mean()).backward()
        optimizer.step()


_LOOP, _DATA = "learning", "inputs, units and losses"

FAULTS = (
    *forms(
        "accuracy in mode min",
        _LOOP,
        "dead_parameter",
        "gets an accuracy",
        accuracy_in_mode_min,
        percent_in_mode_min,
        mean_of_hits_in_mode_min,
    ),
    *forms(
        "one seed for each sample",
        _DATA,
        "repeated_data",
        "sets the same seed for each sample",
        seed_of_each_sample,
        seed_everything_in_the_transform,
        seed_before_a_random_crop,
    ),
    *forms(
        "inputs of evaluation on another scale",
        _DATA,
        "evaluation_mode",
        "on another scale",
        evaluated_on_bytes,
        evaluated_on_numbers_below_one,
        normalised_twice,
    ),
    *forms(
        "an eps of 0 in float16",
        "gradients",
        "exploding_gradient",
        "divides 0 by 0",
        adam_in_float16,
        adamw_in_float16,
        rmsprop_in_float16,
    ),
    *forms(
        "a sample without a gradient",
        "losses and modes",
        "wrong_gradient",
        "passes no gradient to its mean",
        latent_by_sample,
        latent_by_torch_normal,
    ),
    Fault(
        "a sample without a gradient",
        "losses and modes",
        ("wrong_gradient",),
        latent_beside_a_condition,
        critic_of_sampled_actions,
        "passes no gradient to its mean",
        slow=True,
    ),
)
