"""Gradients that vanish or explode on their way from the loss."""

from __future__ import annotations

import torch
from common import STEPS, layers, program, train
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


@program
def sigmoids() -> None:
    """Twelve sigmoids in a row: the first layers get nothing."""
    model = layers(12, 8, nn.Sigmoid)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(16, 8))


@program
def residual_sigmoids() -> None:
    """The same with a path around each: they all learn."""

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.inner(x).sigmoid() - 0.5

    model = nn.Sequential(*(Around() for _ in range(12)))
    train(model, torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(16, 8))


@program
def small_and_healthy() -> None:
    """A loss times 1e-9, a single scale beside a wide layer, attention whose key bias gets none."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
            self.norm = nn.LayerNorm(16, bias=False)
            self.scale = nn.Parameter(torch.tensor(1e-3))
            self.wide = nn.Linear(16, 256, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norm(x + self.attention(x, x, x)[0])
            return self.wide(x) * self.scale * 3e-5

    model = Model()
    train(model, torch.optim.Adam(model.parameters(), lr=1e-3), torch.randn(4, 5, 16))


@program
def biases_alone() -> None:
    """Fine-tuning of biases, among them the key bias of attention, which gets none."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))

    model = Model()
    model.requires_grad_(False)
    biases = [one for name, one in model.named_parameters() if name.endswith("bias")]
    for one in biases:
        one.requires_grad_(True)
    train(model, torch.optim.Adam(biases, lr=1e-3), torch.randn(4, 5, 16))


@program
def tiny_weights() -> None:
    """So small that the first layers' gradients, which do rise, stay nothing."""
    model = layers(6, 32, nn.Tanh)
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1e-3)
    train(model, torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(16, 32))


@program
def zero_initialised_branches() -> None:
    """Branches that begin at zero, a layer scale of 1e-6, and a warm-up from a rate of zero."""

    class Branch(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
            self.gamma = nn.Parameter(torch.full((8,), scale))
            if scale == 1:
                nn.init.zeros_(self.last.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.gamma * self.last(torch.relu(self.first(x)))

    model = nn.Sequential(Branch(1.0), Branch(1e-6), Branch(0.0), nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def warm_up(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1.0, step / 4)

    train(model, optimizer, torch.randn(16, 8), each=warm_up)


@program
def branch_warmed_up_by_epochs() -> None:
    """A branch that begins at zero, and a rate that is next to nothing in the first epoch."""

    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
            self.gamma = nn.Parameter(torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.gamma * self.last(torch.relu(self.first(x)))

    model = nn.Sequential(Branch(), nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def warm_up(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 2e-7 if step < 9 else 1e-2

    train(model, optimizer, torch.randn(16, 8), steps=30, each=warm_up)


@program
def rate_too_high() -> None:
    """Each step overshoots by more than the one before."""
    model = nn.Linear(8, 8)
    train(model, torch.optim.SGD(model.parameters(), lr=12.0), torch.randn(16, 8))


@program
def rate_too_high_late() -> None:
    """The same from step 25 on."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def raise_rate(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 12.0 if step >= 25 else 1e-3

    train(model, optimizer, torch.randn(16, 8), each=raise_rate, steps=40)


@program
def scale_is_learned() -> None:
    """A Gaussian likelihood whose deviation falls from 20 to 0.2, while the loss falls."""
    x, scale = torch.randn(16, 8), nn.Parameter(torch.tensor(3.0))
    model, target = nn.Linear(8, 1), x @ torch.randn(8, 1)
    optimizers = [torch.optim.Adam(one, lr=0.05) for one in (model.parameters(), [scale])]
    for _ in range(110):
        error = (model(x + 0.03 * torch.randn_like(x)) - target) / scale.exp()
        (0.5 * error.square() + scale).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@program
def leaves_a_plateau() -> None:
    """Small matrices in a row, which get hardly any gradient until the first of them have grown."""
    matrices = [nn.Parameter(0.02 * torch.randn(8, 8)) for _ in range(3)]
    optimizer, x = torch.optim.SGD(matrices, lr=0.2), torch.randn(32, 8)
    target = x @ torch.randn(8, 8)
    for _ in range(80):
        (torch.linalg.multi_dot([x, *matrices]) - target).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def not_a_number() -> None:
    """The root of a negative number, from the fifth step on."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(6):
        out = model(torch.ones(4, 8)).square().mean()
        (out.sqrt() if step < 4 else (-out).sqrt()).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def clipped_and_healthy() -> None:
    """A large norm that is clipped at every step, and falls."""
    model = layers(3, 8, nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train(model, optimizer, 10 * torch.randn(16, 8), clip=0.1)


@program
def large_and_healthy() -> None:
    """A sum over errors that are large themselves; each step changes little."""
    model = layers(2, 8, nn.ReLU)
    data = 100 * torch.randn(256, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        (model(data) - data.sum(1, keepdim=True)).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        optimizer.step()
        optimizer.zero_grad()


@program
def outputs_grow() -> None:
    """Each layer's outputs are ten times the last one's, and so are gradients on their way back."""
    model = layers(9, 32, nn.ReLU)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=3.0)
    train(model, torch.optim.Adam(model.parameters(), lr=1e-4), torch.randn(16, 32))


@program
def clipped_and_large() -> None:
    """A sum over large errors is clipped to 1: the rest still has a direction."""
    model = layers(2, 8, nn.ReLU)
    data = 100 * torch.randn(256, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        (model(data) - data.sum(1, keepdim=True)).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@program
def step_overturns() -> None:
    """The first step leaves nothing of what the model was."""
    model, data = nn.Linear(8, 8), 1e4 * torch.randn(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        (model(data) - 1).abs().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


class Recurrent(nn.Module):
    """The last output of an RNN of tanh, whose recurrent weights have a gain."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.rnn, self.head = nn.RNN(4, 64, batch_first=True), nn.Linear(64, 1)
        nn.init.normal_(self.rnn.weight_hh_l0, std=gain / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.rnn(x)[0][:, -1])
        return out


@program
def rnn_explodes() -> None:
    """Its Jacobian magnifies at each of 60 steps; outputs are bounded, and so is what Adam does."""
    model = Recurrent(3.0)
    train(model, torch.optim.Adam(model.parameters(), lr=1e-3), torch.randn(16, 60, 4))


@program
def rnn_of_a_large_loss() -> None:
    """The same with a gain below 1, and a loss times 1e6."""
    model = Recurrent(0.6)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(lambda x: 1e3 * model(x), optimizer, torch.randn(16, 60, 4))


@program
def critic_beside_actor() -> None:
    """Two heads; the loss of one is 1e-9 of the other's: neither is on the other's way."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.critic, self.actor = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = self.body(x).tanh()
            return self.critic(hidden), self.actor(hidden)

    model, data = Both(), torch.randn(64, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        value, action = model(data)
        ((value - 1e3 * data).square().sum() + 1e-3 * action.square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


def in_backward(model: nn.Module) -> None:
    """Every parameter has an optimizer, which steps as soon as its gradient is there."""
    for one in model.parameters():
        optimizer = torch.optim.SGD([one], lr=0.05)

        def step(_: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        one.register_post_accumulate_grad_hook(step)
    for _ in range(STEPS):
        (model(torch.randn(16, 8)) - 1).square().mean().backward()


@program
def sigmoids_in_backward() -> None:
    """Twelve sigmoids."""
    in_backward(layers(12, 8, nn.Sigmoid))


@program
def tanhs_in_backward() -> None:
    """Three of tanh."""
    in_backward(layers(3, 8, nn.Tanh))
