"""Programs that learn, with gradients that are large: networks without time, on regressions.

What makes the gradients large are losses that are sums, the units of inputs and targets, and
initialisations.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.programs.trainings import (
    Heads,
    Program,
    Training,
    adam,
    adam_apart,
    fit,
    into,
    mlp,
    regression,
)

PROGRAMS: dict[str, Program] = {}
program = into(PROGRAMS)


@program
def sum_of_errors() -> Training:
    """A loss that is the sum over 1024 large errors."""
    model = mlp(4, 64)
    return fit(adam(model), regression(model, size=1024, targets=20, reduction="sum"))


@program
def house_prices() -> Training:
    """Targets in dollars, not in hundreds of thousands of them."""
    model = mlp(3, 64)
    return fit(adam(model, 0.1), regression(model, targets=1e5, offset=3e5))


@program
def raw_inputs_tanh() -> Training:
    """Inputs in a unit in which they are in the tens of thousands: every tanh is saturated."""
    model = mlp(3, 64, nn.Tanh)
    loss = regression(model, inputs=1e4, targets=100, reduction="sum")
    return fit(adam(model, 1e-2), loss)


@program
def raw_inputs_layer_norm() -> Training:
    """Inputs of 1e5 into norms, which take the unit out again."""
    model = mlp(4, 64, norm=True)
    return fit(adam(model, 3e-2), regression(model, inputs=1e5, targets=1000), steps=100)


@program
def raw_inputs_small_first_layer() -> Training:
    """Inputs of 1e5, and weights of the first layer, and their rate, that make up for it."""
    model = mlp(3, 64, nn.Sigmoid)
    nn.init.normal_(model.get_parameter("0.weight"), std=1e-5)
    loss = regression(model, inputs=1e5, targets=10, reduction="sum")
    return fit(adam_apart(model, 1e-2, "0.", 1e-6), loss, steps=100)


@program
def raw_inputs_no_bias() -> Training:
    """The same with inputs of 1e7, and a weight alone in the first layer."""
    model = nn.Sequential(nn.Linear(8, 64, bias=False), nn.Tanh(), *mlp(2, 64, nn.Tanh, inputs=64))
    nn.init.normal_(model.get_parameter("0.weight"), std=1e-7)
    loss = regression(model, inputs=1e7, targets=10, reduction="sum")
    return fit(adam_apart(model, 1e-2, "0.", 1e-8), loss)


@program
def small_before_norm() -> Training:
    """Weights of 1e-5 before a norm, which multiplies their gradient by 1e5."""
    model = nn.Sequential(nn.Linear(8, 64), nn.RMSNorm(64, eps=1e-12), *mlp(2, 64, inputs=64))
    nn.init.normal_(model.get_parameter("0.weight"), std=1e-5)
    nn.init.zeros_(model.get_parameter("0.bias"))
    loss = regression(model, targets=10, reduction="sum")
    return fit(adam_apart(model, 1e-2, "0.", 1e-6), loss)


@program
def weights_of_one() -> Training:
    """Weights from the standard normal distribution, not scaled."""
    model = mlp(4, 128, std=1.0)
    return fit(adam(model, 1e-2), regression(model), steps=200)


@program
def weights_of_one_tanh() -> Training:
    """The same with tanh, which saturates, and a sum of large errors."""
    model = mlp(4, 128, nn.Tanh, std=1.0)
    return fit(adam(model, 1e-2), regression(model, targets=100, reduction="sum"))


@program
def large_head() -> Training:
    """A head initialised a thousand times too large: all below it gets its gradient times that."""
    model = mlp(5, 64, nn.Tanh)
    nn.init.normal_(model.get_parameter(f"{len(model) - 1}.weight"), std=100.0)
    return fit(adam(model, 1e-4), regression(model, reduction="sum"))


class Residual(nn.Module):
    """x + 3 f(x): its gradient grows a little from block to block."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = mlp(2, 128, inputs=64, outputs=64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + 3 * self.branch(x)
        return out


@program
def residuals_without_norm() -> Training:
    """Twelve such blocks one after another."""
    blocks = [Residual() for _ in range(12)]
    model = nn.Sequential(nn.Linear(8, 64), *blocks, nn.Linear(64, 1))
    return fit(adam(model), regression(model, targets=100, reduction="sum"))


