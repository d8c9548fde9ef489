"""Notices that a process makes no progress, and writes down what every thread of it is doing.

Progress is a record of any thread. A thread of its own looks once a second; where Python's lock is
stuck, observer/watchdog/watchdog.cpp looks in its place (native engine). A dump is one line of JSON
in `stalls.jsonl` of the process's journal, which `decode_stalls.py` decodes.

A process that records nothing may be hung, or compute, or wait for a processor, a disk or an
answer. It is ended only where it is certain that it cannot go on: `rest.py` says whether any thread
did anything, and how the process stands; `peers.py` how those stand that it waits for.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from ..compaction.decode_stalls import activity
from ..journal import clock, own_files, own_threads
from ..journal.journal import (
    ALIVE_FILE,
    QUIET_FILE,
    STALL_STACKS_FILE,
    STALLS_FILE,
    json_bytes,
)
from ..recorder.messages import say
from ..recorder.recorder import Recorder
from .peers import Note, Peers
from .peers import write as write_note
from .rest import BUSY, LONGEST_GAP, Actor, Rest, Standing, standing
from .system_calls import waits_for
from .thread_states import Sample, call_own_thread

LOOK_S, FIRST_LOOK_S = 1.0, 0.1
QUIET_NS, LONGEST_QUIET_NS = 2_000_000_000, 16_000_000_000
"""After so long without a record the threads are looked at in silence, in case the process is
killed before the timeout. After twice the time whenever it went on: a program that pauses now and
then is not looked at every time."""

FRAMES = 40
"""Frames kept of each stack, innermost first."""

LOOKS = 8
"""Times that the threads are looked at within the timeout."""

ABORT_STATUS = 1
_INSTANT = struct.Struct("<q")
_OWN = str(Path(__file__).parents[1]) + os.sep
_LOCKS = os.path.join(_OWN, "hooks", "threads", "locks.py")
"""Whose function is the innermost of a stack waits for a lock."""


class Watchdog:
    """Watches this process from `start` to `stop`."""

    def __init__(
        self,
        recorder: Recorder,
        library: Any,
        holder: Callable[[int], int | None],
        is_library: Callable[[str], bool],
    ) -> None:
        """`holder` tells by a lock's number the ident of the thread that holds it, `is_library` by
        a file whether its code is not the program's own."""
        options = recorder.options
        self._recorder = recorder
        self._library = library
        self._holder = holder
        self._is_library = is_library
        self._timeout = options.hang_timeout_ns
        self._action = options.on_hang
        self._running = 0  # serial of the thread that looks
        self._alive: own_files.Mapping | None = None
        self._stacks: own_files.Descriptor | None = None  # what a handler in C writes to
        self._signal = 0
        self._step = min(LOOK_S, self._timeout / (LOOKS * 1e9)) if self._timeout else LOOK_S
        self._peers: Peers | None = None

    def start(self) -> None:
        """Begin looking, also in a forked child, where no thread of the parent is."""
        self._forget_end()  # which would be the parent's
        self._mark, self._since, self._due = 0, clock.now(), self._timeout
        self._before: tuple[int, Sample] | None = None
        # Time that was looked at: not that in which the process was stopped, or the machine slept.
        self._looked, self._watched, self._watched_since = self._since, 0, 0
        self._rest, self._sample_due, self._peers = Rest(), 0, None
        # Before the timeout: a rank that aborts then ends its workers, which are to have looked.
        self._quiet = min(QUIET_NS, self._timeout // 2 or QUIET_NS)
        self._quiet_due, self._quiet_told = self._quiet, False
        self._alive = None
        self._running += 1
        self._opening = threading.Lock()  # a parent's may be taken for ever
        own_threads.start(self._run, self._running)

    def stop(self) -> None:
        """Look no more."""
        with self._opening:  # a thread that is about to open must not do so afterwards
            self._running += 1
        if self._library is not None:
            self._library.stop_watching()
        if self._signal:
            faulthandler.unregister(self._signal)
            self._signal = 0
        self._forget_end()
        self._alive = None

    def _run(self, serial: int) -> None:
        call_own_thread("watch")
        while serial == self._running:
            # Until there is a folder, no signal that ends the process can be noted.
            time.sleep(self._step if self._alive is not None else min(self._step, FIRST_LOOK_S))
            if serial != self._running:
                return
            with self._recorder.guarded():
                self._look(serial)

    def _look(self, serial: int) -> None:
        recorder = self._recorder
        if recorder.folder is None or recorder.closed:
            return
        alive = self._alive
        if alive is None:
            with self._opening:
                alive = self._open(recorder.folder) if serial == self._running else None
            if alive is None:
                return
        if self._library is not None:
            self._library.watched()
        now = clock.now()
        with contextlib.suppress(ValueError):  # closed at this moment
            _INSTANT.pack_into(alive.view, 0, now)
        with contextlib.suppress(OSError):  # storing into a mapped file leaves its age as it is
            os.utime(recorder.folder / ALIVE_FILE)
        if self._stacks is not None and not self._stacks.is_ours():
            self._forget_end()  # the program closed it
        self._watched += min(now - self._looked, round(LONGEST_GAP * self._step * 1e9))
        self._looked = now
        mark = recorder.store.progress()
        if mark != self._mark or not recorder.active:  # of steps left out there are no records
            if self._quiet_told:
                self._quiet = min(2 * self._quiet, LONGEST_QUIET_NS)
            self._forget(recorder.folder)
            self._mark, self._since, self._due = mark, now, self._timeout
            self._watched_since, self._sample_due = self._watched, 0
            self._quiet_due, self._before = self._quiet, None
            self._rest.forget()
            return
        self._look_at_rest(recorder.folder, now, self._watched - self._watched_since)

    def _look_at_rest(self, folder: Path, now: int, idle: int) -> None:
        """Nothing was recorded for `idle`."""
        stalled = bool(self._timeout) and idle >= self._due
        quiet = self._due == self._timeout and idle >= self._quiet_due  # no stall told of it yet
        if self._timeout and (stalled or idle >= self._sample_due):
            self._sample_due = idle + max(self._timeout // LOOKS, round(self._step * 1e9))
            self._rest.look(Sample.of(self._watched))
            if self._ends(folder, now):
                self._stalled(folder, now, abort=True)
        if self._before is None and idle >= min(self._quiet_due, self._due or self._quiet_due) / 2:
            self._before = now, Sample.of(now)
        if stalled:
            self._due *= 2
            self._stalled(folder, now, abort=False)
        elif quiet:
            self._quiet_due *= 2
            self._note(folder, now, now - self._since)
        else:
            return
        self._before = now, Sample.of(now)

    def _ends(self, folder: Path, now: int) -> bool:
        """Whether it is certain that this process cannot go on, and it is to be ended then.

        Others that wait for it are told how it stands, also where it is not to be ended itself.
        """
        if self._action != "abort" or self._rest.rested_ns < self._timeout // 2:
            return False
        actors = self._actors(folder, now)
        own = standing(self._rest, actors, handlers=self._handles_signals())
        # The first look was a pause after the last record.
        rested = self._rest.rested_ns + round(LONGEST_GAP * self._step * 1e9)
        write_note(folder, Note(now, rested, own))
        if rested < self._timeout or not self._is_rank():
            return False
        return self._cannot_go_on(folder, own) and self._unmoved()

    def _cannot_go_on(self, folder: Path, own: Standing) -> bool:
        """By how this process stands, and those that it waits for."""
        if own is Standing.closed:
            return True
        peers = self._peers = self._peers or Peers(folder)
        if own is Standing.process:
            return peers.children_rest(self._timeout)
        world = int(self._recorder.process.get("world_size", 1))
        waits = own in (Standing.collective, Standing.threads) and world > 1
        return waits and peers.ranks_rest(world, own, self._timeout)

    def _unmoved(self) -> bool:
        """Whether all is still as it was when it was looked at, which took a while."""
        return self._recorder.store.progress() == self._mark and self._rest.unmoved(
            Sample.of(self._watched)
        )

    def _actors(self, folder: Path, now: int) -> list[Actor]:
        dump = self._dump(now, 0)
        return [self._actor(one) for one in dump["threads"]] if dump is not None else []

    def _actor(self, thread: dict[str, Any]) -> Actor:
        files = [frame[0] for frame in thread["frames"]]
        inner = os.path.basename(files[0]) if files else ""
        library = all(map(self._is_library, files))
        return Actor(
            tid=thread["native_id"],
            main=thread["native_id"] == os.getpid(),
            ordinal=thread["ordinal"],
            owner=thread["owner"],
            # One begun and not waited for says nothing of what the thread does now.
            collective=bool(thread["collective"]) and inner not in _OTHER_WAITS,
            called=bool(thread["collective"]),
            known=bool(thread["waiting"]),
            # By the stack: in the journal every queue is a queue.
            process=_waiting(thread["frames"]) in _PROCESSES,
            service=library and not thread["last_op"] and not thread["collective"],
            harmless=library and bool(files) and any(f.endswith(_HARMLESS) for f in files),
        )

    def _handles_signals(self) -> bool:
        """Whether the program has handlers of its own, which may be what it waits for."""
        handlers = (signal.getsignal(number) for number in signal.valid_signals())
        codes = (
            getattr(one, "__code__", None) or getattr(type(one).__call__, "__code__", None)
            for one in handlers
            if callable(one)
        )
        return any(code is not None and not self._is_library(code.co_filename) for code in codes)

    def _note(self, folder: Path, now: int, idle: int) -> None:
        """Keep what the threads do, instead of what they did when it was looked at before."""
        dump = self._dump(now, idle)
        if dump is not None:
            with contextlib.suppress(OSError):
                new = folder / f"{QUIET_FILE}.new"
                own_files.write(new, json_bytes({**dump, "reason": "quiet"}) + b"\n")
                new.replace(folder / QUIET_FILE)
                self._quiet_told = True

    def _forget(self, folder: Path) -> None:
        if self._quiet_told:
            self._quiet_told = False
            (folder / QUIET_FILE).unlink(missing_ok=True)

    def _open(self, folder: Path) -> own_files.Mapping | None:
        """Begin to note stalls and ends; None where the run is finished, its journal gone."""
        try:
            self._alive = own_files.Mapping(folder / ALIVE_FILE, _INSTANT.size, os.O_CREAT)
            if self._library is not None:
                self._watch_natively(folder)
            elif signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                self._note_end(folder)
        except FileNotFoundError:
            return None
        return self._alive

    def _watch_natively(self, folder: Path) -> None:
        """Have the observer look as well, and note signals that end the process."""
        number, self._signal = 0, _free_signal()
        file = _stacks_file(folder) if self._signal else None
        if file is None:
            self._signal = 0
        else:
            # Python wants an open file, of which it keeps the number: the observer has it open
            # for the time of a dump.
            number = file.number
            faulthandler.register(self._signal, file=number, all_threads=True)
            file.close()
        abort = self._action == "abort" and self._is_rank()
        place = os.fsencode(folder)
        self._library.watch(place, self._signal, number, self._timeout, int(abort))

    def _note_end(self, folder: Path) -> None:
        # Written by the signal's handler in C, which no lock holds up; then it takes effect.
        # The stack of the thread that is told, the main one: the others run on, and to read
        # what one leaves behind that is just ending would end the process otherwise.
        file = self._stacks = _stacks_file(folder)
        if file is not None:
            faulthandler.register(signal.SIGTERM, file=file.number, all_threads=False, chain=True)

    def _forget_end(self) -> None:
        file, self._stacks = self._stacks, None
        if file is not None:
            faulthandler.unregister(signal.SIGTERM)
            file.close()

    def _is_rank(self) -> bool:
        # What a rank starts (data-loader workers) may well wait for it for long.
        return self._recorder.process.get("role") == "rank"

    def _dump(self, now: int, idle: int) -> dict[str, Any] | None:
        """What every thread does; None in a launcher, which waits for its workers."""
        assert self._recorder.folder is not None
        known = activity(self._recorder.folder)
        did = any(doing["last_op"] or doing["collective"] for doing in known.values())
        if not did and not self._recorder.process.get("expected"):
            return None
        self._name_owners(known)
        share = self._shares(now)
        threads = [
            _describe(ident, frame, known, share)
            for ident, frame in sys._current_frames().items()
            if ident != threading.get_ident()
        ]
        return {"time_ns": now, "duration_ns": idle, "threads": threads}

    def _shares(self, now: int) -> dict[int, float]:
        """By thread, the share of a core that it used, or would have if there had been one free."""
        if self._before is None:
            return {}
        then, before = self._before
        return {
            tid: (thread.used_ns + thread.ready_ns - old.used_ns - old.ready_ns)
            / max(1, now - then)
            for tid, thread in Sample.of(now).threads.items()
            if (old := before.threads.get(tid)) is not None
        }

    def _name_owners(self, known: dict[int, dict[str, Any]]) -> None:
        for doing in known.values():
            if doing["lock"] is None:
                continue
            holder = vars(threading)["_active"].get(self._holder(doing["lock"]))
            found = known.get(holder.native_id) if holder is not None else None
            if holder is not None and found is not None:
                doing["owner"] = found["ordinal"]
                doing["waiting"] = f"a lock that {holder.name} holds"

    def _stalled(self, folder: Path, now: int, *, abort: bool) -> None:
        recorder = self._recorder
        idle = now - self._since
        dump = self._dump(now, idle)
        if dump is None:
            return
        main = next((t for t in dump["threads"] if t["native_id"] == os.getpid()), None)
        # A long computation is no hang, unless others wait for it; they will say so.
        working = main is not None and (main["cpu"] or 0) >= BUSY and not main["collective"]
        dump["reason"] = "abort" if abort else "no_progress"
        own_files.write(folder / STALLS_FILE, json_bytes(dump) + b"\n", os.O_APPEND)
        self._forget(folder)  # the dump tells the same, and more
        if self._action != "continue" and self._is_rank():
            self._say(idle, main, working=working, abort=abort)
        if abort:
            recorder.describe(ended="abort", end_ns=now)
            with contextlib.suppress(Exception):
                _end_daemons()
            os._exit(ABORT_STATUS)

    def _say(self, idle: int, main: dict[str, Any] | None, *, working: bool, abort: bool) -> None:
        doing = "its main thread is gone"
        if main is not None:
            frames = main["frames"] or [["?", 0, "?"]]
            own = [frame for frame in frames if not self._is_library(frame[0])] or frames
            place = f"{own[0][0]}:{own[0][1]}"
            doing = f"computes in {place}" if working else f"waits in {place}"
            if main["waiting"]:
                doing += f" for {main['waiting']}"
        rank = self._recorder.process.get("rank", 0)
        end = ""
        if self._action == "abort":
            end = "; it cannot go on, and ends now" if abort else "; not ended: it may still go on"
        say(f"rank {rank}: nothing recorded for {idle / 1e9:.0f} s; {doing}{end}")


def _end_daemons() -> None:
    """Data-loader workers and the like, which multiprocessing ends with an orderly exit."""
    module: Any = sys.modules.get("multiprocessing")
    for child in module.active_children() if module is not None else ():
        if child.daemon:
            child.terminate()


def _describe(
    ident: int, frame: FrameType, known: dict[int, dict[str, Any]], share: dict[int, float]
) -> dict[str, Any]:
    thread = vars(threading)["_active"].get(ident)
    native = (thread.native_id if thread is not None else 0) or 0
    if thread is threading.main_thread():
        native = os.getpid()  # after os.fork, Python still has that of the parent
    doing = known.get(native, {})
    frames: list[list[Any]] = []
    current: FrameType | None = frame
    while current is not None and len(frames) < FRAMES:
        code = current.f_code
        if not code.co_filename.startswith(_OWN):
            frames.append([code.co_filename, current.f_lineno, code.co_name])
        current = current.f_back
    return {
        "native_id": native,
        "name": thread.name if thread is not None else "",
        "ordinal": doing.get("ordinal"),
        "cpu": round(share[native], 3) if native in share else None,
        "frames": frames,
        "last_op": doing.get("last_op", ""),
        "waiting": doing.get("waiting", "")
        or _waiting(frames)
        or ("a lock" if frame.f_code.co_filename == _LOCKS else "")
        or waits_for(native),
        "owner": doing.get("owner"),
        "collective": doing.get("collective"),
    }


_WAITS = {
    ("threading.py", "join"): "the end of a thread",
    ("threading.py", "_wait_for_tstate_lock"): "the end of a thread",
    ("threading.py", "wait"): "a condition or event",
    ("threading.py", "acquire"): "a semaphore",
    ("queue.py", "get"): "queue.get",
    ("queue.py", "put"): "queue.put",
    ("queues.py", "get"): "an item of another process's queue",
    ("connection.py", "wait"): "another process",
    ("connection.py", "_recv"): "another process",
    ("subprocess.py", "wait"): "the end of another process",
    ("selectors.py", "select"): "input",
    ("socket.py", "readinto"): "the network",
}
"""(file, function) of a stack's innermost frames -> what it waits for."""


_PROCESSES = frozenset({"another process", "an item of another process's queue"})

_OTHER_WAITS = frozenset(file for file, _ in _WAITS)
"""Files of Python in which a thread waits for anything but a collective."""

_HARMLESS = ("tqdm/_monitor.py",)
"""Threads of libraries that wake up by themselves, and are known to wake none of the program's."""


def _waiting(frames: list[list[Any]]) -> str:
    found = ""
    for file, _, function in frames[:4]:
        found = _WAITS.get((os.path.basename(file), function), found)
    return found


def _stacks_file(folder: Path) -> own_files.Descriptor | None:
    """Where stacks go that Python writes; None where no descriptor is free."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        return own_files.Descriptor.lasting(os.open(folder / STALL_STACKS_FILE, flags, 0o644))
    except FileNotFoundError:
        raise
    except OSError:
        return None


def _free_signal() -> int:
    """A signal that nobody has a use for; 0 where there is none."""
    last = int(getattr(signal, "SIGRTMAX", 0))
    for number in range(last - 2, max(last - 12, 0), -1):
        if signal.getsignal(number) is signal.SIG_DFL:
            return number
    return 0
