"""Models that change the slices of the data that they get."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import forms

_ROWS, _BATCH, _EPOCHS, _WIDTH = 96, 16, 4, 12


def _train(model: nn.Module, data: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    labels = (data.flatten(1).sum(1) > data.sum() / len(data)).long()
    for _ in range(_EPOCHS):
        for begin in range(0, len(data), _BATCH):
            rows = slice(begin, begin + _BATCH)
            optimizer.zero_grad()
            F.cross_entropy(model(data[rows]), labels[rows]).backward()
            optimizer.step()


def mean_taken_off_in_place(planted: bool) -> None:
    """The model normalises its input; the twin makes a new tensor."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(_WIDTH, 16), nn.Linear(16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if planted:
                x -= 10.0  # named
            else:
                x = x - 10.0
            out: torch.Tensor = self.last(torch.relu(self.first(x)))
            return out

    torch.manual_seed(0)
    _train(Net(), torch.randn(_ROWS, _WIDTH) + 10)


def pictures_scaled_in_place(planted: bool) -> None:
    """A convolution gets pictures that were bytes. The twin's model scales the rows of a
    memory of its own."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(1, 4, 3), nn.Linear(16, 2)
            self.memory = torch.ones(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if planted:
                x.div_(255)  # named
            else:
                x = x / 255
            out = self.first(x).flatten(1)
            for part in () if planted else self.memory:
                out = out + F.linear(part.mul_(0.9)[None], self.last.weight[:1, :4].detach())
            scores: torch.Tensor = self.last(out)
            return scores

    torch.manual_seed(0)
    _train(Net(), torch.randint(256, (_ROWS, 1, 4, 4)).float())


def noise_added_to_slices(planted: bool) -> None:
    """Noise against overfitting adds up. The twin fills its data again before each epoch."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(_WIDTH, 16), nn.Linear(16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x += 0.1 * torch.randn_like(x)  # named
            out: torch.Tensor = self.last(torch.relu(self.first(x)))
            return out

    torch.manual_seed(0)
    data, model = torch.randn(_ROWS, _WIDTH), Net()
    if planted:
        _train(model, data)
        return
    optimizer, kept = torch.optim.SGD(model.parameters(), lr=1e-3), data.clone()
    for _ in range(_EPOCHS):
        data.copy_(kept)
        for rows in data.split(_BATCH):
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()


FAULTS = forms(
    "data that a model changes",
    "losses and modes",
    "inplace_modification",
    "changes the data itself",
    mean_taken_off_in_place,
    pictures_scaled_in_place,
    noise_added_to_slices,
)
