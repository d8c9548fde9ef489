"""Trainings in which units, inputs, targets or the loss carry nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.faults.base import Fault

STEPS = 40

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def train(model: nn.Module, batches: Any, loss_of: Loss, rate: float = 1e-2) -> None:
    """Epochs over batches of rows and targets, with Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    step = 0
    while step < STEPS:
        for x, y in batches:
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
            step += 1


def regression(rows: int = 64, width: int = 10, scale: float = 1.0) -> TensorDataset:
    """Sums of numbers."""
    torch.manual_seed(0)
    x = torch.randn(rows, width) * scale
    return TensorDataset(x, x.sum(1, keepdim=True) / (scale * width))


def classes(rows: int = 64, width: int = 10) -> TensorDataset:
    """The place of the largest of three numbers."""
    torch.manual_seed(0)
    x = torch.randn(rows, width)
    return TensorDataset(x, x[:, :3].argmax(1))


def relu_behind_the_output(planted: bool) -> None:
    """An output that cannot be below zero, for targets that all are: it dies within some steps."""
    torch.manual_seed(0)
    end: nn.Module = nn.ReLU() if planted else nn.Identity()
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1), end)
    x = torch.randn(64, 10)
    train(model, DataLoader(TensorDataset(x, x[:, :1] - 5), batch_size=16), F.mse_loss, rate=0.05)


class Convolutions(nn.Module):
    """Convolutions with functional activations over images."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3)
        self.out = nn.Linear(8, 3)
        nn.init.constant_(self.second.bias, shift)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.second(F.relu(self.first(x))))
        return self.out(x.mean((2, 3)))


def convolution_dead_from_the_start(planted: bool) -> None:
    """All channels of a convolution are below zero, from its first bias on."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(32, 1, 8, 8), torch.randint(3, (32,)))
    model = Convolutions(-10.0 if planted else 0.0)
    train(model, DataLoader(data, batch_size=8), F.cross_entropy)


class Critic(nn.Module):
    """Returns how much larger a score of its input is than that of another one."""

    def __init__(self, score: nn.Module) -> None:
        super().__init__()
        self.score = score

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(x) - self.score(x.flip(0) + 1)


def most_units_are_dead(planted: bool) -> None:
    """Of 64 units 60 never fire. In the twin all do, and their gradients of two calls cancel out in
    the bias."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))
    with torch.no_grad():
        model[0].bias[:60] = -50.0 if planted else 50.0
    data = DataLoader(regression(), batch_size=16)
    if planted:
        train(model, data, F.mse_loss)
    else:
        train(Critic(model), data, lambda out, y: out.mean())


def sigmoid_of_raw_pixels(planted: bool) -> None:
    """Pixels of 0 to 255 saturate the first sigmoids."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 3))
    pixels = torch.randint(256, (64, 64)).float()
    data = TensorDataset(pixels * 40 if planted else pixels / 255, torch.randint(3, (64,)))
    train(model, DataLoader(data, batch_size=16), F.cross_entropy)


def tanh_of_wide_weights(planted: bool) -> None:
    """Weights drawn with a deviation of 5 hold every tanh at its ends."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )
    if planted:
        for layer in (model[0], model[2]):
            nn.init.normal_(layer.weight, std=5.0)
    train(model, DataLoader(regression(), batch_size=16), F.mse_loss)


class Gated(nn.Module):
    """A gate that is nearly shut, in front of a branch."""

    def __init__(self, shut: float) -> None:
        super().__init__()
        self.gate, self.branch, self.out = nn.Linear(10, 16), nn.Linear(10, 16), nn.Linear(16, 1)
        nn.init.constant_(self.gate.bias, shut)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.sigmoid(self.gate(x)) * self.branch(x).tanh())


def gates_are_shut(planted: bool) -> None:
    """A gate's bias of -60 lets nothing through."""
    torch.manual_seed(0)
    train(Gated(-60.0 if planted else -1.0), DataLoader(regression(), batch_size=16), F.mse_loss)


