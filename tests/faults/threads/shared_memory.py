"""Memory that processes share, that a collective fills, that is written before backward, or that
modules should share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from tests.faults.base import Fault
from tests.faults.ranks.one_model import STEPS, begin, net, rank_faults

ROUNDS = 40


def two(context: Any, target: Any, *arguments: Any) -> None:
    """Runs a function in two processes, with the number of each and the rounds of both."""
    rounds = context.RawArray("i", 2)
    processes = [
        context.Process(target=target, args=(number, rounds, *arguments)) for number in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def together(number: int, rounds: Any) -> Iterator[None]:
    """Rounds of one of two processes, until both have made ROUNDS: so they run side by side."""
    while min(rounds) < ROUNDS:
        yield
        time.sleep(0.001)  # on a single processor the other one goes on
        rounds[number] += 1


def _train(number: int, rounds: Any, model: nn.Module, lock: Any) -> None:
    torch.manual_seed(number)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in together(number, rounds):
        x = torch.randn(16, 8)
        with lock or nullcontext():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


def hogwild_in_processes(planted: bool) -> None:
    """Two processes train one model in shared memory; the twin holds a lock for each step."""
    torch.set_num_threads(1)
    model, context = nn.Linear(8, 4), mp.get_context("fork")
    model.share_memory()
    two(context, _train, model, None if planted else context.Lock())


def _count(number: int, rounds: Any, total: torch.Tensor, own: bool) -> None:
    part = total[number] if own else total
    for _ in together(number, rounds):
        part.add_(1)  # named


def histogram_of_all_processes(planted: bool) -> None:
    """Processes count into one table; the twin gives each a row of its own."""
    torch.set_num_threads(1)
    two(mp.get_context("fork"), _count, torch.zeros(2, 64).share_memory_(), not planted)


class Cached(Dataset[Any]):
    """Samples that are kept in a shared table, and how often each was asked for."""

    def __init__(self, counts: bool) -> None:
        self.table, self.hits = torch.zeros(96, 4).share_memory_(), torch.zeros(1).share_memory_()
        self.counts = counts

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> torch.Tensor:
        for _ in range(5):
            row = torch.randn(4000).sort().values[:4]
        self.table[index].copy_(row)
        if self.counts:
            self.hits.add_(1)
        return row


def workers_count_hits(planted: bool) -> None:
    """Data-loading workers fill rows of a shared cache, and add to one shared counter."""
    for batch in DataLoader(Cached(planted), 8, num_workers=2):
        batch.sum()


def _follow(number: int, rounds: Any, shared: nn.Module, own: bool) -> None:
    model = nn.Linear(8, 4)
    for name, one in shared.named_parameters():
        setattr(model, name, nn.Parameter(one.detach(), requires_grad=False))
    for _ in together(number, rounds):
        if own and number == 0:
            shared.weight.data.mul_(0.9)  # named
        torch._foreach_copy_(list(model.parameters()), [one.data for one in shared.parameters()])


def followers_of_shared_weights(planted: bool) -> None:
    """Two processes load shared weights into models that have this very memory, which changes
    nothing; with the fault one of them also trains them."""
    torch.set_num_threads(1)
    model = nn.Linear(8, 4).requires_grad_(False)
    model.share_memory()
    two(mp.get_context("fork"), _follow, model, planted)


def _scale(number: int, rounds: Any, table: torch.Tensor, writes: bool) -> None:
    for _ in together(number, rounds):
        if writes or number == 0:
            table.mul_(0.99)
        else:
            table.mean()


def monitor_that_normalises(planted: bool) -> None:
    """One process writes a table and another looks at it; with the fault the other writes too."""
    torch.set_num_threads(1)
    two(mp.get_context("fork"), _scale, torch.ones(64).share_memory_(), planted)


def _answer(table: torch.Tensor, pipe: Any) -> None:
    for _ in range(ROUNDS):
        pipe.recv()
        table.add_(1)
        pipe.send(1)


def turns_by_a_pipe(planted: bool) -> None:
    """Two processes take turns by a pipe; with the fault one does not wait for its turn."""
    torch.set_num_threads(1)
    table, context = torch.zeros(64).share_memory_(), mp.get_context("fork")
    mine, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(table, theirs))
    process.start()
    for _ in range(ROUNDS):
        if planted:
            mine.send(1)
        table.add_(1)
        if not planted:
            mine.send(1)
        mine.recv()
    process.join()


def _trained(loss_of: Callable[[nn.Parameter, torch.Tensor], torch.Tensor]) -> None:
    """Trains a matrix."""
    torch.manual_seed(0)
    matrix = nn.Parameter(torch.randn(8, 8) * 0.3)
    optimizer = torch.optim.SGD([matrix], lr=0.05)
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(matrix, torch.randn(4, 8)).backward()
        optimizer.step()


def clamped_by_its_data(planted: bool) -> None:
    """`.data` of an activation, which tanh has saved; the twin clamps before tanh."""

    def loss_of(matrix: nn.Parameter, x: torch.Tensor) -> torch.Tensor:
        found = x @ matrix
        if not planted:
            found.data.clamp_(-1, 1)
        found = found.tanh()
        if planted:
            found.data.clamp_(-0.5, 0.5)  # named
        return found.sum()

    _trained(loss_of)


def weights_scaled_by_their_data(planted: bool) -> None:
    """The norm of a weight is kept by its `.data`, between forward and backward; the twin does so
    before the forward."""

    def loss_of(matrix: nn.Parameter, x: torch.Tensor) -> torch.Tensor:
        if not planted:
            matrix.data.mul_(0.99)
        x.requires_grad_()
        loss = (x @ matrix).square().sum()
        if planted:
            matrix.data.mul_(0.99)  # named
        return loss

    _trained(loss_of)


class _Scaled(torch.autograd.Function):
    """Keeps a factor as an attribute of its context."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.factor, None


