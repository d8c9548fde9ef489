"""DataLoaders whose workers do the same, whose batches come to nothing, or that shuffle targets."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    get_worker_info,
)

from tests.faults.base import Fault, Program
from tests.faults.learning.losses import mlp
from tests.faults.learning.no_targets import update

ROOM = "threads and processes of torch"
SIZE = 8


def train(loader: Any, pick: Callable[[Any], torch.Tensor] = lambda batch: batch) -> None:
    """Trains an auto-encoder for an epoch."""
    torch.manual_seed(0)
    model = nn.Linear(SIZE, SIZE)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in loader:
        x = pick(batch)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()


class Rows(Dataset[torch.Tensor]):
    """Rows with noise that `noise` draws."""

    def __init__(self, noise: Callable[[], Any]) -> None:
        self.noise = noise

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((SIZE,), index / 64) + torch.as_tensor(self.noise()).float()


def numpy_seeded_alike(planted: bool) -> None:
    """worker_init_fn with one seed for all; the twin's differs by worker."""

    def seed(worker: int) -> None:  # named
        np.random.seed(1234 if planted else 1234 + worker)

    train(DataLoader(Rows(lambda: np.random.randn(SIZE)), 8, num_workers=2, worker_init_fn=seed))


def everything_seeded_alike(planted: bool) -> None:
    """A function that seeds all, called in main and in each worker; the twin draws nothing."""

    def seed_all(worker: int = 0) -> None:  # named
        random.seed(7)
        torch.manual_seed(7)

    def noise() -> float:
        return random.gauss(0, 1) if planted else 0.0

    seed_all()
    train(DataLoader(Rows(noise), 8, num_workers=3, worker_init_fn=seed_all))


class Crops(Dataset[torch.Tensor]):
    """Draws from a generator of its own, which each worker has a copy of."""

    def __init__(self, own: bool) -> None:
        self.rng, self.own = np.random.default_rng(0), own

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        start = int(self.rng.integers(8)) if self.own else int(torch.randint(8, ()))
        return torch.arange(start, start + SIZE) * index / 1024


def generator_copied_into_each_worker(planted: bool) -> None:
    """The dataset's generator is made in __init__; the twin draws from torch's."""
    train(DataLoader(Crops(planted), 8, shuffle=True, num_workers=2))


class Stream(IterableDataset[Any]):
    """A stream of samples that each worker should take its share of."""

    def __init__(self, samples: Callable[[], Iterator[Any]], shares: bool) -> None:
        self.samples, self.shares = samples, shares

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        if info is None or not self.shares:
            return self.samples()
        return islice(self.samples(), info.id, None, info.num_workers)


def _numbers() -> Iterator[torch.Tensor]:
    return (torch.full((SIZE,), 0.5 + index / 64) for index in range(64))


def stream_without_shares(planted: bool) -> None:
    """Each worker walks through the whole stream."""
    train(DataLoader(Stream(_numbers, not planted), 8, num_workers=2))


def records_without_shares(planted: bool) -> None:
    """Records are dicts; the twin has one worker."""
    stream = Stream(lambda: ({"x": x, "name": "row"} for x in _numbers()), shares=False)
    loader = DataLoader(stream, 8, num_workers=3 if planted else 1)
    train(loader, lambda batch: batch["x"])


def shuffled_stream_without_shares(planted: bool) -> None:
    """A buffer is shuffled by a fixed seed; the twin's seed differs by worker."""

    def shuffled() -> Iterator[torch.Tensor]:
        info = get_worker_info()
        own = 0 if planted or info is None else info.id
        rows = list(_numbers())
        random.Random(own).shuffle(rows)
        return iter(rows)

    train(DataLoader(Stream(shuffled, shares=False), 8, num_workers=2))


def _faults(
    name: str, says: str, *programs: Program, kind: str = "repeated_data"
) -> tuple[Fault, ...]:
    return tuple(
        Fault(name, ROOM, (kind,), one, says=says, slow=place > 0)
        for place, one in enumerate(programs)
    )


