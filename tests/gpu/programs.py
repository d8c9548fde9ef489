"""Programs that use a GPU: python tests/gpu/programs.py NAME [ARGUMENT]...

Each prints what must be the same without the recorder, or what it measured, as one line of JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

# Before CUDA begins: products of matrices have one result only with a workspace of fixed size.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

DEVICE = torch.device("cuda", 0)
STEPS = 5
MEASURED = 40
WARM_UP = 10
SMALL_OPS = 20_000


def network(width: int = 256, layers: int = 4) -> torch.nn.Module:
    """Returns a small network on the device."""
    parts = [
        part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.GELU())
    ]
    return torch.nn.Sequential(*parts).to(DEVICE)


def bits(tensor: torch.Tensor) -> list[int]:
    """Returns the bits of a float32 tensor as numbers."""
    found: list[int] = tensor.detach().cpu().contiguous().view(torch.int32).flatten().tolist()
    return found


def stepper() -> tuple[Callable[[], torch.Tensor], torch.nn.Module]:
    """Returns what takes one training step and returns its loss, and the network."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))

    def step() -> torch.Tensor:
        loss = model(batch.to(DEVICE)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, model


def training() -> object:
    """Losses and parameters of a training, bit for bit."""
    step, model = stepper()
    losses = [bits(step()) for _ in range(STEPS)]
    return [losses, [sum(bits(one)) for one in model.parameters()]]


def kernels() -> object:
    """Names of the activities on the device in steps 1 to STEPS - 1, as torch.profiler counts."""
    step, _ = stepper()
    bits(step())
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for _ in range(STEPS - 1):
            bits(step())
        torch.cuda.synchronize()
    inner: Any = found.profiler
    events = [e for e in inner.kineto_results.events() if e.device_type() == DeviceType.CUDA]
    return dict(Counter(e.name() for e in events if not e.is_user_annotation()))


def streams() -> object:
    """Two streams: the side one waits for the default one, and is waited for."""
    torch.manual_seed(0)
    side = torch.cuda.Stream()
    found = []
    weight = torch.ones(64, 64, device=DEVICE, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(STEPS):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            half = weight @ weight
        torch.cuda.current_stream().wait_stream(side)
        half.record_stream(torch.cuda.current_stream())
        half.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(bits(weight.sum()))
    torch.cuda.synchronize()
    return found


def graphs() -> object:
    """A CUDA graph, replayed in each step; its capture would fail if anything waited within."""
    torch.manual_seed(0)
    model, still = network(), torch.randn(64, 256, device=DEVICE)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            model(still)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        result = model(still)
    weight = torch.ones(1, device=DEVICE, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    found = []
    for number in range(STEPS):
        still.fill_(number)
        graph.replay()
        (weight * result.sum()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(bits(result.sum()))
    return found


def inference() -> object:
    """Forward passes alone: no step ever ends."""
    torch.manual_seed(0)
    model = network()
    with torch.inference_mode():
        found = [bits(model(torch.ones(4, 256, device=DEVICE)).sum()) for _ in range(STEPS)]
    torch.cuda.synchronize()
    return found


def threads(models: str) -> object:
    """Two threads run backward at once, over one model or over two."""
    torch.manual_seed(0)
    several = [network(1024) for _ in range(int(models))]
    start = threading.Barrier(2)

    def work(model: torch.nn.Module) -> None:
        for _ in range(STEPS):
            loss = model(torch.ones(64, 1024, device=DEVICE)).square().mean()
            start.wait()
            loss.backward()

    both = [threading.Thread(target=work, args=(one,)) for one in (several[0], several[-1])]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    return len(several)


def nccl() -> object:
    """DistributedDataParallel and two collectives on one rank."""
    import torch.distributed as dist

    torch.manual_seed(0)
    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=DEVICE)
    model = torch.nn.parallel.DistributedDataParallel(network(), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.ones(16, 256, device=DEVICE)
    found = []
    for _ in range(STEPS):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        gathered = [torch.empty_like(total)]
        dist.all_gather(gathered, total)
        found.append(bits(gathered[0]))
    dist.destroy_process_group()
    return found


def fingerprints() -> object:
    """The same elements turned round on the host and on the device."""
    found = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8):
        here = torch.arange(1 << 12).remainder(251).to(dtype)
        here.flip(0)
        found[str(dtype)] = here.to(DEVICE).flip(0).sum().item()
    return found


def steps(profiled: str = "") -> object:
    """Median milliseconds of a step on the clock and of its thread's processor time."""
    step, _ = stepper()
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    wall, processor = [], []
    with _profiler(profiled):
        for _ in range(MEASURED):
            began, used = time.perf_counter(), time.thread_time()
            step()
            torch.cuda.synchronize()
            wall.append(time.perf_counter() - began)
            processor.append(time.thread_time() - used)
    return {"wall": 1e3 * statistics.median(wall), "cpu": 1e3 * statistics.median(processor)}


def small_ops(profiled: str = "") -> object:
    """Microseconds of an operator on a small tensor: on the clock, and processor time."""
    small = torch.zeros(8, device=DEVICE)
    for _ in range(1000):
        small.add_(1)
    torch.cuda.synchronize()
    with _profiler(profiled):
        began, used = time.perf_counter(), time.thread_time()
        for _ in range(SMALL_OPS):
            small.add_(1)
        torch.cuda.synchronize()
        wall, processor = time.perf_counter() - began, time.thread_time() - used
    return {"wall": 1e6 * wall / SMALL_OPS, "cpu": 1e6 * processor / SMALL_OPS}


def _profiler(wanted: str) -> AbstractContextManager[Any]:
    if not wanted:
        return nullcontext()
    return profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])


PROGRAMS: dict[str, Callable[..., object]] = {
    one.__name__: one
    for one in (
        training,
        kernels,
        streams,
        graphs,
        inference,
        threads,
        nccl,
        fingerprints,
        steps,
        small_ops,
    )
}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]](*sys.argv[2:])))
