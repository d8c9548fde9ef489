"""Models that see what they predict, that mix positions up, or train what should be constant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import Fault

STEPS = 12
WORDS, LENGTH, WIDTH, HEADS = 20, 10, 16, 2


def fit(model: nn.Module, loss_of: Callable[[], torch.Tensor]) -> None:
    """Trains for some steps."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Language(nn.Module):
    """A language model with one layer of attention."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.table, self.attention = nn.Embedding(WORDS, WIDTH), attention
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words)
        out: torch.Tensor = self.head(x + self.attention(x))
        return out


class Attention(nn.Module):
    """Queries, keys and values of heads; `weigh` does the rest."""

    def __init__(self, weigh: Callable[..., torch.Tensor], mixed: bool = False) -> None:
        super().__init__()
        self.inner, self.weigh, self.mixed = nn.Linear(WIDTH, 3 * WIDTH), weigh, mixed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        parts = self.inner(x).chunk(3, -1)
        q, k, v = (split_heads(one.contiguous(), self.mixed) for one in parts)
        return self.weigh(q, k, v).transpose(1, 2).reshape(rows, length, WIDTH)


def split_heads(x: torch.Tensor, mixed: bool) -> torch.Tensor:
    """Makes [rows, heads, length, width] of [rows, length, all widths]."""
    rows, length, width = x.shape
    if mixed:
        return x.view(rows, HEADS, length, width // HEADS)
    return x.view(rows, length, HEADS, width // HEADS).transpose(1, 2)


def predict_next(model: nn.Module) -> None:
    """Rows of words and the words after them."""

    def loss() -> torch.Tensor:
        words = torch.randint(WORDS, (8, LENGTH + 1))
        scores = model(words[:, :-1])
        return F.cross_entropy(scores.reshape(-1, WORDS), words[:, 1:].reshape(-1))

    fit(model, loss)


# without a mask ----------------------------------------------------------------------------------


def fused_attention_without_a_mask(planted: bool) -> None:
    """is_causal is forgotten."""
    torch.manual_seed(0)
    causal = not planted

    def weigh(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)  # named

    predict_next(Language(Attention(weigh)))


def attention_by_hand_without_a_mask(planted: bool) -> None:
    """The mask is made and not used; targets are shifted within the loss."""
    torch.manual_seed(0)
    hidden = torch.ones(LENGTH, LENGTH).triu(1).bool()

    def weigh(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5
        if not planted:
            scores = scores.masked_fill(hidden, -1e9)
        return scores.softmax(-1) @ v

    model = Language(Attention(weigh))

    def loss() -> torch.Tensor:
        words = torch.randint(WORDS, (8, LENGTH))
        scores = model(words)[:, :-1]
        return F.cross_entropy(scores.reshape(-1, WORDS), words[:, 1:].reshape(-1))

    fit(model, loss)


class Layers(nn.Module):
    """Layers of torch, as one attention."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.1, batch_first=True)
        self.inner = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.mask = nn.Transformer.generate_square_subsequent_mask(LENGTH) if masked else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x, mask=self.mask)
        return out


def layers_without_a_mask(planted: bool) -> None:
    """nn.TransformerEncoder gets no mask."""
    torch.manual_seed(0)
    predict_next(Language(Layers(masked=not planted)))


def words_are_hidden(planted: bool) -> None:
    """The twin of all: hidden words are predicted from both sides."""
    torch.manual_seed(0)
    model = Language(Layers(masked=False))

    def loss() -> torch.Tensor:
        words = torch.randint(1, WORDS, (8, LENGTH))
        hidden = torch.rand(words.shape) < 0.3
        scores = model(words.masked_fill(hidden, 0))
        targets = words.masked_fill(~hidden, -100)
        return F.cross_entropy(scores.reshape(-1, WORDS), targets.reshape(-1))

    fit(model, loss)


# exchanged dimensions ----------------------------------------------------------------------------


def heads_split_by_view(planted: bool) -> None:
    """Heads come before positions by view() alone."""
    torch.manual_seed(0)

    def weigh(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    predict_next(Language(Attention(weigh, mixed=planted)))


def scores_viewed_for_the_loss(planted: bool) -> None:
    """Scores of [rows, length, classes] are brought to [rows, classes, length]."""
    torch.manual_seed(0)
    classes = 4
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, classes))

    def loss() -> torch.Tensor:
        words = torch.randint(WORDS, (8, LENGTH))
        scores = model(words)
        scores = scores.view(8, classes, LENGTH) if planted else scores.transpose(1, 2)
        return F.cross_entropy(scores, words % classes)  # named

    fit(model, loss)


def channels_by_reshape(planted: bool) -> None:
    """Features of positions go into a convolution over them."""
    torch.manual_seed(0)

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.conv = nn.Embedding(WORDS, WIDTH), nn.Conv1d(WIDTH, 4, 3, padding=1)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            x = self.table(words)
            x = x.reshape(len(x), WIDTH, LENGTH) if planted else x.transpose(1, 2)
            out: torch.Tensor = self.conv(x)  # named
            return out

    model = Tagger()

    def loss() -> torch.Tensor:
        words = torch.randint(WORDS, (8, LENGTH))
        return F.cross_entropy(model(words), words % 4)

    fit(model, loss)


# advantages --------------------------------------------------------------------------------------


