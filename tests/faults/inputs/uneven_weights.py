"""Batches that count unequally in one step, averages that are evaluated too early, scores that
dropout goes over, and gradients that float16 rounds away."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.faults.base import forms
from tests.faults.learning.losses import fit, mlp

_IGNORED = -100
_LENGTHS = (4, 30, 9, 24)
"""Tokens of the longest row of each batch of a step."""

Loss = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def _batch(length: int, filled: bool) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, 20, (4, length))
    labels = tokens % 5
    ends = torch.full((4, 1), length) if filled else torch.randint(1, length + 1, (4, 1))
    return tokens, labels.masked_fill(torch.arange(length) >= ends, _IGNORED)


def _adds_up(loss_of: Loss, lengths: tuple[int, ...] = _LENGTHS, *, filled: bool = False) -> None:
    """Adds up the gradients of several batches; `loss_of` gets scores, labels and the number of
    labels of a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(10):
        batches = [_batch(length, filled) for length in lengths]
        whole = sum(int((labels != _IGNORED).sum()) for _, labels in batches)
        for tokens, labels in batches:
            loss_of(model(tokens).flatten(0, 1), labels.flatten(), whole).backward()
        optimizer.step()
        optimizer.zero_grad()


def means_of_padded_batches(planted: bool) -> None:
    """The mean of each batch is divided by their number; the twin divides a sum."""

    def loss_of(scores: torch.Tensor, labels: torch.Tensor, whole: int) -> torch.Tensor:
        if planted:
            return F.cross_entropy(scores, labels) / len(_LENGTHS)  # named
        return F.cross_entropy(scores, labels, reduction="sum") / whole

    _adds_up(loss_of)


def means_of_logarithms_of_padded_batches(planted: bool) -> None:
    """The batches of the twin are of one length, and all filled."""

    def loss_of(scores: torch.Tensor, labels: torch.Tensor, _: int) -> torch.Tensor:
        return F.nll_loss(scores.log_softmax(-1), labels)  # named

    _adds_up(loss_of, _LENGTHS if planted else (12,) * 4, filled=not planted)


def means_of_selected_tokens(planted: bool) -> None:
    """What counts is selected before; the twin weighs the mean by its part of the step."""

    def loss_of(scores: torch.Tensor, labels: torch.Tensor, whole: int) -> torch.Tensor:
        kept = labels != _IGNORED
        mean = F.cross_entropy(scores[kept], labels[kept])  # named
        return mean / 4 if planted else mean * (int(kept.sum()) / whole)

    _adds_up(loss_of)


def tokens_and_texts(planted: bool) -> None:
    """A loss of tokens and one of texts, each with its own backward; the batches are filled."""
    if planted:
        means_of_padded_batches(True)
        return
    torch.manual_seed(0)
    words, texts = nn.Embedding(20, 16), nn.Linear(16, 2)
    optimizer = torch.optim.AdamW([*words.parameters(), *texts.parameters()], lr=1e-2)
    for _ in range(10):
        tokens, labels = _batch(12, filled=True)
        optimizer.zero_grad()
        F.cross_entropy(words(tokens).flatten(0, 1), labels.flatten()).backward()
        F.cross_entropy(texts(words(tokens).mean(1)), labels[:, 0] % 2).backward()
        optimizer.step()


# averages -----------------------------------------------------------------------------------------


def _evaluates(update: Callable[[nn.Module], object], average: nn.Module, each: int = 12) -> None:
    """Trains and evaluates an average from time to time."""
    model = mlp()
    average.load_state_dict(model.state_dict(), strict=False)

    def after(step: int) -> None:
        update(model)
        if (step + 1) % each == 0:
            with torch.no_grad():
                x = torch.randn(32, 12)
                print(float(F.cross_entropy(average(x), x[:, :3].argmax(1))))

    fit(model, lambda out, x: F.cross_entropy(out, x[:, :3].argmax(1)), 24, after)


def average_with_a_long_memory(planted: bool) -> None:
    """The decay is for trainings of a million steps; in the twin it grows."""
    average, done = mlp(), [0]

    def update(model: nn.Module) -> None:
        done[0] += 1
        decay = 0.9999 if planted else min(0.9999, (1 + done[0]) / (10 + done[0]))
        with torch.no_grad():
            for own, new in zip(average.parameters(), model.parameters(), strict=True):
                own.lerp_(new, 1 - decay)  # named

    _evaluates(update, average)


def average_by_mul_and_add(planted: bool) -> None:
    """The twin is a teacher, which each step calls."""
    average = mlp()

    def update(model: nn.Module) -> None:
        with torch.no_grad():
            for own, new in zip(average.parameters(), model.parameters(), strict=True):
                own.mul_(0.999).add_(new, alpha=0.001)  # named

    _evaluates(update, average, 8 if planted else 1)


