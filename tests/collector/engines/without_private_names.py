"""Records a small program without private names of torch and CPython.

    python without_private_names.py FOLDER all|once|each ENGINE ...

`all` takes all of them away at once, `each` one after the other with each engine, and `once` each
with the first engine that looks it up.

Which names those are is what the recorder itself looks up. A name is deleted where the program runs
without it, else only hidden from the recorder: torch needs it. Prints a line of JSON per recording.
The recordings are forks of one process, so torch is imported once.
"""

import asyncio
import collections
import concurrent.futures
import copy
import hashlib
import importlib
import io
import json
import multiprocessing.pool
import multiprocessing.queues
import multiprocessing.synchronize
import os
import queue
import signal
import sys
import threading
import traceback

import numpy as np
import torch
import torch._dynamo  # which the program loads, once for all
import torch.distributed as dist
import torch.profiler
from torch.utils.data import DataLoader, TensorDataset

LIMIT_S = 20
AT_ONCE = 3


def train() -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    losses = []
    for (x,) in DataLoader(TensorDataset(torch.arange(32.0).reshape(8, 4)), batch_size=4):
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    torch.save(copy.deepcopy(model).state_dict(), io.BytesIO())
    return losses


def on_threads() -> list[float]:
    """Backward on two threads, with everything of `threading` that orders them."""
    items, found, barrier = queue.Queue(), [], threading.Barrier(2, action=lambda: None)
    condition, weight = threading.Condition(), torch.nn.Parameter(torch.ones(3))

    def work() -> None:
        (weight * torch.from_numpy(np.arange(3, dtype=np.float32))).sum().backward()
        with condition:
            condition.notify_all()
        items.put(weight.grad.sum().item())
        barrier.wait()

    thread = threading.Thread(target=work)
    thread.start()
    found.append(items.get())
    barrier.wait()
    thread.join()
    with multiprocessing.pool.ThreadPool(1) as pool:
        found += pool.map(float, [1, 2])
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        done, _ = concurrent.futures.wait([executor.submit(float, 3)])
        found += [one.result() for one in done]
    future = torch.futures.Future()
    future.set_result(4.0)
    found += [one.value() for one in torch.futures.collect_all([future]).wait()]
    return found


def reduce() -> list[float]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.arange(4.0)
    dist.all_reduce(tensor, async_op=True).wait()
    dist.destroy_process_group()
    return tensor.tolist()


def program() -> str:
    found = [train(), on_threads(), reduce()]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]


def remove(module: str, name: str) -> None:
    owner = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    delattr(owner, last)


def hide(names: set[tuple[str, str]]) -> None:
    """No lookup of the recorder finds these."""
    from lanescope.collector.recorder import private_names

    find = private_names._find
    private_names._find = lambda *name: None if name in names else find(*name)


def recorded(run: str, engine: str) -> tuple[str, list[str], list[tuple[str, str]]]:
    import lanescope.collector as ls
    from lanescope.collector.recorder import private_names

    ls.start(run, engine=engine, level="numerics", stacks="none", device="off")
    try:
        ls.validator("aten::mm")(lambda event, inputs, outputs: None)
        result = program()
    finally:
        ls.stop()
    names = [(one.module, one.name) for one in private_names.looked_up()]
    return result, list(private_names.missing_names()), names


def begun(do):
    """Start `do` in a fork of this process; what `ended` takes."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        signal.alarm(LIMIT_S)  # some wait for ever without a name
        try:
            with open(writing, "w") as pipe:
                json.dump(do(), pipe)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(writing)
    return child, reading


def ended(child: int, reading: int):
    """Its status, and what it returned."""
    with open(reading) as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, json.loads(text) if text else None


def in_order(several):
    """The same of several: some work while others wait for their alarm."""
    at_work = collections.deque()
    for do in several:
        if len(at_work) == AT_ONCE:
            yield ended(*at_work.popleft())
        at_work.append(begun(do))
    while at_work:
        yield ended(*at_work.popleft())


def apart(do):
    """The same of one."""
    return ended(*begun(do))


def plain_without(name: tuple[str, str]):
    """The program, not recorded, where it may well fail."""

    def do():
        sys.stderr = io.StringIO()
        remove(*name)
        return program()

    return do


def recorded_without(names, hidden: bool, run: str, engine: str):
    def do():
        if hidden:
            hide(set(names))
        else:
            for name in names:
                remove(*name)
        return recorded(run, engine)

    return do


def names_of(engine: str, run: str, expected: str) -> list[tuple[str, str]]:
    """What the recorder looks up with an engine."""
    status, (result, _, names) = apart(lambda: recorded(run, engine))
    assert (status, result) == (0, expected)
    return [(module, name) for module, name in names]


def main() -> None:
    folder, how, *engines = sys.argv[1:]
    torch.set_num_threads(1)
    expected = apart(program)[1]
    names = {engine: names_of(engine, f"{folder}/{engine}", expected) for engine in engines}
    single = list(dict.fromkeys(name for several in names.values() for name in several))
    if how == "all":
        needed = set(single)
        tries = list(names.items())
    else:
        answers = in_order(map(plain_without, single))
        needed = {
            name for name, found in zip(single, answers, strict=True) if found != (0, expected)
        }
        tries = [(engine, [name]) for engine, several in names.items() for name in several]
    if how == "once":
        first = {group[0]: (engine, group) for engine, group in reversed(tries)}
        tries = list(first.values())
    hidden = [group[0] in needed for _, group in tries]
    runs = [f"{folder}/{number}" for number in range(len(tries))]
    ends = in_order(
        recorded_without(group, hides, run, engine)
        for (engine, group), hides, run in zip(tries, hidden, runs, strict=True)
    )
    for (engine, group), hides, run, (status, found) in zip(tries, hidden, runs, ends, strict=True):
        result, missing, _ = found or (None, [], [])
        said = {
            "run": run,
            "engine": engine,
            "names": group,
            "hidden": hides,
            "status": status,
            "expected": expected,
            "result": result,
            "missing": missing,
        }
        print(json.dumps(said), flush=True)


asyncio.new_event_loop().close()
main()