class ActorCritic(nn.Module):
    """Scores of actions, and the value of a state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
        self.policy, self.value = nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.body(state)
        return self.policy(x), self.value(x).squeeze(1)


def returns(state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """1 for the right action."""
    return (action == state[:, :3].argmax(1)).float()


def advantage_of_a_policy(planted: bool) -> None:
    """One advantage for both losses."""
    model = ActorCritic()

    def loss() -> torch.Tensor:
        state = torch.randn(16, 6)
        scores, value = model(state)
        policy = torch.distributions.Categorical(logits=scores)
        action = policy.sample()
        advantage = returns(state, action) - value
        weight = advantage if planted else advantage.detach()
        return (-policy.log_prob(action) * weight).mean() + advantage.pow(2).mean()  # named

    fit(model, loss)


def baseline_of_reinforce(planted: bool) -> None:
    """REINFORCE with a learned baseline, and a loss of its own for it."""
    model = ActorCritic()

    def loss() -> torch.Tensor:
        state = torch.randn(16, 6)
        scores, value = model(state)
        logs = scores.log_softmax(1)
        action = logs.exp().multinomial(1)
        gained = returns(state, action.squeeze(1))
        chosen = logs.gather(1, action).squeeze(1)
        baseline = value if planted else value.detach()
        return F.mse_loss(value, gained) - torch.sum((gained - baseline) * chosen) / 16  # named

    fit(model, loss)


def advantage_of_a_ratio(planted: bool) -> None:
    """The ratio of a policy to what it was."""
    model = ActorCritic()

    def loss() -> torch.Tensor:
        state, action = torch.randn(16, 6), torch.randint(3, (16,))
        with torch.no_grad():
            old = model(state)[0].log_softmax(1)[torch.arange(16), action]
        scores, value = model(state)
        ratio = (scores.log_softmax(1)[torch.arange(16), action] - old).exp()
        advantage = returns(state, action) - (value if planted else value.detach())
        surrogate = ratio * advantage  # named
        return 0.5 * F.smooth_l1_loss(value, returns(state, action)) - surrogate.mean()

    fit(model, loss)


# recurrences --------------------------------------------------------------------------------------


def _remembered(step: Callable[[int, torch.Tensor, Any], Any], head: nn.ModuleList) -> None:
    """Learns to repeat the first of eight numbers; `step` returns the state after a position."""
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
    for _ in range(STEPS):
        x, state = torch.randn(16, 8), torch.zeros(16, WIDTH)
        for place in range(8):
            state = step(place, x[:, place, None], state)
        optimizer.zero_grad()
        F.mse_loss(head[-1](state).flatten(), x[:, 0]).backward()
        optimizer.step()


def state_detached_at_each_position(planted: bool) -> None:
    """The last state alone is used; the twin detaches the state it begins with."""
    model = nn.ModuleList([nn.GRUCell(1, WIDTH), nn.Linear(WIDTH, 1)])

    def step(place: int, x: torch.Tensor, state: torch.Tensor) -> Any:
        if planted or place == 0:
            state = state.detach()  # named
        return model[0](x, state)

    _remembered(step, model)


def states_of_layers_detached(planted: bool) -> None:
    """Two layers; a head that reads each state without changing it, in the twin."""
    model = nn.ModuleList([nn.RNNCell(1, WIDTH), nn.RNNCell(WIDTH, WIDTH), nn.Linear(WIDTH, 1)])
    seen = nn.Linear(WIDTH, 1)
    lower = torch.zeros(16, WIDTH)

    def step(place: int, x: torch.Tensor, state: torch.Tensor) -> Any:
        nonlocal lower
        lower = model[0](x, torch.zeros_like(state) if place == 0 else lower)
        if planted:
            lower, state = lower.detach(), state.detach()  # named
        else:
            seen(state.detach())
        return model[1](lower, state)

    _remembered(step, model)


def loss_of_each_position(planted: bool) -> None:
    """Each position predicts the next word; in the twin the word that was chosen is detached."""
    table, cell, head = (
        nn.Embedding(WORDS, WIDTH),
        nn.LSTMCell(WIDTH, WIDTH),
        nn.Linear(WIDTH, WORDS),
    )

    def loss() -> torch.Tensor:
        words = (torch.randint(WORDS, (8, 1)) + torch.arange(LENGTH + 1)) % WORDS
        state = (torch.zeros(8, WIDTH), torch.zeros(8, WIDTH))
        read, errors = table(words[:, 0]), []
        for place in range(LENGTH):
            h, c = cell(read, state)
            scores = head(h)
            errors.append(F.cross_entropy(scores, words[:, place + 1]))
            if planted:
                h, c, read = h.detach(), c.detach(), table(words[:, place + 1])  # named
            else:
                read = scores.softmax(1).detach() @ table.weight
            state = h, c
        return torch.stack(errors).mean()

    fit(nn.ModuleList([table, cell, head]), loss)


def _faults(name: str, kind: str, says: str, *programs: Any) -> tuple[Fault, ...]:
    return tuple(Fault(name, "losses and modes", (kind,), one, says=says) for one in programs)


FAULTS = (
    *_faults(
        "attention to the next tokens",
        "wrong_loss",
        "has no mask",
        fused_attention_without_a_mask,
        attention_by_hand_without_a_mask,
    ),
    Fault(
        "attention to the next tokens",
        "losses and modes",
        ("wrong_loss",),
        layers_without_a_mask,
        words_are_hidden,
        "has no mask",
    ),
    *_faults(
        "positions that view() mixes up",
        "mixed_samples",
        "in their old order",
        heads_split_by_view,
        scores_viewed_for_the_loss,
        channels_by_reshape,
    ),
    *_faults(
        "an advantage that gradients flow through",
        "wrong_loss",
        "through the advantage",
        advantage_of_a_policy,
        baseline_of_reinforce,
        advantage_of_a_ratio,
    ),
    *_faults(
        "a state that is detached at each position",
        "wrong_loss",
        "is detached",
        state_detached_at_each_position,
        states_of_layers_detached,
        loss_of_each_position,
    ),
)
