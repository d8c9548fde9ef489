"""Two real ranks under torch.profiler and torch's flight recorder; rank 1 leaves one call out.

torchrun --nproc-per-node=2 profiled.py FOLDER
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

PARAMETERS = 32 * 64 + 64 + 64 * 8 + 8


def train(model: torch.nn.Module, rank: int, profiler: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        loss = model(torch.randn(16, 32)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.detach())
        dist.barrier()
        if rank == 0:
            dist.send(torch.ones(3), 1)
        else:
            dist.recv(torch.ones(3), 0)
        profiler.step()


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
        schedule=schedule(wait=1, warmup=1, active=3),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/rank-{rank}.json"),
    ) as profiler:
        train(model, rank, profiler)
    if rank == 0:
        left_out = dist.all_reduce(torch.ones(2), async_op=True)
    time.sleep(0.5)
    recorder: Any = torch._C._distributed_c10d
    (folder / f"dump_rank{rank}.json").write_bytes(recorder._dump_fr_trace_json())
    (folder / f"dump_rank{rank}").write_bytes(recorder._dump_fr_trace())
    sys.stdout.flush()
    if rank == 0:
        assert left_out is not None
    os._exit(0)  # nothing can wait for the call


if __name__ == "__main__":
    main(Path(sys.argv[1]))