class Augmented(Dataset[Any]):
    """Rows with noise that depends on the epoch; `name` is the attribute that says which."""

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        setattr(self, name, value)

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        epoch = int(getattr(self, self.name))
        return torch.randn(SIZE, generator=torch.Generator().manual_seed(1000 * epoch + index))


def _epochs(dataset: Any, change: Callable[[int], None], *, persistent: bool) -> None:
    """Trains for some epochs; `change` is called before each."""
    loader = DataLoader(dataset, 8, num_workers=1, persistent_workers=persistent, shuffle=True)
    for epoch in range(4):
        change(epoch)
        train(loader)


def epoch_set_on_the_dataset(planted: bool) -> None:
    """The twin starts its workers again in each epoch."""
    data = Augmented("epoch", 0)
    _epochs(data, lambda epoch: setattr(data, "epoch", epoch), persistent=planted)


def strength_that_grows(planted: bool) -> None:
    """A strength of the augmentation grows; the twin holds it in shared memory."""
    shared = torch.zeros(1).share_memory_()
    data = Augmented("strength", 0.0 if planted else shared)

    def change(epoch: int) -> None:
        if planted:
            setattr(data, data.name, float(epoch))
        else:
            shared.fill_(epoch)

    _epochs(data, change, persistent=True)


def stage_of_a_curriculum(planted: bool) -> None:
    """A number of the stage; the twin sets it before the workers start and leaves it."""
    data = Augmented("stage", 1)
    _epochs(
        data,
        lambda epoch: setattr(data, "stage", epoch // 2 + 1 if planted else 1),
        persistent=True,
    )


def _classes(
    x: torch.Tensor,
    y: torch.Tensor,
    loss: Callable[..., torch.Tensor],
    outputs: int,
    **options: Any,
) -> None:
    """Trains a classifier for two epochs."""
    model = nn.Linear(SIZE, outputs)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(2):
        for rows, labels in DataLoader(TensorDataset(x, y), 16, **options):
            optimizer.zero_grad()
            loss(model(rows), labels).backward()
            optimizer.step()


def sorted_by_class(planted: bool) -> None:
    """Folders of two classes, one after the other; the twin shuffles."""
    x, y = torch.randn(320, SIZE), torch.arange(320) // 112
    _classes(x, y, nn.functional.cross_entropy, 2, shuffle=not planted)


def positives_at_the_end(planted: bool) -> None:
    """Two halves for a binary loss; the twin's rows are mixed in the dataset."""
    x, y = torch.randn(320, SIZE), (torch.arange(320) // 112).float()[:, None]
    order = torch.arange(320) if planted else torch.randperm(320)
    _classes(x[order], y[order], nn.functional.binary_cross_entropy_with_logits, 1)


def classes_in_order(planted: bool) -> None:
    """Four classes in their order; the twin evaluates without shuffle and trains with it."""
    x, y = torch.randn(320, SIZE), torch.arange(320) // 80
    if not planted:
        with torch.no_grad():
            for _ in DataLoader(TensorDataset(x, y), 16):
                pass
    _classes(x, y, nn.functional.cross_entropy, 4, shuffle=not planted)


_ROWS = 160


def two_loaders_that_shuffle(planted: bool) -> None:
    """Images and labels in DataLoaders of their own; the twin seeds both alike."""
    model = mlp()
    x = torch.randn(_ROWS, 12)
    y = x[:, :3].argmax(1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def loader(data: Any) -> Any:
        generator = None if planted else torch.Generator().manual_seed(4)
        return DataLoader(data, 32, shuffle=True, generator=generator)

    inputs, labels = loader(x), loader(y)
    for _ in range(3):
        for batch, targets in zip(inputs, labels, strict=True):  # named
            update(optimizer, F.cross_entropy(model(batch), targets))


def two_iterators_of_loaders(planted: bool) -> None:
    """The same with next() and workers; the first DataLoader of the twin has labels, and the second
    none: for its samples the model has to agree with itself."""
    model = mlp(outputs=1)
    x = torch.randn(_ROWS, 12)
    y = x[:, :1].cos()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    data: Any = x if planted else TensorDataset(x, y)
    other = y if planted else torch.randn(_ROWS, 12)
    first = DataLoader(data, 20, shuffle=True, num_workers=1)
    second = DataLoader(other, 20, shuffle=True)
    for _ in range(2):
        some, more = iter(first), iter(second)
        for _ in range(_ROWS // 20):
            batch, target = next(some), next(more)  # named
            if planted:
                loss = F.smooth_l1_loss(model(batch), target)
            else:
                views = model(target), model(target + 0.1 * torch.randn_like(target))
                loss = F.mse_loss(model(batch[0]), batch[1]) + F.mse_loss(*views)
            update(optimizer, loss)


def zipped_and_flattened(planted: bool) -> None:
    """Masks of a segmentation from a DataLoader of their own; the other one of the twin is shorter,
    and only means are compared."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    images = torch.rand(_ROWS, 1, 6, 6)
    masks = (images[:, 0] * 3).long()
    loaders = DataLoader(images, 16, shuffle=True), DataLoader(masks, 16, shuffle=True)
    if not planted:
        loaders = DataLoader(images, 16, shuffle=True), DataLoader(images[:96], 16, shuffle=True)
    for batch, other in zip(*loaders, strict=False):  # named
        if planted:
            loss = F.cross_entropy(model(batch), other)
        else:
            loss = F.mse_loss(model(batch).mean(), other.mean())
        update(optimizer, loss)


class Clips(Dataset[Any]):
    """Sounds that are longer at every so many."""

    def __init__(self, every: int) -> None:
        self.every = every

    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randn(16 if index % self.every else 20), index % 2


def stacked(batch: list[Any]) -> Any:
    """A batch, or None where its samples are of different lengths."""
    try:
        return torch.stack([x for x, _ in batch]), torch.tensor([y for _, y in batch])
    except RuntimeError:
        return None


def _train_on(loader: Any) -> None:
    model = nn.Linear(16, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in loader:
        if batch is not None:
            update(optimizer, F.cross_entropy(model(batch[0]), batch[1]))


def collate_catches_the_error(planted: bool) -> None:
    """Nearly each batch holds a clip that cannot be stacked; the twin's only now and then."""
    _train_on(DataLoader(Clips(5 if planted else 64), 8, shuffle=True, collate_fn=stacked))


def collate_in_workers_catches_it(planted: bool) -> None:
    """The same in a worker."""
    loader = DataLoader(Clips(3 if planted else 100), 8, collate_fn=stacked, num_workers=1)
    _train_on(loader)


class Cuts(Clips):
    """Batches that the dataset makes itself."""

    def __getitem__(self, index: int) -> Any:
        return stacked([super(Cuts, self).__getitem__(index + one) for one in range(4)])


def dataset_makes_none(planted: bool) -> None:
    """batch_size=None, and a dataset that hands out None."""
    _train_on(DataLoader(Cuts(3 if planted else 100), batch_size=None))


FAULTS = (
    *_faults(
        "workers that draw the same numbers",
        "draw the same random numbers",
        numpy_seeded_alike,
        everything_seeded_alike,
        generator_copied_into_each_worker,
    ),
    *_faults(
        "workers that hand out the same samples",
        "hand out the same samples",
        stream_without_shares,
        records_without_shares,
        shuffled_stream_without_shares,
    ),
    *_faults(
        "a dataset that workers have an older copy of",
        "the persistent workers",
        epoch_set_on_the_dataset,
        strength_that_grows,
        stage_of_a_curriculum,
    ),
    *_faults(
        "batches of one class",
        "one class each",
        sorted_by_class,
        positives_at_the_end,
        classes_in_order,
    ),
    *_faults(
        "loaders that shuffle apart",
        "two DataLoaders",
        two_loaders_that_shuffle,
        two_iterators_of_loaders,
        zipped_and_flattened,
        kind="wrong_loss",
    ),
    *_faults(
        "batches that come to nothing",
        "are None",
        collate_catches_the_error,
        collate_in_workers_catches_it,
        dataset_makes_none,
        kind="lost_error",
    ),
)
