"""A recorder in trouble warns once and steps aside: the program's results and status stay."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from lanescope.webapp import open_run
from tests.support.processes import fork_program
from tests.support.recording import (
    BIN,
    OBSERVERS,
    SLOW_ON_PORTABLE,
    record_program,
    run_program,
    write_program,
)

TRAINING = """
    import threading, torch
    from torch.utils.data import DataLoader, TensorDataset

    def train():
        torch.manual_seed(0)
        torch.set_num_threads(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1)
        )
        optimizer = torch.optim.Adam(model.parameters())
        loader = DataLoader(TensorDataset(torch.arange(32.0).reshape(8, 4)), batch_size=2)
        losses = []
        for epoch in range(2):
            for (x,) in loader:
                loss = model(x).square().mean()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        squares = []
        side = threading.Thread(target=lambda: squares.append(torch.ones(3).square().sum().item()))
        side.start()
        side.join()
        with torch.no_grad():
            return losses, squares, model(torch.ones(1, 4)).item()
"""


BREAKING_HOOKS = """
    import sys
    import lanescope.collector as ls
    from lanescope.collector.api import active
    from lanescope.collector.recorder.recorder import Recorder
    from lanescope.collector.hooks import stacks
    from lanescope.collector.hooks.graphs import autograd_graph as graphs
    from lanescope.collector.hooks.threads import threads
    from lanescope.collector.hooks.training import (
        device_readback, gradients, memory, modules, optimizer_parameters, parameters
    )

    expected = train()
    hooks = [
        (Recorder, name) for name in (
            "thread", "intern", "put", "begin_phase", "end_phase", "mark", "value", "sync",
            "next_step", "enter_thread", "leave_thread", "reserve_thread", "describe",
        )
    ] + [
        (gradients.Gradients, "record"), (gradients.Gradients, "after"),
        (parameters.Parameters, "before"),
        (optimizer_parameters.OptimizerParameters, "of"),
        (device_readback.DeviceReadback, "enqueue"), (device_readback.DeviceReadback, "drain"),
        (graphs.Graphs, "sample"), (memory.Memory, "sample"), (modules.Modules, "_name"),
        (threads.Threads, "started"), (threads.Threads, "joined"),
        (stacks.Stacks, "capture"),
    ]
    ls.start(sys.argv[1], engine=sys.argv[2], stacks="all")
    assert active().recorder.engine == sys.argv[2]
    assert train() == expected
    for owner, name in hooks:
        original = getattr(owner, name)
        hits = []
        def broken(*args, **kwargs):
            hits.append(1)
            raise RuntimeError(f"planted in {name}")
        setattr(owner, name, broken)
        try:
            assert train() == expected, name
            with ls.phase("p"):
                ls.mark("m"); ls.value("v", 1.0); ls.step()
        finally:
            setattr(owner, name, original)
        print(name, bool(hits))
    assert train() == expected
    ls.stop()
    assert train() == expected
    """


@pytest.mark.parametrize("observer", OBSERVERS)
def test_an_exception_at_any_hook_changes_nothing(
    tmp_path: Path, native: Path, observer: str
) -> None:
    program = write_program(tmp_path, TRAINING + BREAKING_HOOKS)
    done = fork_program(program, str(tmp_path / "run"), observer, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        "lanescope: recorder error, some events are missing: RuntimeError: planted in .*\n",
        done.stderr,
    )
    assert open_run(tmp_path / "run").coverage["recorder_errors"] > 0


FAULTS = ("start", "begun", "end", "write", "stack", "text", "python")
"""Places of `Fault` in the observer, from 1 on."""

COLLECTIVES = """
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    def train_with_collectives():
        tensor = torch.arange(4.0)
        dist.all_reduce(tensor)
        with torch.profiler.record_function(f"scope {len(names)}"):
            dist.all_reduce(tensor, async_op=True).wait()
        names.append(tensor.tolist())
        return train(), names[-1]
    names = []
