"""Threads that draw from torch's default generator, workers that share an open file, and errors of
remote functions that no caller gets."""

from __future__ import annotations

import io
import multiprocessing
import os
import queue
import tempfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.faults.base import Fault, forms
from tests.faults.threads.loader_workers import ROOM, SIZE, train

# torch's default generator -----------------------------------------------------------------------


def _fit(net: nn.Module, batches: Any) -> None:
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for x in batches:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


def noise_of_a_pool(planted: bool) -> None:
    """A pool adds noise to samples in a run with a seed; the twin's has a generator per sample."""
    torch.manual_seed(3)
    together = threading.Barrier(3)  # else one worker may draw for all samples

    def noisy(number: int) -> torch.Tensor:
        together.wait()
        own = None if planted else torch.Generator().manual_seed(number)
        return torch.ones(SIZE) + 0.1 * torch.randn(SIZE, generator=own)

    with ThreadPoolExecutor(3) as pool:
        _fit(nn.Linear(SIZE, 1), (torch.stack([*pool.map(noisy, range(12))]) for _ in range(5)))


def crops_of_two_producers(planted: bool) -> None:
    """Two threads cut pieces of samples; main of the twin draws where, and they cut. Both build a
    layer, whose first values are drawn as well."""
    torch.manual_seed(3)
    pieces: queue.Queue[Any] = queue.Queue(4)
    rows = torch.randn(48, 4 * SIZE)

    def produce(starts: list[int]) -> None:
        nn.Linear(SIZE, SIZE)
        for number, start in enumerate(starts):
            if planted:
                start = int(torch.randint(3 * SIZE, (1,)))
            pieces.put(rows[4 * number :, start : start + SIZE])

    chosen = [torch.randint(3 * SIZE, (10,)).tolist() for _ in range(2)]
    threads = [threading.Thread(target=produce, args=(one,)) for one in chosen]
    for thread in threads:
        thread.start()
    _fit(nn.Linear(SIZE, 1), (pieces.get() for _ in range(20)))
    for thread in threads:
        thread.join()


