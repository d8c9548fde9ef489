"""Programs for gloo ranks in which all is well, with what looks like a fault."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.webapp.plugins.hangs.programs import RANK, network, train


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


def clean_local_sgd() -> None:
    """Parameters are averaged after every fourth step; in between each rank is on its own."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    torch.manual_seed(RANK)
    for step in range(10):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for parameter in model.parameters() if step % 4 == 3 else ():
            dist.all_reduce(parameter.data)
            parameter.data.div_(dist.get_world_size())


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
    """Objects, uneven exchanges, groups by two threads, a work that is never waited for."""
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