class Skip(nn.Module):
    """As a U-Net: wide layers are connected to the head past the narrow middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down, self.up = nn.Linear(8, 64), nn.Linear(64, 8), nn.Linear(8, 64)
        self.head = nn.Linear(128, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x).relu()
        middle = self.up(self.down(first).relu()).relu()
        out: torch.Tensor = self.head(torch.cat([first, middle], 1))
        return out


@program
def skip_past_bottleneck() -> Training:
    """Of two ways to the first layer, one is much shorter."""
    model = Skip()
    loss = regression(model, size=512, inputs=100, targets=100, reduction="sum")
    return fit(adam(model), loss)


class Equilibrium(nn.Module):
    """One layer, 30 times, contracting to its fixed point."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.again, self.head = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 1)
        nn.init.normal_(self.again.weight, std=0.05)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(len(x), 64)
        for _ in range(30):
            state = (self.again(state) + self.inner(x)).tanh()
        out: torch.Tensor = self.head(state)
        return out


@program
def equilibrium() -> Training:
    """A layer's gradient is the sum over its 30 calls."""
    model = Equilibrium()
    loss = regression(model, size=256, targets=30, reduction="sum")
    return fit(adam(model, 3e-3), loss)


@program
def narrow_gaussian() -> Training:
    """The likelihood of a normal distribution with a fixed standard deviation of 0.001."""
    model = mlp(3, 64)
    squares = regression(model)
    return fit(adam(model), lambda: squares() / (2 * 1e-3**2))


@program
def poisson() -> Training:
    """Counts in the hundreds, by the logarithm of their rate."""
    model = mlp(3, 64)

    def loss() -> torch.Tensor:
        x = torch.randn(256, 8)
        counts = torch.poisson((5 + x[:, 0]).exp())
        return F.poisson_nll_loss(model(x)[:, 0] + 5, counts, reduction="sum")

    return fit(adam(model), loss)


@program
def two_heads() -> Training:
    """One head's loss is 1e10 times the other's; they share the layers below."""
    model = Heads(mlp(3, 64, outputs=64), main=1, other=1)

    def loss() -> torch.Tensor:
        x = torch.randn(256, 8)
        main, other = model(x)
        error = F.mse_loss(main[:, 0], x.sum(1), reduction="sum")
        return 1e4 * error + 1e-6 * F.mse_loss(other, torch.zeros_like(other))

    return fit(adam(model), loss)


@program
def lbfgs() -> Training:
    """An optimizer that calls the loss itself, several times a step, on the same data."""
    model = mlp(3, 32, nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe", max_iter=4)
    x = torch.randn(1024, 8)

    def loss() -> torch.Tensor:
        return F.mse_loss(model(x)[:, 0], 10 * x.sum(1), reduction="sum")

    def closure() -> float:
        optimizer.zero_grad()
        now = loss()
        now.backward()
        return now.item()

    return Training(lambda: optimizer.step(closure), loss, steps=15)


@program
def boxes_in_pixels() -> Training:
    """A convolutional network that predicts places in a picture of 640 pixels."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )

    def loss() -> torch.Tensor:
        pictures = 255 * torch.rand(16, 3, 24, 24)
        return F.mse_loss(model(pictures), 640 * torch.rand(16, 4), reduction="sum")

    return fit(adam(model, 3e-2), loss)


@program
def raw_pixels() -> Training:
    """An autoencoder of pixels from 0 to 255."""
    model = mlp(4, 128, inputs=784, outputs=784)

    def loss() -> torch.Tensor:
        pixels = torch.randint(0, 256, (64, 784)).float()
        return F.mse_loss(model(pixels), pixels, reduction="sum")

    return fit(adam(model), loss)


class Sine(nn.Module):
    """sin(30 x): its derivative is 30, which small weights make up for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (30 * x).sin()


@program
def siren() -> Training:
    """A picture as a function of its coordinates, by sines (Sitzmann and others 2020)."""
    model = mlp(5, 128, Sine, inputs=2)
    for name, one in model.named_parameters():
        if one.ndim == 2 and one.shape[0] > 1:
            bound = 0.5 if name.startswith("0.") else math.sqrt(6 / 128) / 30
            nn.init.uniform_(one, -bound, bound)
    places = torch.rand(1024, 2) * 2 - 1
    colours = (10 * places).sin().sum(1)

    def loss() -> torch.Tensor:
        return F.mse_loss(model(places)[:, 0], colours, reduction="sum")

    return fit(adam(model, 1e-4), loss, steps=100)
