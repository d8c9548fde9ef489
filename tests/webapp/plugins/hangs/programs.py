"""Programs for 2 to 4 gloo ranks: `torchrun ... programs.py NAME`.

Each is a function named after its fault; those of `clean` have none. A rank that would hang for
ever is ended from outside, or by the time limit of its process group.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LIMIT = timedelta(seconds=3)
"""A process group gives up after this: what hangs ends in an error of its own."""
PATIENCE = timedelta(seconds=60)
"""For ranks that start on a busy machine."""

RANK = int(os.environ["RANK"])


def group(*ranks: int) -> dist.ProcessGroup:
    """A process group that gives up as early as the world does."""
    made = dist.new_group(list(ranks), timeout=PATIENCE)
    if RANK in ranks:
        dist.distributed_c10d._set_pg_timeout(LIMIT, made)
    return made


def steps(count: int, tensor: torch.Tensor | None = None) -> None:
    """Some rounds in which all is well."""
    tensor = torch.ones(64) if tensor is None else tensor
    for _ in range(count):
        dist.all_reduce(tensor)


def missing_rank() -> None:
    """Rank 1 waits for something in a queue and never comes; rank 0 waits for a result."""
    steps(3)
    if RANK == 1:
        queue.Queue[int]().get(timeout=60)  # the line that is looked for
    functional.wait_tensor(functional.all_reduce(torch.ones(64), "sum", dist.group.WORLD))


def missing_rank_killed() -> None:
    """The same, and all ranks are killed while it hangs, as a scheduler does."""
    steps(3)
    dist.distributed_c10d._set_pg_timeout(PATIENCE, dist.group.WORLD)
    killed_after(9.0)
    if RANK == 1:
        queue.Queue[int]().get(timeout=60)  # the line that is looked for
    dist.all_reduce(torch.ones(64))


def killed_at_work() -> None:
    """All ranks are killed while they train."""
    model = DistributedDataParallel(network())
    train(model)
    killed_after(0.5)
    train(model, 10**9)


def killed_after(seconds: float) -> None:
    """End the launcher and all ranks from outside, at once: a thread of a rank would be seen at
    work, and a rank or a launcher that is left for a moment notices that another one is gone."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"pid of rank {RANK}", str(os.getpid()))
    if RANK == 0:
        pids = [store.get(f"pid of rank {rank}").decode() for rank in range(dist.get_world_size())]
        command = f"sleep {seconds}; kill -9 {os.getppid()} {' '.join(pids)}"
        subprocess.Popen(["sh", "-c", command], start_new_session=True)


def different_op() -> None:
    """Rank 1 broadcasts where the others reduce."""
    steps(2)
    tensor = torch.ones(64)
    dist.broadcast(tensor, 0) if RANK == 1 else dist.all_reduce(tensor)
    steps(2)


def different_shape() -> None:
    """Rank 1 has a tensor of another size."""
    steps(2)
    dist.all_reduce(torch.ones(32 if RANK == 1 else 64))


def different_dtype() -> None:
    """Rank 0 is in double precision."""
    steps(2)
    dist.all_reduce(torch.ones(64, dtype=torch.float64 if RANK == 0 else torch.float32))


def different_root() -> None:
    """Each rank takes itself for the root."""
    steps(2)
    dist.broadcast(torch.ones(64), RANK)
    steps(1)


def different_reduction() -> None:
    """Rank 1 asks for the largest, rank 0 for the sum: both get numbers, and go on."""
    steps(2)
    dist.all_reduce(torch.ones(64), dist.ReduceOp.MAX if RANK == 1 else dist.ReduceOp.SUM)
    steps(2)


def different_message() -> None:
    """Rank 0 sends integers, which rank 1 takes for floating-point numbers of the same size."""
    if RANK == 0:
        dist.send(torch.ones(64, dtype=torch.int32), 1)
    else:
        dist.recv(torch.ones(64), 0)


def different_group() -> None:
    """Rank 0 reduces over all ranks, rank 1 over a group of the same ranks."""
    other = group(0, 1)
    steps(2)
    dist.all_reduce(torch.ones(64), group=None if RANK == 0 else other)


def opposite_order() -> None:
    """Two groups, taken in opposite order."""
    first, second = group(0, 1), group(0, 1)
    for one in (first, second):
        dist.all_reduce(torch.ones(64), group=one)
    for one in (first, second) if RANK == 0 else (second, first):
        dist.all_reduce(torch.ones(64), group=one)


def barrier_on_some() -> None:
    """Only rank 0 comes to the barrier; the others go on to the next step."""
    steps(2)
    if RANK == 0:
        dist.barrier()
    steps(2)


