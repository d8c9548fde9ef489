"""What the recorder is compared with: each is a context in which the same work runs."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._debug_mode import DebugMode
from torch.utils._python_dispatch import TorchDispatchMode

import lanescope.collector as ls
from lanescope.collector.format.options import SUPERVISOR_VARIABLE

Method = Callable[[], AbstractContextManager[Any]]

BARE = "bare"


class PassOn(TorchDispatchMode):
    """The least that a mode can do: call what was called."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def recorded(folder: Path, level: str, engine: str) -> Method:
    """Records into a new folder each time; nothing is compacted, that is measured apart."""
    os.environ[SUPERVISOR_VARIABLE] = str(os.getpid())
    number = itertools.count()
    return lambda: ls.record(
        folder / f"{level}-{engine}-{next(number)}", level=level, engine=engine
    )


def profiled(**settings: bool) -> Method:
    """torch.profiler on the processor, its events collected as it does on its own."""
    return lambda: profile(activities=[ProfilerActivity.CPU], **settings)


def viztracer(folder: Path) -> Method:
    """VizTracer with its defaults, which see Python and C functions; ends by writing its file."""
    from viztracer import VizTracer

    return lambda: VizTracer(verbose=0, output_file=str(folder / "viztracer.json"))


def methods(folder: Path) -> dict[str, Method]:
    """All that are compared, by the name they are printed under."""
    found: dict[str, Method] = {BARE: nullcontext}
    for level in ("timing", "access", "numerics"):
        found[f"native, {level}"] = recorded(folder, level, "native")
    for level in ("timing", "access"):
        found[f"portable, {level}"] = recorded(folder, level, "portable")
    found["TorchDispatchMode, bare"] = PassOn
    found["torch.profiler"] = profiled()
    found["torch.profiler, shapes"] = profiled(record_shapes=True)
    found["torch DebugMode"] = DebugMode
    if importlib.util.find_spec("viztracer"):
        found["VizTracer"] = viztracer(folder)
    return found


class Naive(TorchDispatchMode):
    """Statistics of every result by torch, a pickle of all of them per operator."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.file = (folder / "naive.pickle").open("wb")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point() and result.numel():
            of = result.detach()
            numbers = [
                of.mean(),
                of.norm(),
                of.min(),
                of.max(),
                of.isnan().sum(),
                of.isinf().sum(),
                (of == 0).sum(),
            ]
            pickle.dump((str(func), [x.item() for x in numbers]), self.file)
            self.file.flush()
        return result


@contextmanager
def hashed() -> Iterator[None]:
    """torch's own mode with the hash of every result."""
    with DebugMode(), DebugMode.log_tensor_hashes():
        yield


def readers(folder: Path) -> dict[str, Method]:
    """Those that read the tensors of every operator, and the recorder that does not."""
    return {
        BARE: nullcontext,
        "native, access": recorded(folder, "access", "native"),
        "native, numerics": recorded(folder, "numerics", "native"),
        "portable, numerics": recorded(folder, "numerics", "portable"),
        "torch DebugMode, hashes": hashed,
        "naive statistics": lambda: Naive(folder),
    }


def small_ops(count: int) -> None:
    """Additions of sixteen numbers: as small as an operator gets."""
    a = torch.ones(16)
    for _ in range(count):
        torch.add(a, a)
