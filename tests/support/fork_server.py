"""A process that has imported torch and the recorder once, and forks for every program.

`tests/support/processes.py` starts it with a socket that listens: one server for all processes of a
test run. A message is a JSON object and three files: where stdout and stderr of the program go, and
a pipe that gets the report. Each message is one job: a process of its own that is the program, or
starts its ranks as torchrun would and waits for them.

A program cannot see that it was forked: it has the arguments, the environment and the folder of
`python PROGRAM`, is `__main__`, imports torch as if for the first time (which is when a recording
begins, by the import hook that the recorder installs everywhere), and its exit handlers run.
Its frames are named as Python's own are, so that they are no part of a recorded stack.
"""

from __future__ import annotations

import _imp
import atexit
import contextlib
import ctypes
import functools
import gc
import importlib.abc
import importlib.machinery
import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType, TracebackType
from typing import Any, NoReturn

PRELOADED = (
    "numpy",
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.nn.parallel",
    "lanescope.collector.session.session",
)
"""What recorded programs import. Any optimizer imports torch._dynamo, which takes as long as torch.
pyarrow is not among these: a recorded process never loads it."""

_PARENT_DEATH_SIGNAL = 1  # of prctl.h
OWN_NAME = "<frozen fork server>"

TIMEOUT_S = 30.0
"""How long ranks that were asked to end may take, seconds: as long as torchrun waits."""

Job = dict[str, Any]
Program = Callable[[], None]


class _Preloaded(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Hands out the torch that is loaded already, so that a program's import finds it."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        """Only of torch, and once."""
        if name != self._module.__name__:
            return None
        sys.meta_path.remove(self)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: object) -> ModuleType:
        """The module as it is."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to be executed."""
        module.__spec__ = self._spec


@dataclass(frozen=True)
class _Running:
    """The process of a job, the pipe for its report, and who asked for it."""

    pid: int
    report: int
    client: socket.socket


def serve(listener: socket.socket) -> Program | None:
    """Start a job for each message until no client is left; a program to run, in its process.

    Each client first gets what the server took to start, the first of them alone.
    """
    clients: set[socket.socket] = set()
    jobs: dict[int, _Running] = {}  # by a file that is readable when the process ends
    started_s = time.process_time()
    while True:
        ready, _, _ = select.select([listener, *clients, *jobs], [], [])
        for one in ready:
            if one is listener:
                client, _ = listener.accept()
                with contextlib.suppress(ConnectionError):  # it has gone
                    client.send(json.dumps(started_s).encode())
                    started_s = 0.0
                clients.add(client)
            elif one in jobs:
                _reap(one, jobs.pop(one))
            elif (program := _asked(one, listener, clients, jobs)) is not None:
                return program
        if not clients:
            return None


def _asked(
    client: socket.socket,
    listener: socket.socket,
    clients: set[socket.socket],
    jobs: dict[int, _Running],
) -> Program | None:
    """Start the job of a message; a client that has gone takes its jobs with it."""
    message = b""
    with contextlib.suppress(ConnectionError):
        message, files, _, _ = socket.recv_fds(client, 1 << 20, 3)
    if not message:
        clients.remove(client)
        client.close()
        for job in jobs.values():
            if job.client is client:
                _kill_group(job.pid)
        return None
    pid = os.fork()
    if pid == 0:
        for handle, job in jobs.items():
            os.close(handle)
            os.close(job.report)
        for one in (listener, *clients):
            one.close()
        return launch(json.loads(message), files)
    for file in files[:2]:
        os.close(file)
    jobs[os.pidfd_open(pid)] = _Running(pid, files[2], client)
    return None


def _reap(handle: int, job: _Running) -> None:
    """The last end of the pipe is closed after the job has been waited for."""
    os.close(handle)
    _, status, usage = os.wait4(job.pid, 0)
    taken_s = usage.ru_utime + usage.ru_stime
    _report(job.report, status=os.waitstatus_to_exitcode(status), processor_s=taken_s)
    os.close(job.report)


def _report(pipe: int, **said: float) -> None:
    with contextlib.suppress(BrokenPipeError):  # the job took too long, and was given up
        os.write(pipe, json.dumps(said).encode() + b"\n")


def _kill_group(job: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job, signal.SIGKILL)


def launch(job: Job, files: list[int]) -> Program:
    """What the process of a job is to do: run its program, or start its ranks and wait for them."""
    os.setsid()
    out, err, report = files
    _report(report, pid=os.getpid())
    null = os.open(os.devnull, os.O_RDONLY)
    for file, to in ((null, 0), (out, 1), (err, 2)):
        os.dup2(file, to)
        os.close(file)
    os.close(report)
    return functools.partial(_start_ranks, job) if job["ranks"] else functools.partial(run, job)


