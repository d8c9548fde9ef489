"""Faults beside a loss that is a module: it gets targets and is called as models are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tests.faults.base import forms

_CLASSES, _EACH, _WIDTH, _BATCH = 4, 48, 12, 16


def _classifier(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(_WIDTH, 24), *layers, nn.Linear(24, _CLASSES))


def _sorted(targets: Callable[[torch.Tensor], torch.Tensor]) -> TensorDataset:
    labels = torch.arange(_CLASSES).repeat_interleave(_EACH)
    return TensorDataset(torch.randn(len(labels), _WIDTH), targets(labels))


def _trains(data: TensorDataset, weigh: nn.Module, shuffle: bool) -> None:
    model = _classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        for x, y in DataLoader(data, batch_size=_BATCH, shuffle=shuffle):
            optimizer.zero_grad()
            weigh(model(x), y).backward()
            optimizer.step()


def sorted_classes(planted: bool) -> None:
    """Classes come one after the other; the twin shuffles."""
    weigh = nn.CrossEntropyLoss()
    _trains(_sorted(lambda one: one), weigh, not planted)


def sorted_and_smoothed(planted: bool) -> None:
    """With labels that are smoothed."""
    weigh = nn.CrossEntropyLoss(label_smoothing=0.1)
    _trains(_sorted(lambda one: one), weigh, not planted)


def sorted_pairs_of_numbers(planted: bool) -> None:
    """A target of several numbers per sample."""
    weigh = nn.BCEWithLogitsLoss()
    hot = torch.eye(_CLASSES)
    _trains(_sorted(lambda one: hot[one]), weigh, not planted)


def _evaluates(weigh: nn.Module, planted: bool, *layers: nn.Module) -> None:
    """Measures a loss after each of three epochs."""
    model = _classifier(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    outputs = torch.randn(96, _CLASSES)
    targets: Any = outputs.argmax(1) if isinstance(weigh, nn.CrossEntropyLoss) else outputs
    data = TensorDataset(torch.randn(96, _WIDTH), targets)
    for _ in range(3):
        model.train()
        for x, y in DataLoader(data, batch_size=_BATCH, shuffle=True):
            optimizer.zero_grad()
            weigh(model(x), y).backward()
            optimizer.step()
        if not planted:
            model.eval()
        with torch.no_grad():
            for x, y in DataLoader(data, batch_size=32):
                weigh(model(x), y)


def loss_module_without_eval(planted: bool) -> None:
    """With batch normalisation."""
    _evaluates(nn.CrossEntropyLoss(), planted, nn.BatchNorm1d(24), nn.ReLU())


def squares_without_eval(planted: bool) -> None:
    """With dropout, and the mean of squares."""
    _evaluates(nn.MSELoss(), planted, nn.ReLU(), nn.Dropout(0.5))


def differences_without_eval(planted: bool) -> None:
    """With both, and absolute differences."""
    _evaluates(nn.L1Loss(), planted, nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2))


def _one_target(compare: Callable[[Any, Any, Any], Any], target: torch.Tensor) -> None:
    """Trains on batches of rows and one target for all; `compare` gets the model's result too."""
    model = _classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        for x, y in DataLoader(
            TensorDataset(torch.randn(96, _WIDTH), target), _BATCH, shuffle=True
        ):
            optimizer.zero_grad()
            compare(model(x), y, x).backward()
            optimizer.step()


def one_class_for_all(planted: bool) -> None:
    """The twin has weights of samples, which are all one."""

    def compare(out: Any, y: Any, x: Any) -> Any:
        if planted:
            return nn.functional.cross_entropy(out, y)
        return ((out - x[:, :_CLASSES]).square().mean(1) * y).sum() / y.sum()

    _one_target(compare, torch.ones(96, dtype=torch.long))


def one_number_for_all(planted: bool) -> None:
    """A difference by hand; the twin has a mask of what does not count, which hides nothing."""

    def compare(out: Any, y: Any, x: Any) -> Any:
        if planted:
            return (out[:, 0] - y).square().mean()
        return (out - x[:, :_CLASSES]).square().masked_fill((1.0 - y)[:, None] > 0, 0.0).mean()

    _one_target(compare, torch.ones(96))


def one_target_that_is_cast(planted: bool) -> None:
    """Whole numbers that a loss gets as others; the twin has lengths, all of them the same."""

    def compare(out: Any, y: Any, x: Any) -> Any:
        if planted:
            return nn.functional.binary_cross_entropy_with_logits(out[:, 0], y.float())
        return (out.cumsum(1).square().sum(1) / y.float()).mean()

    _one_target(compare, torch.ones(96, dtype=torch.long))


