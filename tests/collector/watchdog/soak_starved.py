"""Programs that get a few percent of a core: healthy ones are not ended, deadlocked ones are.

`make soak` runs this alone: it keeps all processors busy for a minute or two, which other tests
would notice.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanescope.collector.format.options import Options
from lanescope.collector.session import launch
from tests.support.recording import write_program

BUSY_LOOPS = 3 * (os.cpu_count() or 2)
LIMIT_S = 300
"""Of a program that neither ends nor is ended."""

STARVED = """
import os, torch
torch.ones(2).sum()
# Every thread, the recorder's as well: imports of torch alone would take minutes like this. All
# programs together get a fifth of the processors, and each is silent for many timeouts.
for task in os.listdir("/proc/self/task"):
    os.setpriority(os.PRIO_PROCESS, int(task), 10)
"""

HEALTHY = {
    "imports": """
        import importlib
        for name in ("pandas", "sympy"):
            importlib.import_module(name)
        torch.ones(2).sum()
    """,
    "computes in Python": """
        sum(i * i for i in range(4_000_000))
        torch.ones(2).sum()
    """,
    "one long operator": """
        torch.set_num_threads(1)
        torch.linalg.svd(torch.rand(500, 500))
        torch.ones(2).sum()
    """,
    "a pool": """
        import concurrent.futures
        def work(n):
            return float(torch.ones(n).sum()) + sum(i for i in range(800_000))
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            assert len(list(pool.map(work, range(8)))) == 8
    """,
    "loader workers": """
        from torch.utils.data import DataLoader
        class Slow(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, index):
                return torch.ones(1) * sum(i for i in range(1_500_000))
        assert len(list(DataLoader(Slow(), num_workers=2))) == 4
    """,
    "ranks": """
        import torch.distributed as dist
        store = os.path.join(os.path.dirname(__file__), "store")
        number = 1 if os.fork() == 0 else 0
        store = dist.FileStore(store, 2)
        dist.init_process_group("gloo", store=store, rank=number, world_size=2)
        if number:
            sum(i for i in range(4_000_000))  # the other waits for it in a collective
        dist.all_reduce(torch.ones(2))
        dist.destroy_process_group()
        if not number:
            assert os.wait()[1] == 0
    """,
}

DEADLOCK = """
    import threading
    lock, held = threading.Lock(), threading.Lock()
    def other():
        with held:
            lock.acquire()
    with lock:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
"""


@pytest.fixture
def _busy() -> Iterator[None]:
    loops = [
        subprocess.Popen([sys.executable, "-S", "-c", "while 1: pass"]) for _ in range(BUSY_LOOPS)
    ]
    yield
    for one in loops:
        one.kill()
        one.wait()


def _start(folder: Path, source: str, options: Options) -> subprocess.Popen[str]:
    folder.mkdir()
    program = write_program(folder, source)
    program.write_text(STARVED + program.read_text())
    command = [sys.executable, str(program)]
    launch.prepare_run(folder / "run", options, command)
    return subprocess.Popen(
        command,
        env=launch.environment_for(folder / "run", options) | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.usefixtures("_busy")
@pytest.mark.parametrize("engine", ["native", "portable"])
def test_of_starved_programs_only_the_deadlocked_one_is_ended(tmp_path: Path, engine: str) -> None:
    options = launch.with_engine(
        Options(engine=engine, hang_timeout_ns=1_000_000_000, on_hang="abort")
    )
    started = {
        name: _start(tmp_path / name, source, options)
        for name, source in {**HEALTHY, "deadlock": DEADLOCK}.items()
    }
    try:
        said = {name: process.communicate(timeout=LIMIT_S)[1] for name, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
    assert {name: said[name] for name in HEALTHY if started[name].returncode} == {}
    assert started["deadlock"].returncode == 1
    assert "; it cannot go on, and ends now" in said["deadlock"]
    # It was tried: more programs than that one were silent for longer than the timeout.
    assert sum("; not ended: it may still go on" in said[name] for name in HEALTHY) > 1