def factor_changed_on_the_context(planted: bool) -> None:
    """A schedule changes the factor in place before backward; the twin makes a new one."""
    factor = torch.ones(8)

    def loss_of(matrix: nn.Parameter, x: torch.Tensor) -> torch.Tensor:
        nonlocal factor
        loss: torch.Tensor = _Scaled.apply(x @ matrix, factor).square().sum()
        if planted:
            factor.mul_(0.9)  # named
        else:
            factor = factor * 0.9
        return loss

    _trained(loss_of)


class Tied(nn.Module):
    """Words in, words out, by one table."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(32, 16), inner
        self.out = nn.Linear(16, 32, bias=False)
        self.tie()

    def tie(self) -> None:
        """Gives both ends one parameter."""
        self.out.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner(self.table(tokens)))


def _spoken(model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(10):
        tokens = torch.randint(32, (4, 9))
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def tie_broken_by_a_state(planted: bool) -> None:
    """A copied state is assigned, entry by entry; the twin ties again."""
    state = {name: one.clone() for name, one in Tied(nn.Linear(16, 16)).state_dict().items()}
    with torch.device("meta"):
        model = Tied(nn.Linear(16, 16))
    model.load_state_dict(state, assign=True)  # named
    if not planted:
        model.tie()
    _spoken(model)


def tie_broken_by_new_memory(planted: bool) -> None:
    """Memory for a model that was built without any; the twin ties again."""
    with torch.device("meta"):
        model = Tied(nn.Sequential(nn.Linear(16, 16), nn.GELU()))
    model.to_empty(device="cpu")
    for one in model.parameters():
        nn.init.normal_(one, std=0.1)
    if not planted:
        model.tie()
    _spoken(model)


def tie_broken_within_a_wrapper(planted: bool) -> None:
    """The state of a wrapped model is assigned; the twin's entries are one tensor, and copied."""
    model = nn.ModuleDict({"model": Tied(nn.Identity())})
    state = {name: one.clone() for name, one in model.state_dict().items()}
    model.load_state_dict(state, assign=planted)
    _spoken(model["model"])


# tensors that are used while they are gathered or scattered ---------------------------------------


def shards_used_while_they_are_gathered(planted: bool) -> None:
    """A weight is put together of shards and used at once; the twin makes its input meanwhile."""
    rank = begin()
    torch.manual_seed(rank)
    shard = torch.randn(512, 256)
    for _ in range(STEPS):
        whole = torch.empty(1024, 256)
        work = dist.all_gather_into_tensor(whole, shard, async_op=True)
        assert work is not None
        if planted:
            torch.randn(8, 256).mm(whole.t())  # named
            work.wait()
        else:
            x = torch.randn(8, 256)
            work.wait()
            x.mm(whole.t())


def gradient_cleared_while_it_is_scattered(planted: bool) -> None:
    """Gradients are reduced and scattered, and cleared for the next step; the twin reads them."""
    begin()
    gradient, part = torch.zeros(1 << 17), torch.empty(1 << 16)
    for _ in range(STEPS):
        gradient.add_(torch.randn(1 << 17))
        work = dist.reduce_scatter_tensor(part, gradient, async_op=True)
        assert work is not None
        if planted:
            gradient.zero_()  # named
        else:
            gradient.norm()
        work.wait()
        part.norm()
        gradient.zero_()


def weights_read_while_they_are_broadcast(planted: bool) -> None:
    """Weights come from the first rank; the twin waits for all of them before it uses one."""
    model = net(begin())
    x = torch.randn(8, 8)
    for _ in range(STEPS):
        works = [dist.broadcast(one.data, 0, async_op=True) for one in model.parameters()]
        if planted:
            model.head.weight.add(1).sum()  # named
        for work in works:
            assert work is not None
            work.wait()
        model(x)


FAULTS = (
    tuple(
        Fault(
            "writes that autograd does not see",
            "threads and processes of torch",
            ("inplace_modification",),
            form,
            says="autograd does not see it",
            slow=place > 0,
        )
        for place, form in enumerate(
            (clamped_by_its_data, weights_scaled_by_their_data, factor_changed_on_the_context)
        )
    )
    + tuple(
        Fault(
            "a tie that is broken",
            "memory and checkpoints",
            ("shared_parameter",),
            form,
            says="were one parameter until",
            slow=place > 0,
        )
        for place, form in enumerate(
            (tie_broken_by_a_state, tie_broken_by_new_memory, tie_broken_within_a_wrapper)
        )
    )
    + tuple(
        Fault(
            "processes that write to the same shared memory",
            "threads and processes of torch",
            ("race",),
            form,
            says="Data race between processes",
            slow=True,
        )
        for form in (
            hogwild_in_processes,
            histogram_of_all_processes,
            workers_count_hits,
            monitor_that_normalises,
            turns_by_a_pipe,
            followers_of_shared_weights,
        )
    )
    + rank_faults(
        "tensors used before they are gathered or scattered",
        "race",
        "before that has ended",
        shards_used_while_they_are_gathered,
        gradient_cleared_while_it_is_scattered,
        weights_read_while_they_are_broadcast,
    )
)
