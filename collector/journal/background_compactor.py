"""Starts the process that compacts a run recorded without `lanescope record`.

The recorded program must not notice it: no child in its `os.wait()`, no SIGCHLD, no pipe held
open. A child made by clone(2) without an exit signal is invisible to wait(2). It runs the C
library's `system`, whose shell starts the compactor in the background, where init adopts it.
`observer/journal/background_compactor.cpp` does the same for the native engine.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import socket
import sys
from pathlib import Path

from ..format.options import RUN_VARIABLE
from .own_threads import signals_blocked

LOCK = ".follower-"
"""Prefix of a file in the run, before the host's name: holds the compactor's process id."""

FIRST_SEGMENT = 4
REPEAT_SEGMENTS = 64
"""A thread starts the compactor with its segment of number 4 (90,000 records so far), and every 64
segments of 4 MB after that, in case the compactor was killed."""

# One compactor per run and host: the shell that creates the lock file becomes the compactor and
# keeps its process id. A lock file of a dead process is taken over.
_SCRIPT = """
set -C
if ! echo $$ > "$2"; then
  kill -0 "$(cat "$2")" && exit
  rm -f "$2"
  echo $$ > "$2" || exit
fi
exec "$0" -m lanescope.collector.session.compactor_process "$1" "$2"
"""

_VM, _VFORK, _WALL = 0x100, 0x4000, 0x40000000  # of sched.h and wait.h
_GET_CHILD_SUBREAPER = 37  # of prctl.h
_STACK_BYTES = 256 * 1024


def follower_command(run: Path) -> bytes:
    """Returns the shell command that starts a compactor of `run`; empty if it would be noticed."""
    if sys.platform != "linux" or not sys.executable or _adopts_orphans():
        return b""
    lock = run / f"{LOCK}{socket.gethostname()}"
    follower = shlex.join(["sh", "-c", _SCRIPT, sys.executable, str(run), str(lock)])
    return os.fsencode(f"unset {RUN_VARIABLE}; exec </dev/null >/dev/null 2>&1; {follower} &")


def _adopts_orphans() -> bool:
    """Returns True if a child's orphans become children of this process."""
    answer = ctypes.c_int()
    ctypes.CDLL(None).prctl(_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return os.getpid() == 1 or bool(answer.value)


def is_due(segment: int) -> bool:
    """Returns True if a thread starts the compactor with this segment."""
    return segment % REPEAT_SEGMENTS == FIRST_SEGMENT


def start_process(command: bytes) -> None:
    """Runs the command; takes a few milliseconds. Raises OSError or AttributeError."""
    library = ctypes.CDLL(None, use_errno=True)
    clone = library.clone
    clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    stack = ctypes.create_string_buffer(_STACK_BYTES)
    top = (ctypes.addressof(stack) + _STACK_BYTES) & ~0xF
    system = ctypes.cast(library.system, ctypes.c_void_p)
    # The child briefly shares this process's memory: no signal handler may run in it.
    with signals_blocked():
        child = clone(system, top, _VM | _VFORK, command)
        if child < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        os.waitpid(child, _WALL)
