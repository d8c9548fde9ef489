"""Describes the threads of this process for a dump: stack, operator, cause of the wait."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import termios
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from ..format.names import UNREAD_OUTPUT
from ..journal import own_threads
from .event_loops import WAITS, waiting_places
from .rest import ThreadWait
from .system_calls import waits_for
from .thread_frames import thread_frames

_MAX_FRAMES = 40
"""Frames kept of each stack, innermost first."""

_FULL = 0.75
"""Share of a pipe that is filled where its writer waits: what it writes next is longer."""

_OWN = str(Path(__file__).parents[1]) + os.sep

_WAITS = {
    ("threading.py", "join"): "the end of a thread",
    ("threading.py", "_wait_for_tstate_lock"): "the end of a thread",
    ("threading.py", "wait"): "a condition or event",
    ("threading.py", "acquire"): "a semaphore",
    ("queue.py", "get"): "an item of a queue",
    ("queue.py", "put"): "room in a queue",
    ("queues.py", "get"): "an item of another process's queue",
    ("connection.py", "wait"): "another process",
    ("connection.py", "_recv"): "another process",
    ("connection.py", "_send"): "another process",
    ("subprocess.py", "wait"): "the end of another process",
    ("selectors.py", "select"): "input",
    ("socket.py", "readinto"): "the network",
}
"""(file, function) of one of the innermost frames -> cause of the wait."""


_PROCESS_WAITS = frozenset({"another process", "an item of another process's queue"})

_WAITING_FILES = frozenset(file for file, _ in _WAITS)
"""Files of Python in which a thread waits for something other than a collective."""

_LOCKS = (type(threading.Lock()), type(threading.RLock()))

_HARMLESS_FILES = ("tqdm/_monitor.py", "multiprocessing/resource_sharer.py")
"""Files of threads that wake up by themselves and never wake a thread of the program."""


def native_id(thread: threading.Thread) -> int:
    """Returns the kernel's number of a thread; 0 if it is not known."""
    if thread is threading.main_thread():
        return os.getpid()  # after os.fork, Python still has the parent's
    return thread.native_id or 0


def name_of(thread: threading.Thread) -> str:
    """Returns the name of a thread, as the thread table has it."""
    return "main" if thread is threading.main_thread() else thread.name


class ThreadStack(NamedTuple):
    """Says where a thread was. A frame is [file, line, function]; innermost first."""

    frames: list[list[Any]]
    task: list[list[Any]]  # of a coroutine that the thread's event loop waits for
    process: Any  # subprocess.Popen whose end the thread waits for; None: of none


def read_stacks() -> dict[int, ThreadStack]:
    """Reads the stacks of all threads but the recorder's own, by ident."""
    with thread_frames() as frames:
        return {
            ident: _read_stack(frame)
            for ident, frame in frames.items()
            if not own_threads.is_own(ident)
        }


def _read_stack(innermost: FrameType) -> ThreadStack:
    task = waiting_places(innermost)
    frames, process = task[:_MAX_FRAMES], None
    frame: FrameType | None = innermost
    while frame is not None and len(frames) < _MAX_FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(_OWN):
            frames.append([code.co_filename, frame.f_lineno, code.co_name])
        if (os.path.basename(code.co_filename), code.co_name) == ("subprocess.py", "wait"):
            process = process or frame.f_locals.get("self")
        frame = frame.f_back
    return ThreadStack(frames, task, process)


def describe_thread(
    ident: int, stack: ThreadStack, known: dict[int, dict[str, Any]], share: dict[int, float]
) -> dict[str, Any]:
    """Returns a thread's entry of a dump.

    `known`: activity of threads by native id, from the journal; `share`: by native id, the share of
    a core.
    """
    thread = vars(threading)["_active"].get(ident)
    native = native_id(thread) if thread is not None else 0
    doing = known.get(native, {})
    frames = stack.frames
    cause = _unread_output(stack.process) or cause_of_wait(frames) or _acquires(thread, frames)
    cause = cause or waits_for(native)
    waiting = doing.get("waiting", "")
    if waiting == "a lock" and _inner(frames) == ("threading.py", "wait"):
        waiting = cause  # the lock is the condition's own, on which it sleeps
    return {
        "native_id": native,
        "name": name_of(thread) if thread is not None else "",
        "ordinal": doing.get("ordinal"),
        "cpu": round(share[native], 3) if native in share else None,
        "frames": frames,
        "last_op": doing.get("last_op", ""),
        "waiting": waiting or (WAITS if stack.task else cause),
        "owner": doing.get("owner"),
        "collective": doing.get("collective"),
    }


def _unread_output(process: Any) -> str:
    """Returns UNREAD_OUTPUT for a process that cannot write, whose end a thread waits for."""
    pipes = (getattr(process, name, None) for name in ("stdout", "stderr"))
    return UNREAD_OUTPUT if any(map(_is_full, pipes)) else ""


def _is_full(pipe: Any) -> bool:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or no pipe of Linux
        unread = array.array("i", [0])
        fcntl.ioctl(pipe.fileno(), termios.FIONREAD, unread)
        return unread[0] >= _FULL * fcntl.fcntl(pipe.fileno(), fcntl.F_GETPIPE_SZ)
    return False


def _acquires(thread: threading.Thread | None, frames: list[list[Any]]) -> str:
    """Returns what a thread waits for whose function is a lock's own, which has no frame."""
    inner = _inner(frames)
    target = getattr(thread, "_target", None) if inner == ("threading.py", "run") else None
    lock = isinstance(getattr(target, "__self__", None), _LOCKS)
    return "a lock" if lock and getattr(target, "__name__", "") in ("acquire", "__enter__") else ""


def _inner(frames: list[list[Any]]) -> tuple[str, str]:
    """File and function of the innermost frame."""
    return (os.path.basename(frames[0][0]), frames[0][2]) if frames else ("", "")


def thread_wait(thread: dict[str, Any], is_library: Callable[[str], bool]) -> ThreadWait:
    """Classifies the wait of a thread, by its entry of a dump."""
    files = [frame[0] for frame in thread["frames"]]
    inner = os.path.basename(files[0]) if files else ""
    library = all(map(is_library, files))
    return ThreadWait(
        tid=thread["native_id"],
        main=thread["native_id"] == os.getpid(),
        ordinal=thread["ordinal"],
        owner=thread["owner"],
        # An asynchronous collective does not say where the thread waits now.
        collective=bool(thread["collective"]) and inner not in _WAITING_FILES,
        called=bool(thread["collective"]),
        known=bool(thread["waiting"]),
        # By the stack: the journal does not distinguish queues of threads and processes.
        process=cause_of_wait(thread["frames"]) in _PROCESS_WAITS,
        service=library and not thread["last_op"] and not thread["collective"],
        harmless=library and bool(files) and any(f.endswith(_HARMLESS_FILES) for f in files),
    )


def cause_of_wait(frames: list[list[Any]]) -> str:
    """Returns what the innermost frames of a stack wait for, in words; empty: not known."""
    found = ""
    for file, _, function in frames[:4]:
        found = _WAITS.get((os.path.basename(file), function), found)
    return found
