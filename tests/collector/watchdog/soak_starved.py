"""Healthy programs that get next to no processor time are not ended; `make soak` runs this alone.

It keeps all processors busy for minutes, which other tests would notice.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.recording import BIN, write_program

BUSY_LOOPS = 6

HEALTHY = {
    "imports": """
        import importlib, torch
        torch.ones(2).sum()
        for name in ("pandas", "plotly.graph_objects", "dash", "sympy", "torch._dynamo"):
            importlib.import_module(name)
        torch.ones(2).sum()
    """,
    "computes in Python": """
        import torch
        torch.ones(2).sum()
        sum(i * i for i in range(10_000_000))
        torch.ones(2).sum()
    """,
    "one long operator": """
        import torch
        torch.set_num_threads(1)
        torch.ones(2).sum()
        torch.linalg.svd(torch.rand(700, 700))
        torch.ones(2).sum()
    """,
    "a pool": """
        import concurrent.futures, torch
        def work(n):
            return float(torch.ones(n).sum()) + sum(i for i in range(1_000_000))
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            assert len(list(pool.map(work, range(8)))) == 8
    """,
    "loader workers": """
        import torch
        from torch.utils.data import DataLoader
        class Slow(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, index):
                return torch.ones(1) * sum(i for i in range(2_000_000))
        assert len(list(DataLoader(Slow(), num_workers=2))) == 4
    """,
    "ranks": """
        import os, torch
        import torch.multiprocessing as mp
        import torch.distributed as dist
        def rank(number):
            store = dist.FileStore(os.environ["STORE"], 2)
            dist.init_process_group("gloo", store=store, rank=number, world_size=2)
            if number:
                sum(i for i in range(5_000_000))  # the other waits for it in a collective
            dist.all_reduce(torch.ones(2))
            dist.destroy_process_group()
        if __name__ == "__main__":
            mp.spawn(rank, nprocs=2)
    """,
}


@pytest.fixture
def _busy() -> Iterator[None]:
    loops = [
        subprocess.Popen([sys.executable, "-S", "-c", "while 1: pass"]) for _ in range(BUSY_LOOPS)
    ]
    yield
    for one in loops:
        one.kill()
        one.wait()


@pytest.mark.usefixtures("_busy")
@pytest.mark.parametrize("engine", ["native", "portable"])
def test_starved_programs_are_not_ended(tmp_path: Path, engine: str) -> None:
    options = ("--engine", engine, "--hang-timeout", "1", "--on-hang", "abort")
    started = {}
    for number, (name, source) in enumerate(HEALTHY.items()):
        program = write_program(tmp_path, source, f"program{number}.py")
        record = [f"{BIN}/lanescope", "record", *options, "-o", tmp_path / f"run{number}", "--"]
        started[name] = subprocess.Popen(
            ["nice", "-n", "19", *record, sys.executable, program],
            env={**os.environ, "STORE": str(tmp_path / f"store{number}")},
            stderr=subprocess.PIPE,
            text=True,
        )
    said = {name: process.communicate()[1] for name, process in started.items()}
    assert {name: said[name] for name, one in started.items() if one.returncode} == {}