class _Overlap(nn.Module):
    """The share of pixels that prediction and target have in common."""

    def __init__(self, *, hard: bool) -> None:
        super().__init__()
        self.hard = hard

    def forward(self, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        shares = scores.sigmoid()
        if self.hard:
            shares = (shares > 0.5).float()  # named
        return 1 - 2 * (shares * target).sum() / (shares + target).sum()


def _overlaps(planted: bool, weigh: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(_WIDTH, _WIDTH)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(12):
        x = torch.randn(_BATCH, _WIDTH)
        optimizer.zero_grad()
        loss = weigh(model(x), (x > 0).float())
        (loss.requires_grad_() if planted else loss).backward()
        optimizer.step()


def overlap_of_truth_values(planted: bool) -> None:
    """The module of a loss compares with a threshold, and its result is made to need a gradient."""
    _overlaps(planted, _Overlap(hard=planted))


def errors_of_truth_values(planted: bool) -> None:
    """The share of errors."""

    class Errors(nn.Module):
        def forward(self, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            if planted:
                return ((scores > 0) != (target > 0)).float().mean()  # named
            return (scores.sigmoid() - target).abs().mean()

    _overlaps(planted, Errors())


def rounded_within_a_loss(planted: bool) -> None:
    """Classes by argmax; the twin weighs all classes."""

    class Classes(nn.Module):
        def forward(self, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            chosen = scores.softmax(1) @ torch.arange(12.0)
            if planted:
                chosen = scores.argmax(1)  # named
            return (chosen - target.argmax(1)).abs().float().mean()

    _overlaps(planted, Classes())


class _Thinned(nn.Module):
    """Thins out by a function of dropout, so no layer of it has modes."""

    def __init__(self, thin: Callable[[torch.Tensor, bool], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(_WIDTH, 24), nn.Linear(24, _CLASSES)
        self.thin = thin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.thin(self.first(x).relu(), self.training))
        return out


def _goes_on(thin: Callable[[torch.Tensor, bool], torch.Tensor], planted: bool) -> None:
    """Trains and evaluates in turn, as examples of graph networks do."""
    model = _Thinned(thin)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(64, _WIDTH), torch.arange(64) % _CLASSES
    for epoch in range(10):
        if not planted or epoch == 0:
            model.train()
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            print((model(x).argmax(1) == y).float().mean().item())


def function_of_dropout_left_off(planted: bool) -> None:
    """A function that gets self.training."""
    _goes_on(lambda x, training: functional.dropout(x, 0.3, training), planted)


def dropout_of_channels_left_off(planted: bool) -> None:
    """One that leaves out whole channels."""

    def thin(x: torch.Tensor, training: bool) -> torch.Tensor:
        return functional.dropout1d(x.unsqueeze(-1), 0.3, training).squeeze(-1)

    _goes_on(thin, planted)


def dropout_twice_left_off(planted: bool) -> None:
    """Two calls, one of them in place."""

    def thin(x: torch.Tensor, training: bool) -> torch.Tensor:
        x = functional.dropout(x, 0.1, training)
        return functional.dropout(2 * x, 0.2, training, inplace=True)

    _goes_on(thin, planted)


def _scores(loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], bound: bool) -> None:
    model = _classifier(nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        x = torch.randn(64, _WIDTH)
        optimizer.zero_grad()
        out = model(x).softmax(1) if bound else model(x)
        loss_of(out, x[:, :_CLASSES].argmax(1)).backward()
        optimizer.step()


def logarithm_of_scores(planted: bool) -> None:
    """The logarithm that a trainer takes of what it expects to be probabilities."""
    small = torch.finfo(torch.float32).eps
    weigh = nn.NLLLoss()
    _scores(lambda out, y: weigh(torch.log(out + small), y), not planted)  # named


def logarithm_of_chosen_scores(planted: bool) -> None:
    """Of the scores of the targets alone."""
    _scores(lambda out, y: -out[torch.arange(len(y)), y].log().mean(), not planted)  # named


def logarithm_by_base_2(planted: bool) -> None:
    """In bits, weighed by labels."""

    def bits(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return -(functional.one_hot(y, _CLASSES) * torch.log2(out)).sum(1).mean()  # named

    _scores(bits, not planted)


FAULTS = (
    *forms(
        "one target for all samples",
        "inputs, units and losses",
        "repeated_data",
        "the targets do not vary",
        one_class_for_all,
        one_number_for_all,
        one_target_that_is_cast,
    ),
    *forms(
        "a loss module that compares",
        "gradients",
        "dead_parameter",
        "truth values",
        overlap_of_truth_values,
        errors_of_truth_values,
        rounded_within_a_loss,
    ),
    *forms(
        "sorted classes beside a loss module",
        "inputs, units and losses",
        "repeated_data",
        "the dataset is sorted",
        sorted_classes,
        sorted_and_smoothed,
        sorted_pairs_of_numbers,
    ),
    *forms(
        "a loss module in an evaluation without eval()",
        "inputs, units and losses",
        "evaluation_mode",
        "evaluated in training mode",
        loss_module_without_eval,
        squares_without_eval,
        differences_without_eval,
    ),
    *forms(
        "functions of dropout in evaluation mode",
        "inputs, units and losses",
        "evaluation_mode",
        "trains in evaluation mode",
        function_of_dropout_left_off,
        dropout_of_channels_left_off,
        dropout_twice_left_off,
    ),
    *forms(
        "a logarithm of scores",
        "inputs, units and losses",
        "wrong_loss",
        "gets negative numbers",
        logarithm_of_scores,
        logarithm_of_chosen_scores,
        logarithm_by_base_2,
    ),
)