def _start_ranks(job: Job) -> None:
    """As torchrun does: its own status is 1 where a rank's is not 0, and no rank is left."""
    count = job["ranks"]
    store, port = _start_store()
    ranks: dict[int, int] = {}
    for environment in (_rank_environment(rank, count, port) for rank in range(count)):
        child = os.fork()
        if child == 0:
            return run(job, environment)
        ranks[child] = os.pidfd_open(child)
    failed = _wait_for(ranks, None)
    if failed and ranks:
        time.sleep(0.1)  # torchrun looks at its ranks as often
        _send(ranks, signal.SIGTERM)
        _wait_for(ranks, TIMEOUT_S)
        _send(ranks, signal.SIGKILL)
        _wait_for(ranks, None)
    os.kill(store, signal.SIGKILL)
    os.waitpid(store, 0)
    os._exit(failed)


def _wait_for(ranks: dict[int, int], timeout_s: float | None) -> bool:
    """Wait for all ranks; without a time limit, until one fails. Whether one did."""
    failed = False
    while ranks and not (failed and timeout_s is None):
        ended, _, _ = select.select(list(ranks.values()), [], [], timeout_s)
        if not ended:
            break
        for pid in [pid for pid, handle in ranks.items() if handle in ended]:
            failed = os.waitpid(pid, 0)[1] != 0 or failed
            os.close(ranks.pop(pid))
    return failed


def _send(ranks: dict[int, int], number: signal.Signals) -> None:
    for pid in ranks:
        os.kill(pid, number)


def _start_store() -> tuple[int, int]:
    """The store at which ranks meet, on a port that the system chose, in a process of its own.

    It has threads; the process that forks the ranks has none.
    """
    readable, writable = os.pipe()
    child = os.fork()
    if child:
        os.close(writable)
        with open(readable) as answer:
            return child, int(answer.read())
    import torch.distributed as dist

    os.close(readable)
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)  # a program may end its launcher
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    os.write(writable, str(store.port).encode())
    os.close(writable)
    while True:
        signal.pause()


def _rank_environment(rank: int, count: int, port: int) -> dict[str, str]:
    """What torchrun --standalone sets."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "ROLE_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "ROLE_WORLD_SIZE": str(count),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": f"forked-{port}",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def run(job: Job, rank: Mapping[str, str] = MappingProxyType({})) -> None:
    """Be `python PROGRAM ARGUMENTS`, to its end."""
    program = job["program"]
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update({**job["environment"], **rank})
    sys.argv = [program, *job["arguments"]]
    sys.orig_argv = [sys.executable, *sys.argv]
    added = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [os.path.dirname(os.path.realpath(program)), *added, *PATHS]
    tempfile.tempdir = None
    import numpy

    from lanescope.collector.inject import bootstrap

    numpy.random.seed()  # as every process that imports it has its own
    sys.meta_path.insert(0, _Preloaded(sys.modules.pop("torch")))
    bootstrap()
    _execute(program)


def _execute(program: str) -> None:
    main = ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", program)
    main.__dict__.update(
        __file__=program,
        __cached__=None,
        __loader__=loader,
        __builtins__=sys.modules["builtins"],
        __annotations__={},
    )
    sys.modules["__main__"] = main
    exec(compile(loader.get_data(program), program, "exec", dont_inherit=True), main.__dict__)


def _status_of(error: BaseException | None) -> int:
    """The exit status after an exception that nothing caught, which is said as Python does."""
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        error.__traceback__ = error.__traceback__ and _below_this_file(error.__traceback__)
        sys.last_value = error  # as Python does before it calls the hook
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _below_this_file(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == OWN_NAME:
        trace = trace.tb_next
    return trace


def _end(program: Program) -> NoReturn:
    """Run a program and end as the interpreter does: wait for threads, exit handlers, flush.

    What it does then, freeing all that torch holds, takes half a second, and would be the larger
    part of most tests.
    """
    error: BaseException | None = None
    try:
        program()
    except BaseException as raised:
        error = raised
    status = _status_of(error)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status)


if __name__ == "__main__":
    _imp._fix_co_filename(sys._getframe().f_code, OWN_NAME)  # of all functions of this file
    PATHS = sys.path[1:]
    gc.disable()
    for name in PRELOADED:
        importlib.import_module(name)
    # torch's take its operators back, one by one: 40 ms at the end of every program.
    for finalizer in tuple(weakref.finalize._registry):
        finalizer.atexit = False
    gc.collect()
    gc.freeze()
    gc.enable()
    forked = serve(socket.socket(fileno=int(sys.argv[1])))
    if forked is not None:
        _end(forked)