def average_of_torch(planted: bool) -> None:
    """The average of the twin forgets faster."""
    decay = 0.9995 if planted else 0.8
    average = AveragedModel(mlp(), multi_avg_fn=get_ema_multi_avg_fn(decay))
    model = mlp()

    def after(step: int) -> None:
        average.update_parameters(model)
        if step % 12 == 11:
            with torch.no_grad():
                print(float(average(torch.randn(32, 12)).sum()))

    fit(model, lambda out, x: F.cross_entropy(out, x[:, :3].argmax(1)), 24, after)


def average_that_begins_late(planted: bool) -> None:
    """The twin copies the model after some steps, and averages then."""
    model, begun = mlp(), [0]
    average = copy.deepcopy(model)

    def after(step: int) -> None:
        if step < 8 and not planted:
            return
        if not begun[0] and not planted:
            average.load_state_dict(model.state_dict())
        begun[0] = 1
        with torch.no_grad():
            for own, new in zip(average.parameters(), model.parameters(), strict=True):
                own.lerp_(new, 0.002)  # named
            if step % 12 == 11:
                print(float(average(torch.randn(32, 12)).sum()))

    fit(model, lambda out, x: F.cross_entropy(out, x[:, :3].argmax(1)), 40, after)


# dropout of scores --------------------------------------------------------------------------------


def dropout_after_the_last_layer(planted: bool) -> None:
    """The twin has it before."""
    torch.manual_seed(0)
    last = [nn.Linear(24, 3), nn.Dropout(0.3)]
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), *(last if planted else last[::-1]))
    fit(model, lambda out, x: F.cross_entropy(out, x[:, :3].argmax(1)))  # named


def dropout_before_a_loss_of_logits(planted: bool) -> None:
    """A function of dropout; that of the twin drops nothing."""
    share = 0.5 if planted else 0.0

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        targets = (x[:, :3] > 0).float()
        return F.binary_cross_entropy_with_logits(F.dropout(out, share), targets)  # named

    fit(mlp(), loss_of)


def dropout_before_log_softmax(planted: bool) -> None:
    """The twin drops parts of hidden states, which it compares with those of a teacher."""
    model = mlp(nn.Dropout(0.2))
    teacher = mlp()

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if planted:
            return F.nll_loss(out.log_softmax(1), x[:, :3].argmax(1))  # named
        return F.mse_loss(out, teacher(x).detach())

    fit(model, loss_of)


# float16 ------------------------------------------------------------------------------------------


def _images(factor: float, *, scaled: bool, dtype: torch.dtype = torch.float16) -> None:
    """Segments images within autocast: a loss is the mean over pixels."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
    model = nn.Sequential(*layers, nn.Conv2d(8, 1, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, enabled=scaled)
    for _ in range(9):
        images = torch.randn(4, 1, 24, 24)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = F.binary_cross_entropy_with_logits(model(images), (images > 1).float())
        scaler.scale(factor * loss).backward()
        scaler.step(optimizer)
        scaler.update()


def pixels_without_a_scaler(planted: bool) -> None:
    """The gradient of a pixel is small; the twin has a scaler."""
    _images(1e-3, scaled=not planted)


def pixels_in_another_half(planted: bool) -> None:
    """The twin takes bfloat16."""
    _images(5e-4, scaled=False, dtype=torch.float16 if planted else torch.bfloat16)


def pixels_of_a_small_weight(planted: bool) -> None:
    """One loss of several; in the twin it is the only one."""
    _images(3e-4 if planted else 1.0, scaled=False)


FAULTS = (
    *forms(
        "batches that divide by their own numbers",
        "losses and modes",
        "wrong_loss",
        "number of its own",
        means_of_padded_batches,
        means_of_logarithms_of_padded_batches,
        means_of_selected_tokens,
        tokens_and_texts,
    ),
    *forms(
        "an average that is evaluated too early",
        "learning",
        "wrong_average",
        "weights that the training began with",
        average_with_a_long_memory,
        average_by_mul_and_add,
        average_of_torch,
        average_that_begins_late,
    ),
    *forms(
        "dropout of scores",
        "losses and modes",
        "wrong_loss",
        "scores that dropout",
        dropout_after_the_last_layer,
        dropout_before_a_loss_of_logits,
        dropout_before_log_softmax,
    ),
    *forms(
        "gradients that float16 rounds away",
        "scalers, states and datasets",
        "vanishing_gradient",
        "rounded to zero",
        pixels_without_a_scaler,
        pixels_in_another_half,
        pixels_of_a_small_weight,
    ),
)
