"""Programs whose forward makes layers each time, drops out in a wrong way, or mixes samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.learning.cut_off import STEPS, rows, train_classes
from tests.faults.learning.losses import loss_faults
from tests.faults.learning.order_of_a_step import lost_gradients


class Projected(nn.Module):
    """A layer between two others: made once, or in each forward."""

    def __init__(self, kind: Callable[[], nn.Module], each_time: bool) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(10, 8), nn.Linear(8, 3)
        self.kind = kind
        if not each_time:
            self.middle = kind()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = self.middle if hasattr(self, "middle") else self.kind()
        return self.out(middle(self.first(x)).tanh())


def _projected(kind: Callable[[], nn.Module], planted: bool) -> None:
    torch.manual_seed(0)
    model = Projected(kind, planted)
    train_classes(model)


def linear_made_in_forward(planted: bool) -> None:
    """A linear layer is made in each forward."""
    _projected(lambda: nn.Linear(8, 8), planted)


def norm_made_in_forward(planted: bool) -> None:
    """So is a normalisation."""
    _projected(lambda: nn.BatchNorm1d(8), planted)


def block_made_in_forward(planted: bool) -> None:
    """And a block of several layers."""
    _projected(lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), planted)


class Rewrapped(nn.Module):
    """A weight that forward wraps as a parameter again."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.randn(8, 10) * 0.1), nn.Linear(8, 3)
        self.how = how
        self.weight.requires_grad_(how != "frozen")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if self.how in ("turned", "frozen"):
            weight = nn.Parameter(self.weight.T).T
        if self.how == "local":
            weight = nn.Parameter(self.weight)
        if self.how == "scaled":
            weight = nn.Parameter(self.weight / self.weight.norm())
        if self.how == "kept":
            self.weight = nn.Parameter(self.weight.clamp(-1, 1))
            weight = self.weight
        return self.out(F.linear(x, weight).tanh())


def _rewrapped(how: str) -> None:
    torch.manual_seed(0)
    model = Rewrapped(how)
    train_classes(model)


def wrapped_for_a_call(planted: bool) -> None:
    """`nn.Parameter(self.weight)` in forward."""
    _rewrapped("local" if planted else "")


def normalised_and_wrapped(planted: bool) -> None:
    """The normalised weight is wrapped."""
    _rewrapped("scaled" if planted else "")


def replaced_in_forward(planted: bool) -> None:
    """Forward replaces the parameter by a clamped one."""
    _rewrapped("kept" if planted else "")


def turned_and_wrapped(planted: bool) -> None:
    """The transposed weight is wrapped; the twin's weight is frozen, as below an adapter."""
    _rewrapped("turned" if planted else "frozen")


class Prompted(nn.Module):
    """A layer whose input gets numbers to be learned: made once, or in each forward."""

    def __init__(self, width: int, made: Callable[[Any], torch.Tensor] | None) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(10, width), nn.Linear(width, 3)
        self.made = made
        if made is None:
            self.own = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.out((x + (self.own if self.made is None else self.made(x))).tanh())


def _prompted(made: Callable[[Any], torch.Tensor] | None) -> None:
    torch.manual_seed(0)
    model = Prompted(8, made)
    train_classes(model)


def prompt_made_in_forward(planted: bool) -> None:
    """A soft prompt is made in each forward; the twin makes it in __init__."""

    def made(x: torch.Tensor) -> torch.Tensor:
        return nn.Parameter(torch.randn(8) * 0.02)  # named

    _prompted(made if planted else None)


def scale_of_the_batch(planted: bool) -> None:
    """A mean of the batch is wrapped; the twin's is a constant of the batch."""

    def made(x: torch.Tensor) -> torch.Tensor:
        mean = x.detach().mean(0)
        return nn.Parameter(mean) if planted else mean  # named

    _prompted(made)


def made_for_the_size_of_the_batch(planted: bool) -> None:
    """Made as soon as the width is known, in each forward; the twin makes it in the first."""
    kept = list[nn.Parameter]()

    def made(x: torch.Tensor) -> torch.Tensor:
        if planted or not kept:
            kept[:] = [nn.Parameter(torch.zeros(x.shape[1]))]  # named
        return kept[0]

    _prompted(made)


