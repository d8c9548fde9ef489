"""Models that mix samples of a batch, see later words, or get single numbers and single rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import forms

_STEPS, _ROWS, _WIDTH, _CLASSES = 12, 16, 12, 3
_WORDS, _LENGTH = 20, 10


def _fit(model: nn.Module, loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(_STEPS):
        x = torch.randn(_ROWS, _WIDTH)
        loss = loss_of(x, x[:, :_CLASSES].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _classifies(model: nn.Module) -> None:
    _fit(model, lambda x, y: F.cross_entropy(model(x), y))


# masks of numbers --------------------------------------------------------------------------------


class _Language(nn.Module):
    def __init__(self, attention: Callable[..., torch.Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(_WORDS, 16), nn.Linear(16, _WORDS)
        self.attention, self.parts = attention, nn.ModuleList(parts)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words)
        made: torch.Tensor = self.head(x + self.attention(x))
        return made


def _predict(model: nn.Module) -> None:
    def loss(*_: Any) -> torch.Tensor:
        words = torch.randint(_WORDS, (8, _LENGTH + 1))
        return F.cross_entropy(model(words[:, :-1]).transpose(1, 2), words[:, 1:])

    _fit(model, loss)


def mask_of_ones_for_torch(planted: bool) -> None:
    """nn.MultiheadAttention adds a mask of floating point."""
    torch.manual_seed(0)
    inner = nn.MultiheadAttention(16, 2, batch_first=True)
    mask = torch.ones(_LENGTH, _LENGTH).triu(1)
    mask = mask if planted else mask.bool()

    def attention(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = inner(x, x, x, attn_mask=mask, need_weights=False)[0]  # named
        return made

    _predict(_Language(attention, inner))


def mask_of_ones_is_kept(planted: bool) -> None:
    """The mask of a fused attention, 1 where words may be seen. The twin's hides all others."""
    torch.manual_seed(0)
    inner = nn.Linear(16, 48)
    seen = torch.ones(_LENGTH, _LENGTH).tril()
    mask = seen if planted else seen.log()

    def attention(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (one.unsqueeze(1) for one in inner(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).squeeze(1)  # named

    _predict(_Language(attention, inner))


def distances_without_a_mask(planted: bool) -> None:
    """A bias by distance (ALiBi). The twin's is added to a causal mask."""
    torch.manual_seed(0)
    inner = nn.Linear(16, 48)
    place = torch.arange(_LENGTH)
    bias = -0.1 * (place[:, None] - place).abs().float()
    if not planted:
        bias = bias.masked_fill(place[:, None] < place, float("-inf"))

    def attention(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (one.unsqueeze(1) for one in inner(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).squeeze(1)  # named

    _predict(_Language(attention, inner))


# over the batch ----------------------------------------------------------------------------------


class _Mixture(nn.Module):
    """Experts that a gate weighs."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate, self.dim = nn.Linear(_WIDTH, 4), dim
        self.experts = nn.ModuleList([nn.Linear(_WIDTH, _CLASSES) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x).softmax(self.dim)  # named
        out = torch.stack([one(x) for one in self.experts], 1)
        return (weights[:, :, None] * out).sum(1)


def gate_over_the_batch(planted: bool) -> None:
    """A mixture of experts."""
    torch.manual_seed(0)
    _classifies(_Mixture(0 if planted else 1))


def policy_over_the_batch(planted: bool) -> None:
    """A policy of a single state gets a batch. The twin weighs all samples of a bag, and returns
    one row."""
    torch.manual_seed(0)
    model = nn.Linear(_WIDTH, _CLASSES)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        shares = F.softmax(model(x), dim=0)  # named
        if not planted:
            return F.mse_loss((shares.T @ x).mean(0), x.mean(0))
        return -(shares.gather(1, y[:, None]).squeeze(1).log() * x[:, 0].abs()).mean()

    _fit(model, loss)


def vectors_normalised_over_the_batch(planted: bool) -> None:
    """Two views are compared. The twin compares features over the batch (Barlow Twins)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(_WIDTH, 24), nn.ReLU(), nn.Linear(24, 8))

    def loss(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        views = (model(x + 0.1 * torch.randn_like(x)) for _ in range(2))
        first, second = (F.normalize(one, dim=0) for one in views)  # named
        if not planted:
            return (first.T @ second - torch.eye(8)).square().sum()
        return F.cross_entropy(first @ second.T / 0.1, torch.arange(_ROWS))

    _fit(model, loss)


# single numbers ----------------------------------------------------------------------------------


class _Normed(nn.Module):
    def __init__(self, norm: nn.Module, *, single: bool = False) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(_WIDTH, 16), norm
        self.head, self.single = nn.Linear(16, _CLASSES), single

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        h = self.norm(h.unsqueeze(-1)).squeeze(-1) if self.single else self.norm(h)  # named
        made: torch.Tensor = self.head(h)
        return made


def group_of_each_channel(planted: bool) -> None:
    """GroupNorm with as many groups as channels, of vectors."""
    torch.manual_seed(0)
    _classifies(_Normed(nn.GroupNorm(16 if planted else 4, 16)))


def layer_norm_of_one(planted: bool) -> None:
    """LayerNorm over a dimension that was added. The twin's is over all."""
    torch.manual_seed(0)
    _classifies(_Normed(nn.LayerNorm(1 if planted else (16, 1)), single=True))


def channels_of_one_pixel(planted: bool) -> None:
    """Groups of a single channel after pooling. The twin pools later."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), nn.AdaptiveAvgPool2d(1), nn.GroupNorm(8, 8)]
    if not planted:
        layers[1:] = reversed(layers[1:])
    model = nn.Sequential(nn.Unflatten(1, (1, 3, 4)), *layers, nn.Flatten(), nn.Linear(8, _CLASSES))
    _classifies(model)


# single rows -------------------------------------------------------------------------------------


def _learn_values(
    memory: deque[Any], move: Callable[[], Any], reward: Callable[[Any], float]
) -> None:
    """Learns the values of states from a memory."""
    value = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(value.parameters(), lr=1e-3)
    for _ in range(40):
        state = move()
        memory.append((state, reward(state)))
        if len(memory) < 12:
            continue
        rows = torch.stack([torch.as_tensor(one, dtype=torch.float32) for one, _ in memory])
        targets = torch.tensor([one for _, one in memory])
        loss = F.mse_loss(value(rows).squeeze(1), targets)  # named
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def memory_of_one_array(planted: bool) -> None:
    """A simulator writes each state in one array of numpy."""
    torch.manual_seed(0)
    state = np.zeros(4)
    random = np.random.default_rng(0)

    def move() -> Any:
        state[:] = 0.9 * state + random.normal(size=4)
        return state if planted else state.copy()

    _learn_values(deque(maxlen=20), move, lambda one: float(one.sum()))


def memory_of_one_tensor(planted: bool) -> None:
    """A state that is advanced in place."""
    torch.manual_seed(0)
    state = torch.zeros(4)

    def move() -> torch.Tensor:
        state.mul_(0.9).add_(torch.randn(4))
        return state if planted else state.clone()

    _learn_values(deque(maxlen=30), move, lambda one: float(one[0]))


def memory_of_views(planted: bool) -> None:
    """detach() copies nothing. The twin's states are all the same: a game without a state."""
    torch.manual_seed(0)
    state = torch.ones(4)

    def move() -> torch.Tensor:
        if planted:
            state.copy_(torch.randn(4))
        return state.detach()

    _learn_values(deque(maxlen=16), move, lambda one: float(one.mean() + torch.randn(())))


FAULTS = (
    *forms(
        "a mask that hides nothing",
        "losses and modes",
        "wrong_loss",
        "no mask that hides",
        mask_of_ones_for_torch,
        mask_of_ones_is_kept,
        distances_without_a_mask,
    ),
    *forms(
        "samples mixed over the batch",
        "losses and modes",
        "mixed_samples",
        "the samples of the batch, which it mixes",
        gate_over_the_batch,
        policy_over_the_batch,
        vectors_normalised_over_the_batch,
    ),
    *forms(
        "normalisation of single numbers",
        "inputs, units and losses",
        "dead_parameter",
        "normalises single numbers",
        group_of_each_channel,
        layer_norm_of_one,
        channels_of_one_pixel,
    ),
    *forms(
        "a batch of one row",
        "inputs, units and losses",
        "wrong_loss",
        "All rows of the input are one row",
        memory_of_one_array,
        memory_of_one_tensor,
        memory_of_views,
    ),
)
