"""Programs that do not learn, for their gradients explode on the way from the loss.

Recurrent and deep networks of tanh, whose gain of above 1 magnifies the gradient at each time step
or layer, while outputs are bounded. Under Adam the updates are of the learning rate's size.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.programs.learning_sequences import (
    INPUTS,
    LanguageModel,
    Recurrent,
    add_last,
    next_token,
    vanilla,
    with_gain,
)
from benchmarks.programs.trainings import Program, Training, adam, fit, into, mlp, regression

PROGRAMS: dict[str, Program] = {}
program = into(PROGRAMS)

SIZES = (
    (1.6, 200, 64),
    (2.0, 50, 64),
    (2.0, 100, 64),
    (2.5, 200, 128),
    (3.0, 50, 64),
    (3.0, 100, 128),
    (4.0, 30, 32),
    (5.0, 100, 64),
)
"""Gain, time steps, and hidden units of the plain recurrent networks."""


def _plain(gain: float, time: int, hidden: int) -> Program:
    """A recurrent network of tanh, from mild gains over long times to the reverse."""

    def plain() -> Training:
        model = vanilla(hidden)
        with_gain(model, gain)
        return fit(adam(model), add_last(model, time))

    return plain


PROGRAMS.update(
    (f"rnn_gain_{gain:g}_time_{time}_of_{hidden}", _plain(gain, time, hidden))
    for gain, time, hidden in SIZES
)


@program
def rnn_sgd() -> Training:
    """Under SGD, with a rate so small that the weights stay."""
    model = vanilla()
    with_gain(model, 3.0)
    return fit(torch.optim.SGD(model.parameters(), lr=1e-12), add_last(model, 60))


@program
def rnn_of_two_layers() -> Training:
    """Both have a gain."""
    model = vanilla(num_layers=2)
    with_gain(model, 2.5)
    return fit(adam(model), add_last(model, 100))


@program
def rnn_at_all_steps() -> Training:
    """The loss is of all time steps, so that part of the gradient has a short way."""
    model = vanilla()
    with_gain(model, 3.0)

    def loss() -> torch.Tensor:
        x = torch.randn(16, 100, INPUTS)
        return F.mse_loss(model(x), x[..., 0].roll(3, 1))

    return fit(adam(model), loss)


class Loop(nn.Module):
    """The time steps are a loop of the program: a cell's calls are nodes of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.RNNCell(INPUTS, 64), nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of x [batch, time, INPUTS], [batch, 1]: of the last time step."""
        state = torch.zeros(len(x), self.cell.hidden_size)
        for now in x.unbind(1):
            state = self.cell(now, state)
        out: torch.Tensor = self.head(state)
        return out


@program
def cell_in_a_loop() -> Training:
    """A recurrent network that is not one module."""
    model = Loop()
    with_gain(model, 3.0)
    return fit(adam(model), add_last(model, 60))


@program
def rnn_of_language() -> Training:
    """A sum over tokens, between an embedding and a head of 100."""
    model = LanguageModel(nn.RNN(64, 64, batch_first=True), 100)
    with_gain(model, 3.0)
    return fit(adam(model), next_token(model, 8, 100, 100))


@program
def gru_gain_8() -> Training:
    """Gates help only where their own weights are small."""
    model = Recurrent(nn.GRU(INPUTS, 64, batch_first=True))
    with_gain(model, 8.0)
    return fit(adam(model), add_last(model, 150))


@program
def deep_tanh() -> Training:
    """60 layers, which each multiply by 3 and cut off."""
    model = mlp(61, 64, nn.Tanh, inputs=64, std=3 / 8)
    return fit(adam(model), regression(model, size=32, width=64))


@program
def deep_tanh_no_bias() -> Training:
    """The same of weights alone: a layer has one parameter."""
    model = mlp(61, 64, nn.Tanh, inputs=64, std=3 / 8, bias=False)
    return fit(adam(model), regression(model, size=32, width=64))
