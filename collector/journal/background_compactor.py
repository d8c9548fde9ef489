"""Starts the process that compacts a run which no `lanescope record` watches over.

The recorded program must not notice it: no child that its `os.wait()` would find, no SIGCHLD, none
of its pipes held open. A child made by clone(2) without an exit signal is invisible to wait(2); it
runs the C library's `system`, whose shell leaves the follower behind, to be adopted by init.
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
"""In the run, with the host's name behind it: holds the follower's process id."""

FIRST_SEGMENT = 4
AGAIN = 64
"""A thread asks for a follower when it begins its segment of number 4 (90 000 records so far), and
every 64 segments of 4 MB after that, in case the follower was killed."""

# One follower per run and host: the shell that makes the lock file becomes the follower, keeping
# its process id. A file whose process is gone is taken over.
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
    """What a shell must do to start a follower of `run`; empty where it would be noticed."""
    if sys.platform != "linux" or not sys.executable or _adopts_orphans():
        return b""
    lock = run / f"{LOCK}{socket.gethostname()}"
    follower = shlex.join(["sh", "-c", _SCRIPT, sys.executable, str(run), str(lock)])
    return os.fsencode(f"unset {RUN_VARIABLE}; exec </dev/null >/dev/null 2>&1; {follower} &")


def _adopts_orphans() -> bool:
    """Whether what a child leaves behind becomes a child of this process."""
    answer = ctypes.c_int()
    ctypes.CDLL(None).prctl(_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return os.getpid() == 1 or bool(answer.value)


def is_due(segment: int) -> bool:
    """Whether a thread that begins this segment asks for a follower."""
    return segment % AGAIN == FIRST_SEGMENT


def start(command: bytes) -> None:
    """Run the command; takes some milliseconds, once. Raises OSError or AttributeError."""
    library = ctypes.CDLL(None, use_errno=True)
    clone = library.clone
    clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    stack = ctypes.create_string_buffer(_STACK_BYTES)
    top = (ctypes.addressof(stack) + _STACK_BYTES) & ~0xF
    system = ctypes.cast(library.system, ctypes.c_void_p)
    # The child shares this process's memory for a moment: none of its handlers may run there.
    with signals_blocked():
        child = clone(system, top, _VM | _VFORK, command)
        if child < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        os.waitpid(child, _WALL)
