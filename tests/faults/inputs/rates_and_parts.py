"""Trainings with rates that grow or come back, optimizers and averages that keep nothing, parts of
a dataset that overlap, and bytes that begin again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR, LinearLR
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split

from tests.faults.base import forms
from tests.faults.learning.optimizer_settings import RATE

_ROWS, _WIDTH = 96, 12


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(_WIDTH, 24), nn.ReLU(), nn.Linear(24, 3))


def _data() -> TensorDataset:
    x = torch.randn(_ROWS, _WIDTH)
    return TensorDataset(x, x[:, :3].argmax(1))


def _epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    then: Callable[[], object] = lambda: None,
) -> None:
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        then()


# rates -------------------------------------------------------------------------------------------


def _warms_up(factor: Callable[[int], float], rate: float = 1e-3) -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    schedule = LambdaLR(optimizer, factor)
    loader = DataLoader(_data(), batch_size=8, shuffle=True)
    for _ in range(3):
        _epoch(model, optimizer, loader, schedule.step)


def warm_up_without_an_end(planted: bool) -> None:
    """Linear, over 10 steps."""
    _warms_up(lambda step: (step + 1) / 10 if planted else min(1.0, (step + 1) / 10))


def warm_up_by_a_root(planted: bool) -> None:
    """Of a schedule that should decay by the root. The twin does so."""

    def factor(step: int) -> float:
        done = (step + 1) / 6
        return float(done**0.5) if planted else min(done, 1 / done**0.5)

    _warms_up(factor)


def warm_up_that_takes_the_larger(planted: bool) -> None:
    """max() in place of min(). The twin looks for a rate, from below the first one."""
    if planted:
        _warms_up(lambda step: max(0.1, step / 8))
    else:
        _warms_up(lambda step: 1.2**step, 1e-5)


def _state(rate: float = 1e-2) -> dict[str, object]:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    _epoch(model, optimizer, DataLoader(_data(), batch_size=16))
    return optimizer.state_dict()


def _goes_on(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    loader = DataLoader(_data(), batch_size=8, shuffle=True)
    for _ in range(2):
        _epoch(model, optimizer, loader)


def rate_of_a_loaded_state(planted: bool) -> None:
    """Fine-tuning with a small rate. The twin sets it again."""
    state, model = _state(), _model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    optimizer.load_state_dict(state)  # named
    if not planted:
        for group in optimizer.param_groups:
            group["lr"] = 1e-4
    _goes_on(optimizer, model)


def rates_of_loaded_groups(planted: bool) -> None:
    """Two groups. The twin is resumed as it was, with a rate that had decayed since."""

    def made(*rates: float) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = _model()
        groups = [
            {"params": one.parameters(), "lr": lr}
            for one, lr in zip((model[0], model[2]), rates, strict=True)
        ]
        return model, torch.optim.AdamW(groups)

    first, optimizer = made(1e-3, 1e-2)
    _epoch(first, optimizer, DataLoader(_data(), batch_size=16))
    model, again = made(1e-4, 1e-3) if planted else made(1e-2, 1e-1)
    again.load_state_dict(optimizer.state_dict())  # named
    _goes_on(again, model)


def rate_of_a_copied_state(planted: bool) -> None:
    """A student begins with the moments of its teacher. The twin's schedule sets each rate."""
    state, model = copy.deepcopy(_state()), _model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer.load_state_dict(state)  # named
    if planted:
        _goes_on(optimizer, model)
        return
    for done in range(12):
        optimizer.param_groups[0]["lr"] = 1e-3 * (1 - done / 12)
        _epoch(model, optimizer, DataLoader(_data(), batch_size=32))


# optimizers of an epoch --------------------------------------------------------------------------