class _Functions(nn.Module):
    """Drops out by a function, which follows the mode or not."""

    def __init__(self, drop: Callable[[torch.Tensor, bool], torch.Tensor]) -> None:
        super().__init__()
        self.drop = drop
        self.a, self.b = nn.Linear(10, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.b(self.drop(self.a(x).relu(), self.training))
        return out


class _MonteCarlo(nn.Dropout):
    """Drops out in evaluation too."""

    def train(self, mode: bool = True) -> Any:
        return super().train()


def _evaluated(model: nn.Module) -> None:
    """Trains and evaluates by turns."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(3):
        model.train()
        for _ in range(4):
            x, y = rows()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for _ in range(2):
                model(rows()[0])


def dropout_without_the_mode(planted: bool) -> None:
    """F.dropout(x), whose default is training=True."""
    _evaluated(_Functions(lambda x, mode: F.dropout(x, 0.5, planted or mode)))


def attention_with_dropout(planted: bool) -> None:
    """scaled_dot_product_attention gets a probability in any mode."""

    def attend(x: torch.Tensor, mode: bool) -> torch.Tensor:
        one = x[None, None]
        p = 0.3 if planted or mode else 0.0
        return F.scaled_dot_product_attention(one, one, one, dropout_p=p)[0, 0]

    _evaluated(_Functions(attend))


def dropout_of_features(planted: bool) -> None:
    """The same of an input; the twin has a module that stays in training mode on purpose."""
    if planted:
        _evaluated(_Functions(lambda x, mode: F.dropout(x[:, :16], p=0.2)))
        return
    _evaluated(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), _MonteCarlo(0.2), nn.Linear(16, 3)))


def _seeded(seeds: Callable[[int], None]) -> None:
    """Trains with dropout; `seeds` is called before each step."""
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = rows()
    for number in range(STEPS):
        seeds(number)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def seeded_in_each_step(planted: bool) -> None:
    """manual_seed(0) is in the loop; the twin's depends on the step."""

    def seeds(number: int) -> None:
        torch.manual_seed(0 if planted else number)

    _seeded(seeds)


def state_restored_in_each_step(planted: bool) -> None:
    """The generator's state is restored before each step; the twin's before the first."""
    state = torch.get_rng_state()
    _seeded(lambda number: torch.set_rng_state(state) if planted or not number else None)


def seeded_by_a_transform(planted: bool) -> None:
    """A crop is seeded for a pair of images; the twin keeps the state around it."""

    def crop(number: int) -> None:
        with torch.random.fork_rng(enabled=not planted):
            torch.manual_seed(17)
            torch.randint(10, (2,))

    _seeded(crop)


def trained_on(model: nn.Module, batch: Callable[[], torch.Tensor]) -> None:
    """Trains a model of three classes on inputs of some shape."""
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        out = model(batch())
        optimizer.zero_grad()
        F.cross_entropy(out, torch.randint(3, out.shape[:1])).backward()
        optimizer.step()


def _pooled(channels: int) -> nn.Sequential:
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), *pool, nn.Linear(4, 3))


def images_by_view(planted: bool) -> None:
    """Colours come last; view() is to put them first."""

    def batch() -> torch.Tensor:
        images = torch.rand(8, 12, 16, 3)
        return images.view(8, 3, 12, 16) if planted else images.permute(0, 3, 1, 2)

    trained_on(_pooled(3), batch)


class LastState(nn.Module):
    """The last state of a recurrent layer that gets time first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.GRU(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(x)[1][0])


def time_first_by_reshape(planted: bool) -> None:
    """Rows of a batch come first; reshape() is to put time first."""

    def batch() -> torch.Tensor:
        series = torch.randn(8, 5, 6)
        return series.reshape(5, 8, 6) if planted else series.transpose(0, 1).contiguous()

    trained_on(LastState(), batch)


def spectra_by_view(planted: bool) -> None:
    """A spectrogram of bins and frames; the twin's view splits one dimension."""
    model = nn.Sequential(nn.Conv1d(20, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))

    def batch() -> torch.Tensor:
        bins = torch.randn(8, 30, 20)
        return bins.view(8, 20, 30) if planted else torch.randn(8, 600).view(8, 20, 30)

    trained_on(model, batch)


FAULTS = (
    *lost_gradients(
        "layers made in each forward",
        "each forward makes a new layer",
        linear_made_in_forward,
        norm_made_in_forward,
        block_made_in_forward,
    ),
    *lost_gradients(
        "parameters made in each forward",
        "makes a new parameter in each forward",
        prompt_made_in_forward,
        scale_of_the_batch,
        made_for_the_size_of_the_batch,
    ),
    *lost_gradients(
        "parameters wrapped again in forward",
        "never get",
        wrapped_for_a_call,
        normalised_and_wrapped,
        replaced_in_forward,
        turned_and_wrapped,
    ),
    *loss_faults(
        "dropout in evaluation",
        "evaluation_mode",
        "evaluation mode",
        dropout_without_the_mode,
        attention_with_dropout,
        dropout_of_features,
    ),
    *loss_faults(
        "dropout that is the same in each step",
        "repeated_data",
        "the same elements in each step",
        seeded_in_each_step,
        state_restored_in_each_step,
        seeded_by_a_transform,
    ),
    *loss_faults(
        "inputs whose dimensions view() exchanged",
        "mixed_samples",
        "is mixed up",
        images_by_view,
        time_first_by_reshape,
        spectra_by_view,
    ),
)
