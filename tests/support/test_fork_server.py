"""A forked program is recorded like `python PROGRAM`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lanescope.collector.format import schema
from lanescope.collector.format.loop_names import PROGRAM_FILE, SAMPLED_LINE
from lanescope.collector.format.names import BATCH_STORAGE, OTHER_RANDOM_STATE
from lanescope.webapp.runs.run import open_run
from tests.support import fork_server
from tests.support.processes import TEST_RUN, fork_program, output_of
from tests.support.recording import Recorded, record_program, write_program

TRAINING = """
    import os, threading, torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        def forward(self, x):
            return self.last(torch.relu(self.first(x)))
    torch.manual_seed(0)
    model = Net()
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    lock = threading.Lock()
    def work():
        with lock:
            torch.ones(3).sum()
    for x, y in DataLoader(TensorDataset(torch.randn(16, 8), torch.randn(16, 4)), batch_size=4):
        nn.functional.mse_loss(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        thread = threading.Thread(target=work, name="worker")
        thread.start()
        thread.join()
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()
    raise SystemExit(3)
"""
CHANGING = {
    "time_ns",
    "start_ns",
    "duration_ns",
    "self_ns",
    "end_ns",
    "complete_ns",
    "runnable_ns",
    "pid",
    "native_id",
    "thread",
    "object",
    "peer",
    "storage",
}
"""Columns of times, addresses and numbers of processes."""

BY_CHANCE = {"callback_run", "future_get", "native"}
"""Kinds of events that a future that is done by then does not cause, and the kind of the threads of
gloo's pool: one or several take the calls."""
MEMORY = {"lanescope/rss", "lanescope/recorder_memory"}
BY_START = (SAMPLED_LINE, f"{PROGRAM_FILE}{Path(fork_server.__file__)}:")
DIFFERENT = (BATCH_STORAGE, OTHER_RANDOM_STATE)  # addresses; generators that nothing seeds
"""Series of bytes."""

SLOW, SOAK = pytest.mark.slow, pytest.mark.soak


def content(recorded: Recorded, folder: Path, ranks: int) -> dict[tuple[int, str], Counter[str]]:
    """All rows of a run, without what no two runs of a program have in common."""
    found = {}
    of_ranks = {one["pid"] for one in manifest_of(recorded) if one["role"] == "rank"}
    for rank in range(max(1, ranks)):
        stacks = {row["stack"]: row["frames"] for row in recorded.rows("stack", rank)}
        used: set[object] = {None}
        # Stacks last: events by chance have some of their own, which shift the numbers of others.
        for name in sorted(set(schema.TABLES) - {"stall"}, key="stack".__eq__):  # stall: of a hang
            rows = [r for r in recorded.rows(name, rank) if r.get("kind") not in BY_CHANCE]
            if name == "stack":
                rows = [{"frames": row["frames"]} for row in rows if row["stack"] in used]
            if name == "source":  # a stall names lines of the launcher, samples any other ones
                files = {str(row["file"]) for row in rows}
                rows = [{"file": one} for one in files if one.startswith(str(folder))]
            if name == "value":
                rows = [r for r in rows if not str(r["name"]).startswith(BY_START)]
            # The launcher has some where it rests once its ranks have ended.
            if name == "thread":
                rows = [row for row in rows if row["pid"] in of_ranks]
            if name == "sync":
                every = open_run(recorded.run).events("sync", rank).to_pylist()
                rows = [r for r in every if int(r["thread"].partition("-")[0]) in of_ranks]
                rows = [r for r in rows if r["kind"] not in BY_CHANCE]
            for row in rows:
                used.add(number := row.get("stack"))
                row["stack"] = stacks.get(number)
                series = str(row.get("name"))
                if series in MEMORY or series.startswith(DIFFERENT):
                    row["value"] = None
                if row.get("kind") == "future_set":
                    row["step"] = None  # a thread of gloo sets it, maybe in the next step
            found[rank, name] = Counter(
                json.dumps(
                    {k: v for k, v in row.items() if k not in CHANGING}, default=str
                ).replace(str(folder), "")
                for row in rows
            )
    return found


def manifest_of(recorded: Recorded) -> list[dict[str, Any]]:
    """The processes of a run, as its manifest has them."""
    found: list[dict[str, Any]] = json.loads((recorded.run / "manifest.json").read_text())[
        "processes"
    ]
    return found


def processes(recorded: Recorded) -> list[dict[str, Any]]:
    """What the manifest says of each process."""
    changing = {
        "pid",
        "parent_pid",
        "start_ns",
        "end_ns",
        "argv",
        "clock_identity",
        "wall_minus_monotonic_ns",
    }
    said = [{k: v for k, v in one.items() if k not in changing} for one in manifest_of(recorded)]
    return sorted(said, key=lambda one: int(one["rank"]))


@pytest.mark.parametrize(
    ("observer", "ranks"),
    [
        ("native", 0),
        pytest.param("portable", 0, marks=SOAK),
        pytest.param("native", 2, marks=SLOW),
        pytest.param("portable", 2, marks=SOAK),
    ],
)
@pytest.mark.slow
def test_a_forked_program_is_recorded_like_a_started_one(
    tmp_path: Path, native: Path, observer: str, ranks: int
) -> None:
    runs = []
    for real in (True, False):
        folder = tmp_path / str(real)
        folder.mkdir()
        done = record_program(folder, TRAINING, "--engine", observer, ranks=ranks, real=real)
        assert done.status == (1 if ranks else 3), done.stderr
        runs.append((done, content(done, folder, ranks)))
    (started, rows_of_started), (forked, rows_of_forked) = runs
    assert rows_of_started[0, "op"].total() > 200
    assert rows_of_started[0, "thread"].total() > 1
    for table, rows in rows_of_started.items():
        assert rows_of_forked[table] == rows, table
    names = {row["name"] for row in started.rows("thread")}
    for rank in range(max(1, ranks)):
        for name in map(str, names):
            assert started.op_names(rank, name) == forked.op_names(rank, name)
    assert processes(forked) == processes(started)
    *_, answer = started.stderr.splitlines()
    assert forked.stderr == answer.replace(str(started.run), str(forked.run)) + "\n"


PROGRAM = """
    import atexit, os, signal, sys, threading, time
    how, out = sys.argv[1:]
    atexit.register(print, "exit handler")
    def late():
        threading.main_thread().join()
        print("thread ends")
    threading.Thread(target=late).start()
    print(__name__, __file__ == sys.argv[0], sys.path[0] == os.path.dirname(__file__))
    print(os.getcwd() == out, os.environ["GIVEN"], "torch" in sys.modules)
    if how == "raise":
        raise ValueError("an error")
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "say":
        sys.exit("a sentence")
    if how == "status":
        sys.exit(3)
    sys.stdout.flush()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
"""
SAID = ["__main__ True True", "True value False"]
ENDED = [*SAID, "thread ends", "exit handler"]


@pytest.mark.parametrize(
    ("how", "status", "said", "error"),
    [
        ("raise", 1, ENDED, "ValueError: an error"),
        ("interrupt", -2, ENDED, "KeyboardInterrupt"),
        ("say", 1, ENDED, "a sentence"),
        ("status", 3, ENDED, ""),
        ("kill", -9, SAID, ""),
    ],
)
def test_how_a_forked_program_ends(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    status: int,
    said: list[str],
    error: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    program = write_program(tmp_path, PROGRAM)
    done = fork_program(program, how, str(tmp_path), environment={"GIVEN": "value"})
    assert (done.returncode, done.stdout.splitlines()) == (status, said)
    assert done.stderr.splitlines()[-1:] == [error] * bool(error)
    assert "fork server" not in done.stderr


def test_a_forked_program_has_a_time_limit(tmp_path: Path) -> None:
    program = write_program(tmp_path, PROGRAM)
    with pytest.raises(subprocess.TimeoutExpired) as late:
        fork_program(program, "wait", ".", environment={"GIVEN": ""}, timeout=1)
    assert "__main__" in str(late.value.output)


RANKS = """
    import os, sys, time
    import torch.distributed as dist
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        sys.exit(5)
    time.sleep(60)
"""


def test_ranks_of_a_failed_one_are_ended(tmp_path: Path) -> None:
    done = fork_program(write_program(tmp_path, RANKS), ranks=2, timeout=50)
    assert done.returncode == 1


def test_programs_are_forked_of_one_thread(tmp_path: Path) -> None:
    source = 'import torch, os; print(len(os.listdir("/proc/self/task")), torch.get_num_threads())'
    done = fork_program(write_program(tmp_path, source))
    assert done.stdout.split() == ["1", "1"]


def test_all_processes_of_a_test_run_share_a_server(tmp_path: Path) -> None:
    program = write_program(tmp_path, "import os; print(os.getppid())")
    code = f"""if True:
        from pathlib import Path
        from tests.support.processes import TEST_RUN, fork_program, output_of
        print(fork_program(Path({str(program)!r})).stdout, end="")
    """
    run = {"PYTEST_XDIST_TESTRUNUID": TEST_RUN}
    own = fork_program(program).stdout
    assert output_of(sys.executable, "-c", code, environment=run) == own
