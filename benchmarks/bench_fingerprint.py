"""What reading tensors costs: bytes a second, per operator.

    python benchmarks/bench_fingerprint.py [bandwidth|small]...

Processor time throughout, of one thread; the compared variants take turns in one process. What a
training step costs, `bench_step.py` measures.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.compared.recorders import BARE, Method, readers, small_ops
from lanescope.collector.engines import build
from lanescope.collector.engines.native_library import Library
from lanescope.collector.numerics.host_fingerprint import numbers_of

ROUNDS = 5
SMALL_OPS = 1_000
SIZES = (("64 KiB", 2**16), ("1 MiB", 2**20), ("64 MiB", 2**26))
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8)


def seconds(work: Callable[[], object], least: float = 0.05) -> float:
    """Processor seconds of a call: the quickest of several."""
    found = []
    for _ in range(ROUNDS):
        began, count = time.process_time(), 0
        while time.process_time() - began < least:
            work()
            count += 1
        found.append((time.process_time() - began) / count)
    return min(found)


def bandwidth(folder: Path) -> None:
    """Bytes a second of one core."""
    library = Library(build.ensure())
    into = (ctypes.c_uint64 * 8)()
    print("fingerprint of one tensor, GB/s of one core:")
    print(f"  {'':28}" + "".join(f"{name:>9}" for name, _ in SIZES))

    def row(title: str, work_of: Callable[[int], Callable[[], object]]) -> None:
        rates = (size / seconds(work_of(size)) / 1e9 for _, size in SIZES)
        print(f"  {title:28}" + "".join(f"{rate:9.1f}" for rate in rates))

    def example(dtype: torch.dtype, size: int) -> torch.Tensor:
        count = size // dtype.itemsize
        return torch.arange(count, dtype=torch.float32).remainder_(97).to(dtype)

    for dtype in DTYPES:

        def observer(size: int, dtype: torch.dtype = dtype) -> Callable[[], object]:
            tensor = example(dtype, size)
            return lambda: (tensor, library.fingerprint(tensor._cdata, into))

        row(f"observer, {str(dtype).removeprefix('torch.')}", observer)

    def transposed(size: int) -> Callable[[], object]:
        tensor = example(torch.float32, size).view(-1, 128).t()
        return lambda: (tensor, library.fingerprint(tensor._cdata, into))

    def portable(size: int) -> Callable[[], object]:
        tensor = example(torch.float32, size)
        return lambda: numbers_of(tensor)

    def summed(size: int) -> Callable[[], object]:
        tensor = example(torch.float32, size)
        return tensor.sum

    row("observer, float32 transposed", transposed)
    row("portable, float32", portable)
    row("torch.sum, float32", summed)


def turns(work: Callable[[], object], by_name: dict[str, Method]) -> dict[str, list[float]]:
    """Processor seconds of the work in each round; what comes first in a turn does not count."""
    costs: dict[str, list[float]] = {name: [] for name in by_name}
    for _ in range(ROUNDS):
        for name, method in by_name.items():
            with method():
                work()
                began = time.process_time()
                work()
                costs[name].append(time.process_time() - began)
    return costs


def small(folder: Path) -> None:
    """Cost per small operator."""
    costs = turns(lambda: small_ops(SMALL_OPS), readers(folder))
    bare = min(costs[BARE])
    print(f"torch.add of 16 numbers, {bare / SMALL_OPS * 1e6:.2f} us bare; added, us:")
    for name, found in costs.items():
        if name != BARE:
            print(f"  {name:28}{(min(found) - bare) / SMALL_OPS * 1e6:9.2f}")


PARTS = {"bandwidth": bandwidth, "small": small}


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=" ".join(PARTS))
    chosen = parser.parse_args().parts or list(PARTS)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for part in chosen:
        with tempfile.TemporaryDirectory() as folder:
            PARTS[part](Path(folder))
        print(flush=True)


if __name__ == "__main__":
    main()