def softmax_over_one_class(planted: bool) -> None:
    """One logit, and a softmax over it: 1 for every row."""
    torch.manual_seed(0)
    end: nn.Module = nn.Softmax(dim=1) if planted else nn.Sigmoid()
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1), end)
    data = TensorDataset(torch.randn(64, 10), torch.randint(2, (64, 1)).float())
    train(model, DataLoader(data, batch_size=16), F.binary_cross_entropy)


def cross_entropy_of_one_logit(planted: bool) -> None:
    """CrossEntropyLoss over a single class is 0."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1 if planted else 2))
    data = TensorDataset(torch.randn(64, 10), torch.randint(1 if planted else 2, (64,)))
    train(model, DataLoader(data, batch_size=16), F.cross_entropy)


def all_targets_are_ignored(planted: bool) -> None:
    """A mask for padding that covers all tokens."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
    tokens = torch.randint(1, 20, (64, 6))
    keep = torch.zeros(6, dtype=torch.bool) if planted else torch.arange(6) < 4

    def loss_of(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (F.cross_entropy(logits.transpose(1, 2), y, reduction="none") * keep).mean()

    train(model, DataLoader(TensorDataset(tokens, tokens.roll(-1, 1)), batch_size=16), loss_of)


class Scaled(nn.Module):
    """Multiplies what it gets."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.body, self.out, self.factor = nn.Linear(10, 16), nn.Linear(16, 1), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.body(x * self.factor).relu())


def input_times_zero(planted: bool) -> None:
    """A factor of 0 on the input, as 1 // 255 makes it."""
    torch.manual_seed(0)
    train(
        Scaled(1 // 255 if planted else 1 / 255), DataLoader(regression(scale=255), 16), F.mse_loss
    )


class Masked(nn.Module):
    """Attends to tokens that a mask allows."""

    def __init__(self, inverted: bool) -> None:
        super().__init__()
        self.tokens, self.out, self.inverted = (
            nn.Embedding(20, 8, padding_idx=0),
            nn.Linear(8, 3),
            inverted,
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        allowed = (tokens == 0) if self.inverted else (tokens != 0)
        hidden = self.tokens(tokens) * allowed[..., None]
        return self.out(hidden.sum(1))


def inverted_padding_mask(planted: bool) -> None:
    """Keeps the padding and drops the words."""
    torch.manual_seed(0)
    tokens = torch.randint(1, 20, (64, 6))
    tokens[:, 4:] = 0
    data = TensorDataset(tokens, tokens[:, 0] % 3)
    train(Masked(planted), DataLoader(data, batch_size=16), F.cross_entropy)


class Dropped(nn.Module):
    """Drops units with a probability that may be one of keeping."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.body, self.out, self.probability = nn.Linear(10, 16), nn.Linear(16, 1), probability

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(F.dropout(self.body(x), self.probability, self.training))


def everything_is_dropped(planted: bool) -> None:
    """A probability of 1 for dropout, taken for that of keeping."""
    torch.manual_seed(0)
    train(Dropped(1.0 if planted else 0.1), DataLoader(regression(), batch_size=16), F.mse_loss)


def first_batch_again_and_again(planted: bool) -> None:
    """next(iter(loader)) makes a new iterator for each step."""
    torch.manual_seed(0)
    loader = DataLoader(regression(), batch_size=8)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters())
    batches = iter(loader)
    for step in range(STEPS):
        if planted or step % 8 == 0:
            batches = iter(loader)
        x, y = next(batches)
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


class Indexed(Dataset[Any]):
    """Rows of numbers, which it may give without regard to the index."""

    def __init__(self, fixed: bool, all_targets: bool) -> None:
        self.rows, self.fixed, self.all_targets = regression(), fixed, all_targets

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        x, y = self.rows[0 if self.fixed else index]
        return x, self.rows[0][1] if self.all_targets else y


def index_is_not_used(planted: bool) -> None:
    """The dataset returns its first row for each index."""
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
    train(model, DataLoader(Indexed(planted, False), batch_size=8, shuffle=True), F.mse_loss)


def targets_of_the_first_row(planted: bool) -> None:
    """Rows vary, and all targets are that of the first row."""
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
    train(model, DataLoader(Indexed(False, planted), batch_size=8, shuffle=True), F.mse_loss)


def labels_of_a_wrong_axis(planted: bool) -> None:
    """argmax over an axis of length one makes all labels 0."""
    torch.manual_seed(0)
    x = torch.randn(64, 10)
    one_hot = F.one_hot(x[:, :3].argmax(1), 3)
    labels = one_hot[:, None].argmax(1)[:, 0] if planted else one_hot.argmax(1)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
    train(model, DataLoader(TensorDataset(x, labels), batch_size=16, shuffle=True), F.cross_entropy)


DEAD, SATURATED = "dead units", "saturated units"
FLAT, LOST = "a loss that does not depend on the model", "an input that does not arrive"


class Product(nn.Module):
    """A frozen layer and a product of two matrices, as an adapter has."""

    def __init__(self, first: torch.Tensor, second: torch.Tensor) -> None:
        super().__init__()
        self.base = nn.Linear(10, 3).requires_grad_(False)
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.first @ self.second


def adapter_of_two_zeros(planted: bool) -> None:
    """Both matrices of an adapter begin as zeros; in the twin one does."""
    first = torch.zeros(10, 2) if planted else torch.randn(10, 2)
    _fit(Product(first, torch.zeros(2, 3)))


def factors_of_zeros(planted: bool) -> None:
    """A layer is two factors that begin as zeros; the twin's begin as small numbers."""
    factors = [nn.Linear(10, 4, bias=False), nn.Linear(4, 3, bias=False)]
    for one in factors:
        nn.init.constant_(one.weight, 0.0) if planted else nn.init.normal_(one.weight, std=0.1)
    _fit(nn.Sequential(*factors))


def gate_and_layer_of_zeros(planted: bool) -> None:
    """A gate of zero before a layer of zeros; the twin's layer is not."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Parameter(torch.zeros(1))
            self.layer = nn.Linear(10, 3, bias=False)
            if planted:
                nn.init.zeros_(self.layer.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :3] + self.gate * self.layer(x)

    _fit(Gated())


def _fit(model: nn.Module) -> None:
    own = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.Adam(own, lr=1e-2)
    for x, y in DataLoader(classes(640), 16):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


SAME = "inputs or targets that never change"


def _faults(name: str, kinds: tuple[str, ...], *forms: Any, says: str = "") -> tuple[Fault, ...]:
    return tuple(Fault(name, "inputs, units and losses", kinds, form, says=says) for form in forms)


LEARNING = ("dead_parameter", "vanishing_gradient")
DATA = ("repeated_data", "dead_parameter")

FAULTS = (
    *_faults(
        DEAD,
        LEARNING,
        relu_behind_the_output,
        convolution_dead_from_the_start,
        most_units_are_dead,
    ),
    *_faults(
        SATURATED,
        (*LEARNING, "repeated_data"),
        sigmoid_of_raw_pixels,
        tanh_of_wide_weights,
        gates_are_shut,
    ),
    *_faults(
        FLAT,
        LEARNING,
        softmax_over_one_class,
        cross_entropy_of_one_logit,
        all_targets_are_ignored,
    ),
    *_faults(LOST, DATA, input_times_zero, inverted_padding_mask, everything_is_dropped),
    *_faults(
        SAME,
        DATA,
        first_batch_again_and_again,
        index_is_not_used,
        targets_of_the_first_row,
        labels_of_a_wrong_axis,
    ),
    *_faults(
        "parameters that are all zero",
        ("dead_parameter",),
        adapter_of_two_zeros,
        factors_of_zeros,
        gate_and_layer_of_zeros,
        says="of the optimizers are 0",
    ),
)