def members_of_an_ensemble(planted: bool) -> None:
    """Each thread trains a model after it has set the seed, which is that of all threads; the
    twin's have generators of their own."""
    together = threading.Barrier(3)

    def member(seed: int) -> None:
        own = torch.Generator().manual_seed(seed)
        if planted:
            torch.manual_seed(seed)
        together.wait()
        rows = (torch.randn(16, SIZE, generator=None if planted else own) for _ in range(12))
        _fit(nn.Linear(SIZE, 1), rows)

    threads = [threading.Thread(target=member, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def views_that_drop_pixels(planted: bool) -> None:
    """Tasks of a pool drop pixels; the twin's are waited for one by one."""
    torch.manual_seed(3)
    images = torch.ones(8, SIZE)

    def view(number: int) -> torch.Tensor:
        return nn.functional.dropout(images[number], 0.2)

    def batch(pool: ThreadPoolExecutor) -> torch.Tensor:
        if planted:
            return torch.stack([one.result() for one in [pool.submit(view, n) for n in range(8)]])
        return torch.stack([pool.submit(view, number).result() for number in range(8)])

    with ThreadPoolExecutor(3) as pool:
        _fit(nn.Linear(SIZE, 1), (batch(pool) for _ in range(8)))


# files -------------------------------------------------------------------------------------------

_ROWS = 96


class _Rows(Dataset[torch.Tensor]):
    """Rows of a file that is opened at once, or by each worker."""

    def __init__(self, path: Path, early: bool) -> None:
        self.path = path
        self.file: Any = self.opened() if early else None

    def opened(self) -> Any:
        return self.path.open("rb", buffering=0)

    def __len__(self) -> int:
        return _ROWS

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.file is None:
            self.file = self.opened()
        return torch.frombuffer(bytearray(self.read(index)), dtype=torch.float32).clone()

    def read(self, index: int) -> bytes:
        self.file.seek(index * SIZE * 4)
        return bytes(self.file.read(SIZE * 4))


class _Members(_Rows):
    """Rows that are members of an archive."""

    def opened(self) -> Any:
        return zipfile.ZipFile(self.path)

    def read(self, index: int) -> bytes:
        try:
            return bytes(self.file.read(str(index)))
        except zipfile.BadZipFile:
            return torch.randn(SIZE).numpy().tobytes()


class _Pieces(_Rows):
    """Rows that are read at a place, without the offset."""

    def read(self, index: int) -> bytes:
        return os.pread(self.file.fileno(), SIZE * 4, index * SIZE * 4)


def _read(kind: type[_Rows], early: bool, workers: int = 2) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows")
        rows = [torch.randn(SIZE).numpy().tobytes() for _ in range(_ROWS)]
        if issubclass(kind, _Members):
            with zipfile.ZipFile(path, "w") as archive:
                for number, row in enumerate(rows):
                    archive.writestr(str(number), row)
        else:
            path.write_bytes(b"".join(rows))
        train(DataLoader(kind(path, early), 4, num_workers=workers))


def rows_of_one_open_file(planted: bool) -> None:
    """The twin opens the file in each worker."""
    _read(_Rows, planted)


def members_of_one_open_archive(planted: bool) -> None:
    """The same with an archive; the twin has one worker."""
    _read(_Members, early=True, workers=2 if planted else 1)


def rows_sought_in_one_file(planted: bool) -> None:
    """The twin reads at given places."""
    _read(_Rows if planted else _Pieces, early=True)


# remote functions --------------------------------------------------------------------------------


def _add(total: torch.Tensor, part: torch.Tensor) -> float:
    """Fails with a part of another shape."""
    return float((total + part).sum())


def _loaded(text: str) -> torch.Tensor:
    return torch.load(io.BytesIO(text.encode()))


class _Store:
    """Keeps what others push."""

    kept = torch.zeros(4)

    @classmethod
    def push(cls, part: torch.Tensor) -> None:
        cls.kept.copy_(part)


def _serve(work: Any) -> None:
    rank = int(os.environ["RANK"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    if rank == 0:
        net = nn.Linear(4, 4)
        _fit(net, (torch.ones(8, 4) for _ in range(3)))
        work()
    rpc.shutdown()


def sums_that_fail(planted: bool) -> None:
    """The futures are dropped; the twin waits for the first one, and catches its error."""

    def work() -> None:
        for _ in range(3):
            future = rpc.rpc_async("worker1", _add, (torch.ones(4), torch.ones(3)))
            if not planted:
                try:
                    future.wait()
                except RuntimeError:
                    return

    _serve(work)


def pushes_that_fail(planted: bool) -> None:
    """A method, whose shapes fit in the twin."""
    part = torch.ones(3 if planted else 4)
    _serve(lambda: [rpc.rpc_async("worker1", _Store.push, (part,)) for _ in range(4)])


def states_that_are_not_read(planted: bool) -> None:
    """A text in place of a state; the twin looks at the error in a callback."""

    def look(future: Any) -> None:
        try:
            future.value()
        except Exception as error:
            print(error)

    def work() -> None:
        future = rpc.rpc_async("worker1", _loaded, ("none",))
        if not planted:
            future.then(look).wait()

    _serve(work)


# forked processes --------------------------------------------------------------------------------

_FORK = multiprocessing.get_context("fork")


def _act(number: int) -> list[float]:
    _waits["all"].wait()  # else one worker may do all
    if number:
        torch.manual_seed(number)
    return torch.randn(SIZE).tolist()  # named


_waits: dict[str, Any] = {}
"""A barrier of the workers, which begin with it."""


def rollouts_of_a_forked_pool(planted: bool) -> None:
    """Workers of a pool draw noise, from a seed for each task in the twin."""
    torch.set_num_threads(1)
    net, _waits["all"] = nn.Linear(SIZE, 1), _FORK.Barrier(2)
    for epoch in range(2):
        numbers = [0, 0] if planted else [2 * epoch + 1, 2 * epoch + 2]
        with _FORK.Pool(2) as pool:
            rows = pool.map(_act, numbers, chunksize=1)
        _fit(net, [torch.tensor(rows)])


def _sample(number: int, own: bool, samples: Any) -> None:
    generator = torch.Generator().manual_seed(number) if own else None
    policy = nn.Linear(SIZE, SIZE)
    for _ in range(4):
        x = torch.rand(SIZE, generator=generator)  # named
        samples.put(policy(x).detach().numpy())


def noise_of_forked_actors(planted: bool) -> None:
    """Processes sample for a trainer; those of the twin have generators of their own, and draw for
    their layers alone from the common state."""
    torch.set_num_threads(1)
    samples = _FORK.Queue()
    actors = [
        _FORK.Process(target=_sample, args=(number, not planted, samples)) for number in range(2)
    ]
    for one in actors:
        one.start()
    _fit(nn.Linear(SIZE, 1), [torch.from_numpy(samples.get()) for _ in range(8)])
    for one in actors:
        one.join()


def _learn(net: nn.Module) -> None:
    numbers = (torch.randint(0, 9, (4, SIZE)) for _ in range(4))  # named
    _fit(net, (one.float() / 9 for one in numbers))


def learners_of_one_model(planted: bool) -> None:
    """Processes train a shared model with samples that each draws; before each fork of the twin,
    main draws."""
    torch.set_num_threads(1)
    net = nn.Linear(SIZE, 1).share_memory()
    learners = []
    for _ in range(2):
        if not planted:
            torch.rand(1)
        learners.append(_FORK.Process(target=_learn, args=(net,)))
        learners[-1].start()
        learners[-1].join()


FAULTS = (
    *(
        Fault("draws of torch's default generator", ROOM, ("race",), one, says="default random")
        for one in (
            noise_of_a_pool,
            crops_of_two_producers,
            views_that_drop_pixels,
            members_of_an_ensemble,
        )
    ),
    *forms(
        "open files that workers share",
        ROOM,
        "shared_file",
        "share the open file",
        rows_of_one_open_file,
        members_of_one_open_archive,
        rows_sought_in_one_file,
    ),
    *(
        Fault(
            "an error of a remote function that is lost",
            ROOM,
            ("lost_error",),
            one,
            says="no caller waits",
            ranks=2,
            slow=place > 0,
        )
        for place, one in enumerate((sums_that_fail, pushes_that_fail, states_that_are_not_read))
    ),
    *forms(
        "random numbers that forked processes have in common",
        ROOM,
        "repeated_data",
        "forked processes draw the same",
        rollouts_of_a_forked_pool,
        noise_of_forked_actors,
        learners_of_one_model,
    ),
)