def unmatched_recv() -> None:
    """Rank 0 expects two messages, rank 1 sends one."""
    tensor = torch.ones(64)
    for _ in range(2 if RANK == 0 else 1):
        dist.recv(tensor, 1) if RANK == 0 else dist.send(tensor, 0)
    dist.barrier()


def raised() -> None:
    """Rank 1 raises while the others wait for it."""
    steps(3)
    if RANK == 1:
        raise ValueError("bad batch")
    dist.all_reduce(torch.ones(64))


def died() -> None:
    """Rank 1 is killed; rank 0 waits for it, until its connection or the launcher ends it."""
    steps(3)
    if RANK == 1:
        time.sleep(1.5)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(64))


def died_at_work() -> None:
    """Rank 1 is killed, and the launcher ends rank 0 before that comes to the next call."""
    steps(3)
    time.sleep(1.5)
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def stopped() -> None:
    """The job is stopped while it works."""
    work_until(signal.SIGTERM)


def interrupted() -> None:
    """The same by Ctrl-C."""
    work_until(signal.SIGINT)


def work_until(number: signal.Signals) -> None:
    """Work that only the launcher ends, whom rank 1 has stopped by a signal."""
    steps(3)
    time.sleep(1.5)
    if RANK == 1:
        os.kill(os.getppid(), number)
    while True:
        steps(1)
        time.sleep(0.02 * RANK)


def skipped_step() -> None:
    """Rank 1 has no memory for a batch, takes the next one, and so makes a call less."""
    for step in range(5):
        if (RANK, step) != (1, 2):
            steps(1)


def came_too_late() -> None:
    """Rank 1 comes to a barrier when rank 0 has given it up; then both fail."""
    steps(2)
    if RANK == 1:
        time.sleep(LIMIT.total_seconds() + 1.5)
    try:
        dist.barrier()
    finally:
        time.sleep(3 * (RANK == 0))


def subgroup() -> None:
    """Of four ranks in two groups, rank 3 does not come; the other group waits for all."""
    groups = [group(0, 1), group(2, 3)]
    mine = groups[RANK // 2]
    for _ in range(2):
        dist.all_reduce(torch.ones(64), group=mine)
    if RANK == 3:
        time.sleep(60)
    dist.all_reduce(torch.ones(64), group=mine)
    dist.barrier()


class HalfUsed(nn.Module):
    """Two networks; one takes part in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = network(), network()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Of one of them."""
        return self.used(batch)


def unused_parameter() -> None:
    """DDP waits for gradients that never come: its second step ends the job."""
    train(DistributedDataParallel(HalfUsed()))


def straggler() -> None:
    """Rank 1 is slow in every step."""
    model = DistributedDataParallel(nn.Linear(8, 8))
    torch.manual_seed(RANK)  # batches of its own
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        if RANK == 1:
            time.sleep(0.4)
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def slow() -> None:
    """Rank 1 takes long for one step, but it is at work and comes."""
    steps(3)
    if RANK == 1:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            torch.ones(64, 64).sum()
            time.sleep(0.01)
    steps(3)


def train(model: nn.Module, count: int = 8, size: int = 8) -> None:
    """Training steps of any model."""
    torch.manual_seed(RANK)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(count):
        model(torch.randn(4, size)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def network(seed: int = 0) -> nn.Sequential:
    """A model that is the same on all ranks."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def parts_around_the_wrapper() -> None:
    """From step 3 on the module within DDP is called: nothing is synchronised."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(RANK)
    for step in range(6):
        called = model if step < 3 else model.module
        called(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def parts_adapter_left_out() -> None:
    """A parameter that DDP does not know is trained on every rank for itself."""
    inner = network()
    adapter = nn.Linear(8, 8)
    model = DistributedDataParallel(inner)
    train(nn.Sequential(model, adapter))


def parts_unsynchronised_parameter() -> None:
    """DDP is set to ignore a parameter that is trained all the same."""
    inner = network()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, ["2.bias"])
    train(DistributedDataParallel(inner))


def together(folder: str, level: str, *names: str) -> None:
    """Programs in which no rank is left waiting, each into a recording of its own."""
    import lanescope.collector as ls
    from tests.webapp.plugins.hangs import clean

    for name in names:
        program = vars(clean).get(name) or globals()[name]
        with ls.record(os.path.join(folder, name), level=level):
            program()


def main() -> None:
    """Runs the program that is named on the command line, or those behind a folder and a level."""
    name, *others = sys.argv[1:]
    dist.init_process_group("gloo", timeout=PATIENCE)
    if others:
        together(name, *others)
        dist.destroy_process_group()
        return
    dist.distributed_c10d._set_pg_timeout(LIMIT, dist.group.WORLD)
    globals()[name]()


if __name__ == "__main__":
    main()
