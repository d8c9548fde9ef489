"""Starts programs for tests, with a time limit, and returns how they ended and what they said.

`run_program` runs any command to its end, `started` one that is ended by the test, and `compiled`
makes a program or library of C++. `fork_program` forks a Python program from a process that has
imported torch (fork_server.py), which takes a hundredth of the processor time: for tests whose
subject is what the program does, not how it is started.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lanescope.collector.engines.built_libraries import find_compiler

SERVER = Path(__file__).with_name("fork_server.py")
TIME_LIMIT_S = 300.0
TEST_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
"""Common to all processes that run tests side by side."""

Ended = subprocess.CompletedProcess[str]


Environment = Mapping[str, str | None]
"""Variables that a program gets beside those of this process; None takes one away."""


def heed_interrupts() -> None:
    """Lets this process and its children get Ctrl-C, which a shell's background jobs ignore."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def run_program(
    command: Sequence[str | Path],
    *,
    environment: Environment | None = None,
    folder: Path | None = None,
    timeout: float = TIME_LIMIT_S,
) -> Ended:
    """Run a command to its end with one OpenMP thread, its output captured."""
    return subprocess.run(
        [str(word) for word in command],
        env=variables(environment),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=folder,
        stdin=subprocess.DEVNULL,
    )


def output_of(
    *command: str | Path, environment: Environment | None = None, folder: Path | None = None
) -> str:
    """Standard output of a command that must succeed."""
    done = run_program(command, environment=environment, folder=folder)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr}"
    return done.stdout


@contextmanager
def started(
    *command: str | Path, environment: Environment | None = None, stderr: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Starts a command in a session of its own, with its output in a pipe; `first_line` reads it.

    Ends it (SIGTERM) and waits for it, however the test ends. `stderr` is that of Popen.
    """
    process = subprocess.Popen(
        [str(word) for word in command],
        env=variables(environment),
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            for pipe in filter(None, (process.stdout, process.stderr)):
                pipe.close()


def first_line(process: subprocess.Popen[str]) -> str:
    """The first line that a started command prints, without its end."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def compiled(source: Path, made: Path, *flags: str) -> Path:
    """Compile C++ (or C) with the engine's compiler into `made`."""
    output_of(str(find_compiler()), str(source), "-o", made, *flags)
    return made


def fork_program(
    program: Path,
    *arguments: str,
    ranks: int = 0,
    environment: Environment | None = None,
    timeout: float = TIME_LIMIT_S,
) -> Ended:
    """Run `python program arguments`, as `ranks` processes of one job where that is given.

    The status is that of subprocess: -9 for SIGKILL; of ranks that of torchrun, 0 or 1.
    """
    return _server().run(
        {
            "program": str(program),
            "arguments": arguments,
            "ranks": ranks,
            "folder": os.getcwd(),
            "environment": variables(environment),
        },
        timeout,
    )


COMPILING = {"TORCHINDUCTOR_VEC_ISA_OK": "0", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""Where inductor compiles: without trying first which vectors the processor has, which takes longer
than all else, and without processes of its own: each of them imports torch."""


def variables(changed: Environment | None) -> dict[str, str]:
    """The environment of a program: this process's, one OpenMP thread, and the changes."""
    whole = {**os.environ, **COMPILING, "OMP_NUM_THREADS": "1", **(changed or {})}
    return {name: value for name, value in whole.items() if value is not None}


def without(*prefixes: str) -> dict[str, None]:
    """Takes away the variables of this process whose names begin so."""
    return dict.fromkeys(name for name in os.environ if name.startswith(prefixes))


class ForkServer:
    """The process from which programs are forked; several may run at once.

    The first process of a test run that needs it starts it, under a name that the others know.
    """

    def __init__(self) -> None:
        self._sending = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None  # None: another process's
        self.processor_s = 0.0  # of programs that this process asked for, and of the start
        name = f"\0lanescope-forks-{TEST_RUN}"
        greeting = b""
        while not greeting:
            if self._process is not None:
                raise RuntimeError("the fork server did not start")
            self._process = _serving(name)
            self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # One that is about to start or to end refuses, or is gone before it answers.
            with contextlib.suppress(ConnectionError):
                self._control.connect(name)
                greeting = self._control.recv(1024)
        self.processor_s += float(greeting)

    @property
    def pid(self) -> int | None:
        """Of the process, if it is a child of this one."""
        return None if self._process is None else self._process.pid

    def run(self, job: dict[str, Any], timeout_s: float) -> Ended:
        """Run a job to its end. Raises subprocess.TimeoutExpired, with nothing left running."""
        command = [str(job["program"]), *job["arguments"]]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            report = self._send(job, out.fileno(), err.fileno())
            try:
                status, taken_s = _ended(report, time.monotonic() + timeout_s)
            finally:
                os.close(report)
            said = [file.seek(0) or file.read().decode(errors="replace") for file in (out, err)]
        if status is None:
            raise subprocess.TimeoutExpired(command, timeout_s, *said)
        with self._sending:
            self.processor_s += taken_s
        return Ended(command, status, *said)

    def close(self) -> None:
        """End what it started for this process; and the server itself, after its last client."""
        self._control.close()
        if self._process is not None:
            self._process.wait()

    def _send(self, job: dict[str, Any], out: int, err: int) -> int:
        readable, writable = os.pipe()
        try:
            with self._sending:
                socket.send_fds(self._control, [json.dumps(job).encode()], [out, err, writable])
        finally:
            os.close(writable)
        return readable


def _serving(name: str) -> subprocess.Popen[bytes] | None:
    """Start the server under an abstract address; None where that is taken."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(name)
        except OSError:
            return None
        listener.listen()
        return subprocess.Popen(
            [sys.executable, str(SERVER), str(listener.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=variables(None),
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )


def _ended(report: int, deadline: float) -> tuple[int | None, float]:
    """Status and processor seconds of a job, once it is gone; None after killing a late one."""
    said = b""
    while select.select([report], [], [], max(0.0, deadline - time.monotonic()))[0]:
        more = os.read(report, 4096)
        if not more:
            break
        said += more
    else:
        os.killpg(json.loads(said.splitlines()[0])["pid"], signal.SIGKILL)
        return None, 0.0
    lines = [json.loads(line) for line in said.splitlines()]
    if not lines or "status" not in lines[-1]:
        raise RuntimeError(f"the fork server ended; it had reported {said!r}")
    return int(lines[-1]["status"]), float(lines[-1]["processor_s"])


@functools.lru_cache(maxsize=1)
def _start() -> ForkServer:
    server = ForkServer()
    atexit.register(server.close)
    return server


_starting = threading.Lock()


def _server() -> ForkServer:
    """The one of this process, started when it is first needed."""
    with _starting:
        return _start()


def forked() -> tuple[int | None, float]:
    """The fork server where it is a child of this process, and the processor seconds of all that it
    did for this process."""
    if not _start.cache_info().currsize:
        return None, 0.0
    return _server().pid, _server().processor_s
