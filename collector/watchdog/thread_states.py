"""Samples the threads of this process (Linux): processor time, waits, I/O.

Reads /proc/self/task, only while nothing is recorded. `ProcessSample.of` reads; the rest is
arithmetic, which can be tested without threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..journal import own_files

PROC = Path("/proc/self")

_SET_NAME = 15  # of prctl.h
_FUTEX = {"x86_64": 202, "aarch64": 98}
_EPOLL_WAIT = {"x86_64": (232, 281), "aarch64": (22,)}
_PRIVATE, _COMMANDS = 128, ~(128 | 256)
_WAITING_FUTEX = (0, 9)  # FUTEX_WAIT, FUTEX_WAIT_BITSET
_GLOO = (64, 10)
"""Events and milliseconds of the epoll_wait in which gloo's loop waits for its sockets."""

_BYSTANDERS = ("pt_autograd_", "pt_gloo", "pt_nccl", "pt_tcpstore", "cuda-EvtHandlr", "cuda0")
"""Names of threads of torch and CUDA that serve requests and never wake a thread of the program by
themselves."""

OWN = "lanescope"
"""Prefix of the names of the recorder's threads."""


@dataclass(frozen=True)
class ThreadSample:
    """A thread at an instant; times and counts are since its start."""

    name: str
    state: str = "S"  # as in stat: R runs or is ready, S waits, D waits for a disk, T is stopped
    used_ns: int = 0  # processor time
    ready_ns: int = 0  # time waiting for a processor
    moved_bytes: int = 0  # read and written
    faults: int = 0  # pages read from a disk
    yielded: int = 0  # voluntary context switches
    preempted: int = 0  # involuntary context switches
    call: tuple[int, ...] | None = None  # system call that it waits in: number and arguments

    @property
    def sleeps(self) -> bool:
        """True if it waits without a timeout for a thread of its own process."""
        return self._futex() and bool(self._command() & _PRIVATE) and self._timeout() == 0

    @property
    def bystander(self) -> bool:
        """True if it belongs to torch or CUDA and never wakes the program's threads by itself."""
        if self.name.startswith(_BYSTANDERS):
            return True
        epoll = _EPOLL_WAIT.get(platform.machine(), ())
        call = self.call
        return call is not None and call[0] in epoll and call[3:5] == _GLOO

    def _futex(self) -> bool:
        call = self.call
        if call is None or call[0] != _FUTEX.get(platform.machine()):
            return False
        return self._command() & _COMMANDS in _WAITING_FUTEX

    def _command(self) -> int:
        return self.call[2] if self.call is not None else 0

    def _timeout(self) -> int:
        return self.call[4] if self.call is not None else 0


@dataclass(frozen=True)
class ProcessSample:
    """All threads except the recorder's, by native id."""

    time_ns: int
    threads: Mapping[int, ThreadSample] = field(default_factory=dict)
    traced: bool = False  # a debugger is attached
    known: bool = True  # False: system calls of threads cannot be read

    @classmethod
    def of(cls, time_ns: int, proc: Path = PROC) -> ProcessSample:
        """Samples the threads now. Never raises."""
        threads = {}
        known = False
        try:
            entries = os.listdir(proc / "task")
        except OSError:
            return cls(time_ns, known=False)
        for entry in entries:
            found = _read(proc / "task" / entry)
            if found is not None and not found.name.startswith(OWN):
                threads[int(entry)] = found
                known = known or found.call is not None
        return cls(time_ns, threads, _numbers(proc / "status").get("TracerPid", 0) != 0, known)


def call_own_thread(name: str) -> None:
    """Names the calling thread so that `ProcessSample` leaves it out.

    Opens no file: a forked child may be giving out descriptors at this moment, and `os.dup2` to a
    number that another thread is about to get fails.
    """
    with contextlib.suppress(AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_SET_NAME, f"{OWN}-{name}".encode())


def _read(task: Path) -> ThreadSample | None:
    """Reads a thread; None: it has ended."""
    try:
        head, _, tail = _text(task / "stat").rpartition(")")
        fields = tail.split()
        status = _numbers(task / "status")
        used, ready = _times(task, int(fields[11]) + int(fields[12]))
    except (OSError, ValueError, IndexError):
        return None
    moved = _numbers(task / "io")
    return ThreadSample(
        name=head.partition("(")[2],
        state=fields[0],
        used_ns=used,
        ready_ns=ready,
        moved_bytes=moved.get("rchar", 0) + moved.get("wchar", 0),
        faults=int(fields[9]),
        yielded=status.get("voluntary_ctxt_switches", 0),
        preempted=status.get("nonvoluntary_ctxt_switches", 0),
        call=_call(task / "syscall"),
    )


def _text(path: Path) -> str:
    return own_files.read(path).decode(errors="replace")


def _times(task: Path, ticks: int) -> tuple[int, int]:
    """Processor time, and time without one, ns; of the latter 0 where the system does not count."""
    try:
        used, ready = _text(task / "schedstat").split()[:2]
    except (OSError, ValueError):
        return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK"), 0
    return int(used), int(ready)


def _numbers(path: Path) -> dict[str, int]:
    """Returns the lines `name: number` of a file; empty if it cannot be read."""
    with contextlib.suppress(OSError):
        lines = (line.partition(":") for line in _text(path).splitlines())
        return {name: int(text) for name, _, text in lines if text.strip().isdigit()}
    return {}


def _call(path: Path) -> tuple[int, ...] | None:
    """Returns number and arguments of the system call; None: the thread runs, or not known."""
    try:
        number, *arguments = _text(path).split()
        return (int(number), *(int(text, 16) for text in arguments))
    except (OSError, ValueError):
        return None