def optimizer_made_within_the_epoch(planted: bool) -> None:
    """In a function that trains an epoch."""
    model, loader = _model(), DataLoader(_data(), batch_size=16, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(5):
        if planted:
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        _epoch(model, optimizer, loader)


def momentum_of_an_epoch(planted: bool) -> None:
    """SGD with momentum. The twin trains a task after the other, each with data of its own."""
    model, one = _model(), _data()
    for _ in range(6):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        _epoch(model, optimizer, DataLoader(one if planted else _data(), batch_size=16))


def optimizer_of_each_fold(planted: bool) -> None:
    """The loader is made again as well. The twin begins each time with the first weights."""
    model, data = _model(), _data()
    first = copy.deepcopy(model.state_dict())
    for _ in range(5):
        if not planted:
            model.load_state_dict(first)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        _epoch(model, optimizer, DataLoader(data, batch_size=24, shuffle=True))


def rate_that_ends_early(planted: bool) -> None:
    """A schedule of steps that steps with each half of a batch, in a short run."""
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = LinearLR(optimizer, 1.0, 0.0, total_iters=24)

    def then() -> None:
        for _ in range(4 if planted else 1):
            schedule.step()

    for _ in range(2):
        _epoch(model, optimizer, DataLoader(_data(), batch_size=8), then)


# averages of 16 bits -----------------------------------------------------------------------------


def _averages(average: nn.Module, model: nn.Module, update: Callable[..., object]) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def then() -> None:
        with torch.no_grad():
            for own, new in zip(average.parameters(), model.parameters(), strict=True):
                update(own, new.to(own.dtype))

    for _ in range(3):
        _epoch(model, optimizer, DataLoader(_data(), batch_size=16), then)


def average_in_bfloat16(planted: bool) -> None:
    """By lerp_()."""
    model = _model()
    average = copy.deepcopy(model).to(torch.bfloat16 if planted else torch.float32)

    def update(own: torch.Tensor, new: torch.Tensor) -> None:
        own.lerp_(new, 0.001)  # named

    _averages(average, model, update)


def average_by_mul_in_bfloat16(planted: bool) -> None:
    """By mul_() and add_(). The twin takes a tenth of the newest."""
    model, average = _model(), _model().bfloat16()
    share = 0.001 if planted else 0.1

    def update(own: torch.Tensor, new: torch.Tensor) -> None:
        own.mul_(1 - share).add_(new, alpha=share)  # named

    _averages(average, model, update)


def average_in_float16(planted: bool) -> None:
    """A slow average in float16. The twin is of float32, the model of float16."""
    model, average = _model(), _model()
    if planted:
        average = average.half()

    def update(own: torch.Tensor, new: torch.Tensor) -> None:
        own.lerp_(new if planted else new.half().to(own.dtype), 1e-4)  # named

    _averages(average, model, update)


# parts of a dataset ------------------------------------------------------------------------------


def _evaluates(train: Dataset[object], *others: Dataset[object]) -> None:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(3):
        _epoch(model, optimizer, DataLoader(train, batch_size=16, shuffle=True))
        with torch.no_grad():
            for one in others:
                for x, y in DataLoader(one, batch_size=16):
                    (model(x).argmax(1) == y).float().mean()


def evaluation_within_the_training(planted: bool) -> None:
    """The first samples of both. The twin measures a part of the training beside others."""
    data, order = _data(), torch.randperm(_ROWS).tolist()
    rest = [] if planted else [Subset(data, order[64:])]
    _evaluates(Subset(data, order[:64]), *rest, Subset(data, order[:32]))


def slices_that_overlap(planted: bool) -> None:
    """The evaluation begins too early. The twin has folds, a model for each of them."""
    data = _data()
    if planted:
        _evaluates(Subset(data, range(72)), Subset(data, range(64, _ROWS)))
    for fold in () if planted else (0, 32, 64):
        held = set(range(fold, fold + 32))
        others = [one for one in range(_ROWS) if one not in held]
        _evaluates(Subset(data, others), Subset(data, sorted(held)))


def split_drawn_twice(planted: bool) -> None:
    """random_split is called for each part. The twin evaluates what it has trained with, whole."""
    data = _data()
    train, rest = random_split(data, [64, 32])
    if planted:
        _, rest = random_split(data, [64, 32])
    else:
        rest = train
    _evaluates(train, rest)


# bytes -------------------------------------------------------------------------------------------


class _Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Pictures of bytes that a transform makes lighter."""

    def __init__(self, transform: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.pictures = torch.randint(256, (_ROWS, 1, 6, 6), dtype=torch.uint8)
        self.transform = transform

    def __len__(self) -> int:
        return _ROWS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.pictures[index]).float() / 255, index % 3


def _sees(transform: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        _epoch(model, optimizer, DataLoader(_Pictures(transform), batch_size=16))


def lighter_bytes(planted: bool) -> None:
    """A number is added to bytes."""

    def transform(picture: torch.Tensor) -> torch.Tensor:
        if planted:
            return picture + 60  # named
        return (picture.int() + 60).clamp(max=255).byte()

    _sees(transform)


def differences_of_bytes(planted: bool) -> None:
    """A picture less another one. The twin counts the bits of a mask: two fit."""

    def transform(picture: torch.Tensor) -> torch.Tensor:
        other = picture.flip(-1)
        if planted:
            return picture - other  # named
        return (picture > 128).byte() + (other > 128).byte()

    _sees(transform)


def contrast_cast_to_bytes(planted: bool) -> None:
    """Contrast in floating point, and a cast. The twin clamps before it."""

    def transform(picture: torch.Tensor) -> torch.Tensor:
        stronger = (picture.float() - 128) * 1.5 + 128
        if not planted:
            stronger = stronger.clamp(0, 255)
        return stronger.to(torch.uint8)  # named

    _sees(transform)


FAULTS = (
    *forms(
        RATE, "optimizer settings", "dead_parameter", "learning rate is 0", rate_that_ends_early
    ),
    *forms(
        "a warm-up without an end",
        "optimizer settings",
        "exploding_gradient",
        "never ends",
        warm_up_without_an_end,
        warm_up_by_a_root,
        warm_up_that_takes_the_larger,
    ),
    *forms(
        "the rate of a loaded state",
        "optimizer settings",
        "exploding_gradient",
        "brings back the learning rate",
        rate_of_a_loaded_state,
        rates_of_loaded_groups,
        rate_of_a_copied_state,
    ),
    *forms(
        "an optimizer made again for each epoch",
        "optimizer settings",
        "dead_parameter",
        "is made for each epoch",
        optimizer_made_within_the_epoch,
        momentum_of_an_epoch,
        optimizer_of_each_fold,
    ),
    *forms(
        "an average that rounding leaves as it was",
        "learning",
        "wrong_average",
        "rounding loses",
        average_in_bfloat16,
        average_by_mul_in_bfloat16,
        average_in_float16,
    ),
    *forms(
        "samples that are trained on and evaluated",
        "learning",
        "repeated_data",
        "that the training learns from",
        evaluation_within_the_training,
        slices_that_overlap,
        split_drawn_twice,
    ),
    *forms(
        "bytes that begin again",
        "inputs, units and losses",
        "wrong_scale",
        "begin again at the other end",
        lighter_bytes,
        differences_of_bytes,
        contrast_cast_to_bytes,
    ),
)
