"""Programs for 2 to 4 gloo ranks: `torchrun ... programs.py NAME`.

Each is a function named after its fault; `clean_*` have none. A rank that would hang for ever is
ended from outside, or by the time limit of its process group.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist
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
    """Rank 1 waits for something in a queue and never comes."""
    steps(3)
    if RANK == 1:
        queue.Queue[int]().get(timeout=60)  # the line that is looked for
    dist.all_reduce(torch.ones(64))


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
    """End this process from outside: a thread of its own would be seen at work."""
    command = f"sleep {seconds}; kill -9 {os.getpid()}"
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


def straggler() -> None:
    """Rank 1 is slow in every step."""
    model = DistributedDataParallel(nn.Linear(8, 8))
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
    """DDP was told to ignore a parameter that is trained all the same."""
    inner = network()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, ["2.bias"])
    train(DistributedDataParallel(inner))


def clean_ddp() -> None:
    """Data parallel training."""
    train(DistributedDataParallel(network()))


def clean_no_sync() -> None:
    """Gradients are accumulated over four batches without synchronisation."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(RANK)
    for _ in range(6):
        with model.no_sync():
            for _ in range(3):
                model(torch.randn(4, 8)).sum().backward()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def clean_join() -> None:
    """Rank 1 has twice the batches of rank 0."""
    from torch.distributed.algorithms.join import Join

    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(RANK)
    with Join([model]):
        for _ in range(5 * (RANK + 1)):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def clean_fsdp() -> None:
    """Fully sharded parameters."""
    from torch.distributed.fsdp import fully_shard

    model = network()
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    train(model)


def clean_tensor_parallel() -> None:
    """Columns and rows of two layers on different ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(0)
    for _ in range(8):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def clean_different_models() -> None:
    """An actor and a learner: no two ranks train the same."""
    train(network(RANK))
    dist.barrier()


def clean_pipeline() -> None:
    """Two stages that hand tensors on."""
    torch.manual_seed(0)
    stage = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    for _ in range(6):
        buffer = torch.zeros(4, 8)
        if RANK == 0:
            out = stage(torch.randn(4, 8))
            dist.send(out.detach(), 1)
            dist.recv(buffer, 1)
            out.backward(buffer)
        else:
            dist.recv(buffer, 0)
            buffer.requires_grad_()
            stage(buffer).sum().backward()
            dist.send(buffer.grad, 0)
        optimizer.step()
        optimizer.zero_grad()


def clean_mixed() -> None:
    """Objects, uneven exchanges, groups by two threads, a work that nobody waits for."""
    ranks = dist.get_world_size()
    dist.all_gather_object([None] * ranks, "x" * 10 * RANK)
    sent, got = [1 + RANK] * ranks, [1 + rank for rank in range(ranks)]
    dist.all_to_all_single(torch.empty(sum(got)), torch.ones(sum(sent)), got, sent)

    def reduces(over: dist.ProcessGroup) -> None:
        for _ in range(10):
            dist.all_reduce(torch.ones(32), group=over)

    groups = [dist.new_group() for _ in range(2)]
    with ThreadPoolExecutor(3) as pool:
        pool.submit(dist.all_reduce(torch.ones(64), async_op=True).wait)
        list(pool.map(reduces, groups))
    dist.all_reduce(torch.ones(64), async_op=True)
    time.sleep(0 if RANK else 1.2)  # as for a checkpoint
    dist.barrier()


def together(folder: str, level: str, *names: str) -> None:
    """Programs in which no rank is left waiting, each into a recording of its own."""
    import lanescope.collector as ls

    for name in names:
        with ls.record(os.path.join(folder, name), level=level):
            globals()[name]()


def main() -> None:
    """Runs the program that is named on the command line."""
    name, *arguments = sys.argv[1:]
    dist.init_process_group("gloo", timeout=PATIENCE)
    if name == "together":
        together(*arguments)
        dist.destroy_process_group()
        return
    dist.distributed_c10d._set_pg_timeout(LIMIT, dist.group.WORLD)
    globals()[name]()


if __name__ == "__main__":
    main()
