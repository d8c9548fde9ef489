"""Processes that die: what had completed is there, nothing is torn, the run opens."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pytest

from lanescope.collector.compaction.compact import compact
from lanescope.webapp import open_run
from tests.support.processes import fork_program, started
from tests.support.recording import BIN, SLOW_ON_PORTABLE, write_program

TRIALS = int(os.environ.get("LANESCOPE_KILLS", "30"))
"""Kills per engine; `make soak` makes it 500."""

# Children are forked from one process that has loaded torch, so that a trial takes milliseconds.
# Each stores, after an operator returned, how many did: by then its record must be safe.
KILLED = """
    import mmap, os, random, signal, sys, threading, time, torch
    trials, out = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    random.seed(5)
    tensor = torch.ones(4)
    done = []

    def work(counts, position, operator):
        count = 0
        while True:
            operator(tensor)
            count += 1
            counts[position] = count

    for trial in range(trials):
        # One store each: struct.pack_into would write zeros first, and a kill might come between.
        counts = memoryview(mmap.mmap(-1, 16)).cast("q")
        ready, writer = os.pipe()
        child = os.fork()
        if child == 0:
            operators = (torch.tan, torch.sinh)
            thread = threading.Thread(target=work, args=(counts, 1, operators[1]), name="side")
            thread.start()
            os.write(writer, b"x")
            work(counts, 0, operators[0])
        os.read(ready, 1)
        time.sleep(random.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done.append((child, *counts))
        os.close(ready), os.close(writer)
    with open(out, "w") as file:
        for row in done:
            print(*row, file=file)
    os._exit(9)
"""


@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
def test_every_event_completed_before_a_kill_is_there(tmp_path: Path, engine: str) -> None:
    program, out, run = write_program(tmp_path, KILLED), tmp_path / "out", tmp_path / "run"
    done = fork_program(
        program,
        str(TRIALS),
        str(out),
        environment={
            "LANESCOPE_RECORD": str(run),
            "LANESCOPE_OPTIONS": json.dumps({"engine": engine, "level": "timing"}),
        },
        timeout=600,
    )
    assert done.returncode == 9, done.stderr
    expected = [tuple(map(int, line.split())) for line in out.read_text().splitlines()]
    assert len(expected) == TRIALS

    def counted() -> Counter[tuple[int, str]]:
        opened = open_run(run)
        found: Counter[tuple[int, str]] = Counter()
        for thread in opened.threads:
            rows = opened.events("op", thread=thread.thread, columns=["name", "duration_ns"])
            ended = rows.filter(pc.is_valid(rows["duration_ns"]))["name"].to_pylist()
            for name in ("aten::tan", "aten::sinh"):
                found[thread.pid, name] += ended.count(name)
        return found

    recovered = counted()
    for pid, main, side in expected:
        # At most one operator had returned without its count being stored.
        assert main <= recovered[pid, "aten::tan"] <= main + 1
        assert side <= recovered[pid, "aten::sinh"] <= side + 1
    compact(run)
    assert not (run / "journal").exists()
    assert counted() == recovered


@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("os._exit(4)", 4),
        ("os.kill(os.getpid(), 9)", -9),
        ("os.abort()", -6),
        ("import faulthandler; faulthandler._sigsegv()", -11),
    ],
)
def test_an_unfinished_run_opens_with_what_was_going_on(
    tmp_path: Path, end: str, status: int, engine: str
) -> None:
    program = write_program(
        tmp_path,
        f"""
        import os, threading, torch
        import lanescope.collector as ls
        torch.ones(2).tan()
        threading.Thread(target=threading.Event().wait, name="stuck", daemon=True).start()
        with ls.phase("backward"):
            torch.ones(2).sinh()
            {end}
        """,
    )
    run = tmp_path / "run"
    done = fork_program(
        program,
        environment={
            "LANESCOPE_RECORD": str(run),
            "LANESCOPE_OPTIONS": json.dumps({"engine": engine}),
        },
    )
    assert (done.returncode, done.stderr) == (status, "")
    opened = open_run(run)
    rows = opened.events("op", columns=["name", "depth"]).to_pylist()
    names = [row["name"] for row in rows if row["depth"] == 0]
    assert names == ["aten::ones", "aten::tan", "aten::ones", "aten::sinh"]
    (phase,) = opened.events("phase").to_pylist()
    assert (phase["name"], phase["kind"], phase["duration_ns"]) == ("backward", "backward", None)
    assert [t.name for t in opened.threads] == ["main", "stuck"]
    assert not opened.complete
    ended = "was killed, or left by os._exit", "was ended by SIGABRT", "was ended by SIGSEGV"
    assert any(words in warning for warning in opened.warnings for words in ended)


def test_a_killed_launch_leaves_a_run_of_all_its_ranks(tmp_path: Path) -> None:
    """Everything dies at once, the finishing process too, as when a scheduler kills a job."""
    program = write_program(
        tmp_path,
        """
        import os, signal, torch, torch.distributed as dist
        signal.alarm(60)
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(3))
        os.write(1, b"%08d" % os.getpid())
        while True:
            torch.ones(3).tan()
        """,
    )
    run = tmp_path / "run"
    ranks = (BIN / "torchrun", "--standalone", "--nproc-per-node=2", program)
    recording = (BIN / "lanescope", "record", "-o", run, "--", *ranks)
    with started(*recording, stderr=subprocess.DEVNULL) as launch:
        assert launch.stdout is not None
        pids = [int(launch.stdout.read(8)) for _ in range(2)]  # both are at work
        os.killpg(launch.pid, 9)  # the recorder's finishing process and torchrun
        for pid in pids:  # which torchrun gave sessions of their own
            os.kill(pid, 9)
        launch.stdout.read()  # until the last of them is gone
    opened = open_run(run)
    assert (opened.ranks, opened.world_size, opened.complete) == ((0, 1), 2, False)
    assert "all_reduce" in opened.events("collective", rank=1)["name"].to_pylist()
