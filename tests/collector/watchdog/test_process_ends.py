"""How a process ends is in its run: by a signal, by an exception, or well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lanescope.webapp.analysis.rank_state import rank_states
from lanescope.webapp.runs.run import open_run
from tests.collector.watchdog.test_watchdog import line_of, stalls
from tests.support.processes import fork_program
from tests.support.recording import (
    OBSERVERS,
    UNCOMPACTED,
    WATCHED,
    record_program,
    write_program,
)

TERMINATED = """
    import os, queue, signal, threading, time, torch
    torch.ones(2).sum()
    def terminates():
        watched()
        time.sleep(1.5)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)  # one that ends meanwhile may cut short the stacks of the others
    threading.Thread(target=terminates, daemon=True).start()
    def waits():
        queue.Queue().get()
    waits()
"""


@pytest.mark.parametrize("engine", OBSERVERS)
def test_a_terminated_process_leaves_its_stacks_and_the_signal(tmp_path: Path, engine: str) -> None:
    recorded = record_program(tmp_path, WATCHED + TERMINATED, "--engine", engine)
    assert recorded.status == 128 + 15
    process = json.loads((recorded.run / "manifest.json").read_text())["processes"][0]
    assert (process["ended"], process["closed"]) == ("signal SIGTERM", False)
    main = next(s for s in stalls(recorded, 0) if s["name"] == "main")
    assert main["reason"] == "signal"
    assert "waits" in line_of(recorded, 0, main["stack"])
    stacks = [line_of(recorded, 0, s["stack"]) for s in stalls(recorded, 0)]
    assert "_run" not in {functions[-1] for functions in stacks}  # the recorder's own thread
    assert 1e9 < main["time_ns"] - process["start_ns"] < 60e9  # of its own clock


TORN = """
    import ctypes, os, signal, sys, time, torch
    torch.ones(2).sum()
    watched()
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    caught = int(status["SigCgt"], 16)
    libc = ctypes.CDLL(None)
    reads_freed_memory = ctypes.cast(libc.strlen, ctypes.c_void_p)  # of the signal's number
    for number in range(40, 65):
        if caught >> (number - 1) & 1:
            libc.signal(number, reads_freed_memory)
    if sys.argv[1] == "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
    ctypes.PyDLL(None).sleep(7)
    print("goes on", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.mark.parametrize(("case", "status"), [("terminated", 15), ("stuck", 11)])
def test_a_stack_that_vanishes_while_it_is_read_does_no_harm(
    tmp_path: Path, case: str, status: int
) -> None:
    options = ("--engine", "native", "--hang-timeout", "2")
    recorded = record_program(tmp_path, WATCHED + TORN, *options, arguments=(case,))
    assert recorded.status == 128 + status, recorded.stderr
    assert recorded.stdout == ("goes on\n" if case == "stuck" else "")
    process = json.loads((recorded.run / "manifest.json").read_text())["processes"][0]
    assert process["ended"] == f"signal SIG{'TERM' if case == 'terminated' else 'SEGV'}"


CRASHING = """
    import ctypes, threading, torch
    torch.ones(2).sum()
    watched()
    def reads_nothing():
        torch.ones(3).exp()
        print(threading.get_native_id(), flush=True)
        ctypes.string_at(0)
    thread = threading.Thread(target=reads_nothing, name="reader")
    thread.start()
    thread.join()
"""


def test_the_thread_that_crashed_is_known(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, WATCHED + CRASHING)
    assert recorded.status == 128 + 11, recorded.stderr
    process = json.loads((recorded.run / "manifest.json").read_text())["processes"][0]
    assert process["ended"] == "signal SIGSEGV"
    assert process["ended_thread"] == int(recorded.stdout)
    state = rank_states(open_run(recorded.run))[0]
    assert state.activity.startswith("died of SIGSEGV; its thread reader did aten::exp last")


OWN_HANDLERS = """
    import os, signal, sys, time, torch
    torch.ones(2).sum()
    watched()
    child = os.fork()
    if child == 0:
        time.sleep(30)
    os.kill(child, signal.SIGTERM)
    print(os.waitpid(child, 0)[1])
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    print(before is signal.SIG_DFL)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"forked")
        time.sleep(30)
    os.read(reading, 6)
    os.kill(child, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)
"""


def test_a_handler_of_the_program_and_the_end_of_a_child_are_let_be(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, WATCHED + OWN_HANDLERS, "--engine", "portable")
    assert (recorded.status, recorded.stdout) == (7, "15\nTrue\n7\n"), recorded.stderr
    processes = json.loads((recorded.run / "manifest.json").read_text())["processes"]
    assert [p["ended"] for p in processes if p["role"] == "rank"] == ["exit"]
    assert not stalls(recorded, 0)


RAISES = """
    import threading, torch
    torch.ones(2).sum()
    def fails():
        raise KeyError("in a thread")
    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()
    raise ValueError("two\\nlines")
"""


def test_an_uncaught_exception_is_in_the_manifest(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, RAISES)
    assert recorded.status == 1
    assert "ValueError: two" in recorded.stderr
    process = json.loads((recorded.run / "manifest.json").read_text())["processes"][0]
    assert process["ended"] == "exception"
    assert process["exception"] == f"ValueError: two lines ({tmp_path / 'program.py'}:9)"
    said = "rank 0 ended with an exception: ValueError: two lines (program.py:9)"
    assert open_run(recorded.run).warnings == (said,)


STOPPED_AT_THE_START = """
    import faulthandler, sys, threading, time, torch
    import lanescope.collector as ls
    from lanescope.collector.watchdog import watchdog
    opening, stacks_file, left = threading.Event(), watchdog.stacks_file, []
    def late(folder):
        opening.set()
        time.sleep(0.3)  # the end of the recording comes meanwhile, and has to wait
        return stacks_file(folder)
    def registered(number, **settings):
        left.append(number)
    def unregistered(number):
        left.remove(number)
    faulthandler.register, faulthandler.unregister = registered, unregistered
    watchdog.stacks_file = late
    ls.start(sys.argv[1], engine=sys.argv[2])
    torch.ones(2).sum()
    opening.wait()
    ls.stop()
    time.sleep(0.5)
    print(left)
"""


@pytest.mark.parametrize("engine", OBSERVERS)
def test_a_recording_that_ends_while_its_watchdog_begins(tmp_path: Path, engine: str) -> None:
    program = write_program(tmp_path, STOPPED_AT_THE_START)
    done = fork_program(program, str(tmp_path / "run"), engine, environment=UNCOMPACTED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_a_process_that_ends_well_says_so(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, "import torch; torch.ones(2).sum()", "--hang-timeout", "0")
    process = json.loads((recorded.run / "manifest.json").read_text())["processes"][0]
    assert (process["ended"], process["exception"]) == ("exit", "")
    assert stalls(recorded, 0) == []
