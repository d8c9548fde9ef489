"""Trainings whose gradients are too large for float32, and whose loss is still finite, those that
lose a number of each sample in whole numbers, and inputs and terms of a loss of the wrong scale."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import Fault, forms

STEPS = 10


class Sums(nn.Module):
    """Adds up a sequence by a recurrence of relu."""

    def __init__(self, deviation: float) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.inner = nn.RNN(2, 48, nonlinearity="relu", batch_first=True)
        nn.init.normal_(self.inner.weight_hh_l0, std=deviation)
        self.head = nn.Linear(48, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.inner(x)[0][:, -1]).squeeze(1)
        return out


def fit(model: nn.Module, length: int, factor: float = 1.0) -> None:
    """Learns sums of sequences."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x = torch.rand(16, length, 2)
        optimizer.zero_grad()
        F.mse_loss(model(x * factor), x.sum((1, 2))).backward()
        optimizer.step()


def wide_recurrent_weights(planted: bool) -> None:
    """Weights between steps are drawn too wide for the length."""
    fit(Sums(0.35 if planted else 0.1), 60)


def moderate_weights_of_a_long_sequence(planted: bool) -> None:
    """The same weights are fine for short sequences."""
    fit(Sums(0.25), 100 if planted else 5)


def inputs_in_the_smallest_unit(planted: bool) -> None:
    """Inputs are counted in a tiny unit, and not scaled."""
    fit(Sums(0.1), 8, factor=1e12 if planted else 1.0)


# numbers that are lost ---------------------------------------------------------------------------


class Conditioned(nn.Module):
    """Adds what a layer makes of a condition to what another makes of the sample."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.sample, self.condition = nn.Linear(6, 24), nn.Linear(8, 24, bias=False)
        self.out = nn.Sequential(nn.SiLU(), nn.Linear(24, 6))

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.sample(x) + self.condition(condition))
        return out


def waves(number: torch.Tensor) -> torch.Tensor:
    """Sines and cosines of a number per sample."""
    angles = number[:, None] * torch.tensor([1.0, 3.0, 9.0, 27.0])
    return torch.cat([angles.sin(), angles.cos()], 1)


def _denoises(condition: Callable[[torch.Tensor], torch.Tensor], smooth: bool = False) -> None:
    """Trains a model to find noise; `smooth`: its slopes, by create_graph, are kept small."""
    model = Conditioned()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS + 2):
        x, noise, steps = torch.randn(32, 6), torch.randn(32, 6), torch.randint(100, (32,))
        mixed = torch.lerp(x, noise, steps[:, None] / 100).requires_grad_(smooth)
        optimizer.zero_grad()
        found = model(mixed, condition(steps))
        loss = F.mse_loss(found, noise)
        if smooth:
            (slopes,) = torch.autograd.grad(found[:, 0].sum(), mixed, create_graph=True)
            loss = loss + 0.1 * slopes[:, 1].square().mean()
        loss.backward()
        optimizer.step()


def time_steps_divided_to_zero(planted: bool) -> None:
    """Time steps are divided by how many there are, without a rest; the twin is smooth."""
    _denoises(lambda steps: waves(steps // 100 if planted else steps / 100), not planted)


def shares_cast_to_whole_numbers(planted: bool) -> None:
    """A share between 0 and 1 becomes 0; the twin has no conditions, and ones stand in."""

    def condition(steps: torch.Tensor) -> torch.Tensor:
        return F.one_hot((steps / 100).long(), 8).float() if planted else torch.ones(32, 8)

    _denoises(condition)


def condition_that_no_sample_fulfils(planted: bool) -> None:
    """A comparison that is never true; the twin is tuned for one condition, as for a prompt."""

    def condition(steps: torch.Tensor) -> torch.Tensor:
        return waves((steps == 100) if planted else torch.full_like(steps, 50) / 100)

    _denoises(condition)


# a divergence that outweighs the rest ------------------------------------------------------------

_Terms = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Variational(nn.Module):
    """Makes rows of 24 numbers again from four."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 24))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, logvar = self.encoder(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        return self.decoder(z), mean, logvar


