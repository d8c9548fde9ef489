"""Programs that learn, with gradients that are large: recurrent networks and transformers."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.programs.trainings import Loss, Program, Training, adam, fit, into

PROGRAMS: dict[str, Program] = {}
program = into(PROGRAMS)

INPUTS = 4
REMEMBERED = 5
"""Time steps whose inputs are to be added."""


class Recurrent(nn.Module):
    """A recurrent network of four inputs, and a number read off its state at every time step."""

    def __init__(self, rnn: nn.RNNBase) -> None:
        super().__init__()
        self.rnn, self.head = rnn, nn.Linear(rnn.hidden_size, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of x [batch, time, INPUTS], [batch, time]."""
        out: torch.Tensor = self.head(self.rnn(x)[0])[..., 0]
        return out


def vanilla(hidden: int = 64, **settings: int | str) -> Recurrent:
    """One of tanh, if nothing else is said."""
    return Recurrent(nn.RNN(INPUTS, hidden, batch_first=True, **settings))


def with_gain(model: nn.Module, gain: float) -> None:
    """Draws recurrent weights so that they multiply a state's norm by `gain`, without tanh."""
    for name, one in model.named_parameters():
        if "weight_hh" in name:
            nn.init.normal_(one, std=gain / math.sqrt(one.shape[1]))


def add_last(model: nn.Module, time: int, *, factor: float = 1.0, reduction: str = "mean") -> Loss:
    """The error, times `factor`, of the sum of the last REMEMBERED first inputs of `time`.

    The model's gradient comes from the last time step alone.
    """

    def loss() -> torch.Tensor:
        x = torch.randn(16, time, INPUTS)
        wanted = x[:, -REMEMBERED:, 0].sum(1)
        return factor * F.mse_loss(model(x)[:, -1], wanted, reduction=reduction)

    return loss


def echo(model: nn.Module, late: int, *, size: int, time: int = 100, factor: float = 1.0) -> Loss:
    """The sum of errors at all time steps; the target is the input of `late` steps before."""

    def loss() -> torch.Tensor:
        x = torch.randn(size, time, INPUTS)
        return F.mse_loss(model(x), factor * x[..., 0].roll(late, 1), reduction="sum")

    return loss


def next_token(model: nn.Module, size: int, time: int, tokens: int, *, rise: bool = False) -> Loss:
    """The sum of the cross entropies of tokens below `tokens`; they `rise`, or are noise."""

    def loss() -> torch.Tensor:
        text = torch.randint(0, tokens, (size, time + 1))
        text = text.sort(1)[0] if rise else text
        answer = model(text[:, :-1])
        return F.cross_entropy(answer.flatten(0, 1), text[:, 1:].flatten(), reduction="sum")

    return loss


@program
def rnn() -> Training:
    """As torch initialises it."""
    model = vanilla()
    return fit(adam(model, 1e-2), add_last(model, 50))


@program
def rnn_of_a_large_loss() -> Training:
    """The same, its loss a sum times 1e5."""
    model = vanilla()
    return fit(adam(model, 1e-2), add_last(model, 60, factor=1e5, reduction="sum"))


@program
def rnn_clipped() -> Training:
    """A gain of 1.4 for 50 time steps, the gradient of a sum clipped to 1."""
    model = vanilla()
    with_gain(model, 1.4)
    optimizer, loss = adam(model, 1e-2), add_last(model, 50, reduction="sum")

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return Training(step, loss)


@program
def rnn_orthogonal() -> Training:
    """Orthogonal recurrent weights, and a sum over time times 100."""
    model = vanilla(128)
    nn.init.orthogonal_(model.get_parameter("rnn.weight_hh_l0"))
    errors = echo(model, 1, size=32)
    return fit(adam(model), lambda: 100 * errors())


@program
def rnn_identity() -> Training:
    """ReLU, and recurrent weights that begin as the identity (Le, Jaitly and Hinton 2015)."""
    model = vanilla(nonlinearity="relu")
    nn.init.eye_(model.get_parameter("rnn.weight_hh_l0"))
    nn.init.normal_(model.get_parameter("rnn.weight_ih_l0"), std=0.001)
    for name in ("rnn.bias_hh_l0", "rnn.bias_ih_l0"):
        nn.init.zeros_(model.get_parameter(name))

    def loss() -> torch.Tensor:
        x = torch.rand(32, 100, INPUTS)
        return F.mse_loss(model(x)[:, -1], x[..., 0].sum(1), reduction="sum")

    return fit(adam(model), loss)


@program
def lstm() -> Training:
    """A sum of errors over 200 time steps."""
    model = Recurrent(nn.LSTM(INPUTS, 64, batch_first=True))
    return fit(adam(model, 3e-3), echo(model, 2, size=32, time=200, factor=10))


@program
def gru_of_two_layers() -> Training:
    """Its loss a sum times 1000."""
    model = Recurrent(nn.GRU(INPUTS, 64, num_layers=2, batch_first=True))
    return fit(adam(model, 1e-2), add_last(model, 60, factor=1e3, reduction="sum"))


class LanguageModel(nn.Module):
    """Logits of the next token, by a recurrent network."""

    def __init__(self, rnn: nn.RNNBase, tokens: int) -> None:
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(tokens, rnn.input_size), rnn
        self.head = nn.Linear(rnn.hidden_size, tokens)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Of text [batch, time], [batch, time, tokens]."""
        out: torch.Tensor = self.head(self.rnn(self.embedding(text))[0])
        return out


@program
def gru_of_20000_classes() -> Training:
    """A head that is wide, of whose classes 50 occur."""
    model = LanguageModel(nn.GRU(64, 64, batch_first=True), 20_000)
    return fit(adam(model, 1e-2), next_token(model, 8, 64, 50), steps=20)


class Transformer(nn.Module):
    """A decoder whose layers are pre-norm and post-norm by turns; embedding and head are one."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 128, 0.0, batch_first=True, norm_first=i % 2 == 0)
            for i in range(4)
        )
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Of text [batch, time], [batch, time, tokens]."""
        x, mask = self.embedding(text), nn.Transformer.generate_square_subsequent_mask(len(text[0]))
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        out: torch.Tensor = self.head(x)
        return out


@program
def transformer_weights_of_one() -> Training:
    """An embedding from the standard normal distribution, which is the head too; a sum."""
    model = Transformer(1000, 64)
    return fit(adam(model), next_token(model, 16, 32, 1000, rise=True))


@program
def transformer_post_norm() -> Training:
    """24 post-norm layers without a warm-up; of 100 tokens ten occur."""
    layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(100, 32),
        nn.TransformerEncoder(layer, 24, enable_nested_tensor=False),
        nn.Linear(32, 100),
    )
    return fit(adam(model), next_token(model, 8, 16, 10), steps=12)
