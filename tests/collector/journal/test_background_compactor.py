"""Runs without `lanescope record`: compacted as they go on, unnoticed by the program."""

from __future__ import annotations

import json
import os
import select
import sys
from pathlib import Path

import pytest

from lanescope.collector.compaction import manifest
from lanescope.collector.format.options import Options
from lanescope.collector.journal.background_compactor import FIRST_SEGMENT, LOCK, follower_command
from lanescope.webapp import open_run
from tests.support.processes import fork_program
from tests.support.recording import SLOW_ON_PORTABLE, run_program, write_program

# Long enough for a follower, which another process may have started already.
LONG = """
    import os, signal, sys, time, torch
    from pathlib import Path
    signals = []
    signal.signal(signal.SIGCHLD, lambda *_: signals.append(1))
    x = torch.ones(1)
    for _ in range(95_000):
        x.neg()
    try:
        print(os.wait())
    except ChildProcessError:
        print("no child", signals)
    run = Path(os.environ["LANESCOPE_RECORD"])
    until, followers = time.monotonic() + 60, []
    while not any(followers) and time.monotonic() < until:  # it may still be starting
        followers = [p.read_text().strip() for p in run.glob(".follower-*")]
    print(*followers, flush=True)
"""


def recorded(run: Path, engine: str) -> dict[str, str]:
    options = json.dumps({"engine": engine, "level": "timing"})
    return {"LANESCOPE_RECORD": str(run), "LANESCOPE_OPTIONS": options}


def wait_for_end(pid: int) -> None:
    """Waits for the end of a process that is not a child, for at most two minutes."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 120)[0], "the follower does not end"
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
@pytest.mark.slow
def test_a_killed_program_s_run_is_finished_by_its_follower(tmp_path: Path, engine: str) -> None:
    program = write_program(tmp_path, LONG + "    os.kill(os.getpid(), 9)\n")
    run = tmp_path / "run"
    # Returns when the pipes are closed: the follower holds none of them.
    done = run_program([sys.executable, str(program)], environment=recorded(run, engine))
    assert done.returncode == -9, done.stderr
    children, follower = done.stdout.splitlines()
    assert children == "no child []"
    assert done.stderr == ""
    wait_for_end(int(follower))
    assert sorted(p.name for p in run.iterdir()) == [".lock", "manifest.json", "rank=00000"]
    opened = open_run(run)
    names = opened.events("op", columns=["name"])["name"].to_pylist()
    assert names.count("aten::neg") == 95_000
    assert not opened.complete


@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
def test_one_follower_for_all_processes_of_a_run(tmp_path: Path, engine: str) -> None:
    program = write_program(
        tmp_path,
        """
        import os, sys, time, torch
        x = torch.ones(1)
        children = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                for _ in range(95_000):
                    x.neg()
                os._exit(0)
            children.append(child)
        assert sorted(os.wait()[0] for _ in children) == sorted(children)
        from pathlib import Path
        run, until, found = Path(os.environ["LANESCOPE_RECORD"]), time.monotonic() + 60, []
        while not any(found) and time.monotonic() < until:  # it may still be starting
            found = [p.read_text().strip() for p in run.glob(".follower-*")]
        print(len(found), *found, flush=True)
        os._exit(0)
        """,
    )
    run = tmp_path / "run"
    done = fork_program(program, environment=recorded(run, engine))
    assert done.returncode == 0, done.stderr
    number, follower = done.stdout.split()
    assert number == "1"
    wait_for_end(int(follower))
    assert not (run / "journal").exists()
    assert len(manifest.load_manifest(run)["processes"]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
def test_a_short_run_and_a_bounded_one_have_none(tmp_path: Path, engine: str) -> None:
    source = """
        import os, sys, torch
        from pathlib import Path
        x = torch.ones(1)
        for _ in range(int(sys.argv[1])):
            x.neg()
        print(list(Path(os.environ["LANESCOPE_RECORD"]).glob(".follower-*")))
    """
    program = write_program(tmp_path, source)
    short, bounded = recorded(tmp_path / "a", engine), recorded(tmp_path / "b", engine)
    options = json.loads(bounded["LANESCOPE_OPTIONS"])
    bounded["LANESCOPE_OPTIONS"] = json.dumps({**options, "keep_last_bytes": 40_000_000})
    for count, environment in ((20_000, short), (95_000, bounded)):
        done = fork_program(program, str(count), environment=environment)
        assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_lock_left_by_a_killed_follower_is_taken_over(tmp_path: Path) -> None:
    manifest.create(tmp_path, Options(), [], 1)
    command = follower_command(tmp_path).decode()
    (lock,) = (word for word in command.split() if LOCK in word)
    Path(lock).write_text("999999999\n")
    run_program(["sh", "-c", command.rstrip("& ")])  # in the foreground: until it ends
    assert not Path(lock).exists()
    assert manifest.load_manifest(tmp_path)["complete"] is False
    Path(lock).write_text(f"{os.getpid()}\n")  # one whose process lives
    run_program(["sh", "-c", command.rstrip("& ")])
    assert Path(lock).read_text() == f"{os.getpid()}\n"


def test_the_first_segments_are_short() -> None:
    from lanescope.collector.journal.journal import FIRST_SEGMENT_BYTES, LAST_SEGMENT_BYTES

    sizes = [min(FIRST_SEGMENT_BYTES * 4**i, LAST_SEGMENT_BYTES) for i in range(FIRST_SEGMENT)]
    assert sum(sizes) // 64 < 95_000