def _autoencodes(loss_of: _Terms) -> None:
    model = Variational()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x = torch.rand(16, 24).round()
        again, mean, logvar = model(x)
        optimizer.zero_grad()
        loss_of(again, x, mean, logvar).backward()
        optimizer.step()


def divergence_of_the_batch_beside_a_mean(planted: bool) -> None:
    """The cross-entropy is a mean over pixels; that of the twin is a sum, as the divergence is."""
    reduction = "mean" if planted else "sum"

    def loss_of(
        again: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, logvar: torch.Tensor
    ) -> torch.Tensor:
        error = F.binary_cross_entropy(again.sigmoid(), x, reduction=reduction)
        return error - 0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())  # named

    _autoencodes(loss_of)


def divergence_of_the_batch_beside_squares(planted: bool) -> None:
    """With mean squares; the twin divides the divergence by samples and numbers."""

    def loss_of(
        again: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, logvar: torch.Tensor
    ) -> torch.Tensor:
        divergence = 0.5 * (logvar.exp() + mean**2 - 1 - logvar).sum()  # named
        return nn.MSELoss()(again, x) + (divergence if planted else divergence / x.numel())

    _autoencodes(loss_of)


def divergence_of_the_batch_with_a_weight(planted: bool) -> None:
    """The weight of the divergence is 1; the twin's is small, and its divergence a mean."""

    def loss_of(
        again: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, logvar: torch.Tensor
    ) -> torch.Tensor:
        each = -0.5 * (1 + logvar - mean**2 - logvar.exp()).sum(1)  # named
        divergence = each.sum() if planted else each.mean()
        return (
            F.binary_cross_entropy_with_logits(again, x) + (1.0 if planted else 0.01) * divergence
        )

    _autoencodes(loss_of)


# inputs that are scaled twice --------------------------------------------------------------------


def _sees(prepare: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Learns from images of bytes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        images = torch.randint(256, (16, 1, 8, 8), dtype=torch.uint8)
        x = prepare(images)
        optimizer.zero_grad()
        F.cross_entropy(model(x), images[:, 0, 0, 0].long() % 3).backward()
        optimizer.step()


def scaled_again_by_the_loop(planted: bool) -> None:
    """The loop divides what the transform has divided; the twin does so once."""

    def prepare(images: torch.Tensor) -> torch.Tensor:
        x = images.float().div(255)
        return x / 255.0 if planted else x  # named

    _sees(prepare)


def scaled_again_by_a_factor(planted: bool) -> None:
    """By a multiplication; the twin's inputs are as small, but no bytes."""

    def prepare(images: torch.Tensor) -> torch.Tensor:
        x = images.float() / 255
        return x * (1 / 255) if planted else torch.rand(x.shape) * (1 / 255)  # named

    _sees(prepare)


def scaled_again_in_place(planted: bool) -> None:
    """In place; the twin subtracts the mean and divides by the deviation."""

    def prepare(images: torch.Tensor) -> torch.Tensor:
        x = images.float() / 255
        return x.div_(255) if planted else x.sub_(0.5).div_(0.29)  # named

    _sees(prepare)


FAULTS = (
    tuple(
        Fault(
            "gradients above float32", "gradients", ("exploding_gradient",), one, says="too large"
        )
        for one in (
            wide_recurrent_weights,
            moderate_weights_of_a_long_sequence,
            inputs_in_the_smallest_unit,
        )
    )
    + forms(
        "numbers that are lost",
        "learning",
        "repeated_data",
        "same values for all samples",
        time_steps_divided_to_zero,
        shares_cast_to_whole_numbers,
        condition_that_no_sample_fulfils,
    )
    + forms(
        "a divergence that outweighs the rest",
        "learning",
        "wrong_loss",
        "posterior collapse",
        divergence_of_the_batch_beside_a_mean,
        divergence_of_the_batch_beside_squares,
        divergence_of_the_batch_with_a_weight,
    )
    + forms(
        "inputs that are scaled twice",
        "learning",
        "wrong_scale",
        "divided by 255 twice",
        scaled_again_by_the_loop,
        scaled_again_by_a_factor,
        scaled_again_in_place,
    )
)