"""


def test_an_exception_in_the_observer_changes_nothing(tmp_path: Path, native: Path) -> None:
    program = write_program(
        tmp_path,
        TRAINING
        + COLLECTIVES
        + """
    import sys
    import lanescope.collector as ls
    from lanescope.collector.api import active

    expected = train_with_collectives()
    ls.start(sys.argv[1], engine="native", stacks="all")
    library, store = active()._library, active().recorder.store
    for place, fault in enumerate(sys.argv[2:], start=1):
        before = store.coverage()["recorder_errors"]
        library.plant(place)
        for _ in range(2):  # the names of scopes are new each time
            assert train_with_collectives() == expected, fault
            with ls.phase("p"):
                ls.mark("m"); ls.value("v", 1.0); ls.step()
        library.plant(0)
        assert store.coverage()["recorder_errors"] > before + 5, fault
        with ls.phase(f"after {fault}"):
            assert train_with_collectives() == expected, fault
    ls.stop()
    assert train_with_collectives() == expected
    """,
    )
    done = fork_program(program, str(tmp_path / "run"), *FAULTS)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch("lanescope: recorder errors?, some events are missing: .*\n", done.stderr)
    # Nothing is left over from what failed: later events are whole, at the depth they belong to.
    run = open_run(tmp_path / "run")
    main = run.threads[0].thread
    ops = run.events("op", thread=main).to_pylist()
    calls = run.events("collective").to_pylist()
    for fault in FAULTS:
        phase = f"after {fault}"
        later = [r for r in ops if r["phase"] == phase and r["name"] == "c10d::allreduce_"]
        assert [(r["depth"], r["duration_ns"] is not None) for r in later] == [(0, True), (1, True)]
        assert [r["name"] for r in calls if r["phase"] == phase] == ["all_reduce"] * 2


@pytest.mark.parametrize("engine", ["auto", pytest.param("portable", marks=pytest.mark.soak)])
@pytest.mark.slow
def test_a_full_disk(tmp_path: Path, engine: str) -> None:
    """A real tmpfs of 1 MB: the journal fills it while training goes on."""
    disk = tmp_path / "disk"
    disk.mkdir()
    program = write_program(
        tmp_path,
        TRAINING + "    for _ in range(40):\n        result = train()\n    print(result)\n",
    )
    bare = fork_program(program)
    script = (
        f"mount -t tmpfs -o size=1m none {disk} && "
        f"{BIN / 'lanescope'} record --engine {engine} -o {disk / 'run'} -- "
        f"{sys.executable} {program}; status=$?; cp -r {disk / 'run'} {tmp_path / 'kept'}; "
        "exit $status"
    )
    probe = run_program(["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(disk)])
    if probe.returncode:
        pytest.skip(f"needs a mount of its own: {probe.stderr.strip()}")
    done = run_program(["unshare", "-rm", "sh", "-c", script])
    assert (done.returncode, done.stdout) == (0, bare.stdout), done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert len([x for x in done.stderr.splitlines() if "some events are lost" in x]) == 1
    run = open_run(tmp_path / "kept")
    assert run.counts["op"] > 1_000
    assert run.dropped > 1_000


@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
def test_the_folder_is_removed_while_recording(tmp_path: Path, engine: str) -> None:
    """What was written before is gone; what comes then finds no room, and that is said once."""
    run = tmp_path / "run"
    source = (
        TRAINING
        + """
    import os, shutil, sys
    results = [train()]
    while sys.argv[1:] and os.path.exists(sys.argv[1]):  # a file may come while it goes
        shutil.rmtree(sys.argv[1], ignore_errors=True)
    side = threading.Thread(target=lambda: results.append(train()))
    side.start()
    side.join()
    print(results)
    """
    )
    program = write_program(tmp_path, source)
    bare = fork_program(program)
    done = fork_program(
        program,
        str(run),
        environment={
            "LANESCOPE_RECORD": str(run),
            "LANESCOPE_OPTIONS": json.dumps({"engine": engine}),
        },
    )
    assert (done.returncode, done.stdout) == (0, bare.stdout), done.stderr
    (warning,) = done.stderr.splitlines()
    assert warning.startswith(f"lanescope: cannot write to {run}")
    assert warning.endswith("(No such file or directory); some events are lost")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    program = write_program(tmp_path, TRAINING + "    print(train())\n")
    bare = fork_program(program)
    (tmp_path / "file").write_text("")
    done = fork_program(
        program,
        environment={"LANESCOPE_RECORD": str(tmp_path / "file" / "run")},
    )
    assert (done.returncode, done.stdout) == (0, bare.stdout)
    assert len(done.stderr.splitlines()) == 1
    assert "cannot write to" in done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("{", "LANESCOPE_OPTIONS cannot be used"),
        pytest.param('{"level": "all"}', "level is 'all'", marks=pytest.mark.slow),
        ('{"colour": 1}', "unknown settings colour"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, options: str, sentence: str) -> None:
    program = write_program(tmp_path, "import torch; print(torch.ones(2).sum().item())")
    done = fork_program(
        program,
        environment={"LANESCOPE_RECORD": str(tmp_path / "run"), "LANESCOPE_OPTIONS": options},
    )
    assert (done.returncode, done.stdout) == (0, "2.0\n")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


# More threads than a process may usually have files open, 1,024, take a while.
@pytest.mark.parametrize("rounds", [5, pytest.param(55, marks=pytest.mark.slow)])
def test_many_short_threads(tmp_path: Path, rounds: int) -> None:
    recorded = record_program(
        tmp_path,
        """
        import sys, threading, torch
        x = torch.ones(2)
        for _ in range(int(sys.argv[1])):
            threads = [threading.Thread(target=x.tan) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        """,
        arguments=(str(rounds),),
    )
    assert recorded.status == 0, recorded.stderr
    run = open_run(recorded.run)
    assert len(run.threads) == 1 + 20 * rounds
    assert run.events("op", columns=["name"])["name"].to_pylist().count("aten::tan") == 20 * rounds
    assert run.dropped == 0


@pytest.mark.slow
def test_interpreter_shutdown_with_a_daemon_thread_at_work(tmp_path: Path) -> None:
    recorded = record_program(
        tmp_path,
        """
        import threading, torch
        done = threading.Event()
        def work():
            torch.ones(2).tan()
            done.set()
            threading.Event().wait()
        threading.Thread(target=work, daemon=True).start()
        done.wait()
        """,
        real=True,
    )
    assert recorded.status == 0, recorded.stderr
    assert recorded.stderr.count("\n") == 1
    manifest = json.loads((recorded.run / "manifest.json").read_text())
    assert manifest["complete"] is True


@pytest.mark.slow
def test_interpreter_shutdown_ends_daemon_threads_in_hooked_functions(tmp_path: Path) -> None:
    """Python unwinds their stacks where they come back from a wait, without its lock."""
    recorded = record_program(
        tmp_path,
        """
        import queue, threading, time, torch
        torch.ones(2).tan()
        items, never, condition = queue.Queue(), threading.Event(), threading.Condition()
        def take():
            while True:
                try:
                    items.get(timeout=0.002)
                except queue.Empty:
                    pass
        def wait():
            while True:
                never.wait(0.002)
        def wait_for_notify():
            while True:
                with condition:
                    condition.wait(0.002)
        for work in 12 * (take, wait, wait_for_notify):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.3)
        """,
        real=True,
    )
    assert recorded.status == 0, recorded.stderr
    assert recorded.stderr.count("\n") == 1


FORKS = """
    import os, threading, torch
    ended = threading.Event()
    def draws():
        while not ended.is_set():
            torch.randn(1_000_000)
    thread = threading.Thread(target=draws)
    thread.start()
    for _ in range(20):
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    ended.set()
    thread.join()
"""


def test_forks_while_another_thread_draws(tmp_path: Path) -> None:
    """The generator is locked in such a child for ever."""
    recorded = record_program(tmp_path, FORKS)
    assert recorded.status == 0, recorded.stderr


@pytest.mark.slow
def test_exec_into_another_program(tmp_path: Path) -> None:
    recorded = record_program(
        tmp_path,
        """
        import os, sys, torch
        torch.ones(2).tan()
        os.execv(sys.executable, [sys.executable, "-c", "import torch; torch.ones(2).sinh()"])
        """,
    )
    assert recorded.status == 0, recorded.stderr
    names = recorded.op_names()
    assert names == ["aten::ones", "aten::tan", "aten::ones", "aten::sinh"]
    assert [t["name"] for t in recorded.rows("thread")] == ["main", "main"]


def test_the_journal_is_gone_when_the_run_is_finished(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, "import torch; torch.ones(2).tan()")
    assert not (recorded.run / "journal").exists()
    shutil.rmtree(recorded.run)
