"""What the threads of this process do, as Linux counts it: processor time, waits, I/O.

Read from /proc/self/task only while nothing is recorded. `Sample.of` reads; the rest is arithmetic
on what was read, so that it can be tested without threads.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..journal import own_files

PROC = Path("/proc/self")

_FUTEX = {"x86_64": 202, "aarch64": 98}
_EPOLL_WAIT = {"x86_64": (232, 281), "aarch64": (22,)}
_PRIVATE, _COMMANDS = 128, ~(128 | 256)
_WAITING_FUTEX = (0, 9)  # FUTEX_WAIT, FUTEX_WAIT_BITSET
_GLOO = (64, 10)
"""Events and milliseconds of the epoll_wait in which gloo's loop waits for its sockets."""

_BYSTANDERS = ("pt_autograd_", "pt_gloo", "pt_nccl", "pt_tcpstore", "cuda-EvtHandlr", "cuda0")
"""How torch and CUDA call threads of theirs that never wake a thread of the program by themselves:
they serve what others have asked for."""

OWN = "lanescope"
"""The recorder's threads are called so."""


@dataclass(frozen=True)
class ThreadState:
    """A thread at an instant; times and counts are since it began."""

    name: str
    state: str = "S"  # as in stat: R runs or wants to, S waits, D waits for a disk, T is stopped
    used_ns: int = 0  # processor time
    ready_ns: int = 0  # time that it waited for a processor
    moved_bytes: int = 0  # read and written
    faults: int = 0  # pages that had to be read from a disk
    yielded: int = 0  # times that it gave up its processor by itself, to wait for something
    preempted: int = 0  # times that it was taken away
    call: tuple[int, ...] | None = None  # system call it waits in: number and arguments

    @property
    def sleeps(self) -> bool:
        """Whether it waits, without a limit, for what only a thread of its process can bring."""
        return self._futex() and bool(self._command() & _PRIVATE) and self._timeout() == 0

    @property
    def waits_for_thread(self) -> bool:
        """The same, also with a limit of time, or for another process."""
        return self._futex()

    @property
    def bystander(self) -> bool:
        """Whether it belongs to torch or CUDA and wakes none of the program's by itself."""
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
class Sample:
    """All threads but the recorder's own, by the system's thread id."""

    time_ns: int
    threads: Mapping[int, ThreadState] = field(default_factory=dict)
    traced: bool = False  # a debugger is attached
    known: bool = True  # False: the system does not say what threads wait in

    @classmethod
    def of(cls, time_ns: int, proc: Path = PROC) -> Sample:
        """What there is now. Never raises."""
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
        return cls(time_ns, threads, _traced(proc), known)


def call_own_thread(name: str) -> None:
    """Gives the calling thread a name by which `Sample` knows it as the recorder's."""
    with contextlib.suppress(OSError):
        own_files.write("/proc/thread-self/comm", f"{OWN}-{name}"[:15].encode())


def _read(task: Path) -> ThreadState | None:
    """None: it has ended."""
    try:
        head, _, tail = _text(task / "stat").rpartition(")")
        fields = tail.split()
        status = _numbers(task / "status")
        used, ready = _times(task, int(fields[11]) + int(fields[12]))
    except (OSError, ValueError, IndexError):
        return None
    moved = _numbers(task / "io")
    return ThreadState(
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
    """The lines `name: number` of a file; none where it cannot be read."""
    with contextlib.suppress(OSError):
        lines = (line.partition(":") for line in _text(path).splitlines())
        return {name: int(text) for name, _, text in lines if text.strip().isdigit()}
    return {}


def _call(path: Path) -> tuple[int, ...] | None:
    """Number and arguments of the system call; None: it runs, or that is not known."""
    try:
        number, *arguments = _text(path).split()
        return (int(number), *(int(text, 16) for text in arguments))
    except (OSError, ValueError):
        return None


def _traced(proc: Path) -> bool:
    return _numbers(proc / "status").get("TracerPid", 0) != 0
