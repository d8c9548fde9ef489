"""Detects that a process makes no progress, and dumps the activity of all its threads.

Progress is a record of any thread. The recorder's own thread checks once a second; if Python's lock
is stuck, observer/watchdog/watchdog.cpp checks instead (native engine). A dump is one line of JSON
in `stalls.jsonl` of the process's journal, decoded by `decode_stalls.py`.

A process without records may hang, compute, or wait for a processor, a disk or an answer. It is
aborted only if it certainly cannot continue: `rest.py` decides whether all threads rest and what
they wait for, `peers.py` whether the processes that it waits for can continue.
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
from typing import Any

from ..compaction.decode_stalls import activity
from ..journal import clock, own_files, own_threads
from ..journal.journal import ALIVE_FILE, QUIET_FILE, STALLS_FILE, json_bytes
from ..recorder.messages import say
from ..recorder.recorder import Recorder
from .forked_children import is_alone, stuck_children
from .native_stacks import free_signal, stacks_file
from .peers import Peers, RestNote, write_note
from .rest import BUSY, MAX_GAP, Rest, RestState, ThreadWait, rest_state, share_of_core
from .thread_dump import describe_thread, name_of, native_id, read_stacks, thread_wait
from .thread_states import ProcessSample, call_own_thread

LOOK_S, FIRST_LOOK_S = 1.0, 0.1
_QUIET_NS, MAX_QUIET_NS = 2_000_000_000, 16_000_000_000
"""After this time without a record, threads are dumped silently, in case the process is killed
before the timeout. The time doubles whenever the process continued: a program with regular pauses
is not dumped at each of them."""

INTERRUPT_NS = 3_000_000_000
"""A rest that ended so short a time before KeyboardInterrupt ended the program was ended by it."""

LOOKS_PER_TIMEOUT = 8
"""Samples of the threads within the timeout."""

ABORT_STATUS = 1
_INSTANT = struct.Struct("<q")


class Watchdog:
    """Watches this process from `start` to `stop`."""

    def __init__(
        self,
        recorder: Recorder,
        library: Any,
        holder: Callable[[int], int | None],
        is_library: Callable[[str], bool],
    ) -> None:
        """`holder`: number of a lock -> ident of its owner; `is_library`: file -> True if it does
        not belong to the program."""
        options = recorder.options
        self._recorder = recorder
        self._library = library
        self._holder = holder
        self._is_library = is_library
        self._timeout = options.hang_timeout_ns
        self._action = options.on_hang
        self._running = 0  # serial of the thread that checks
        self._alive: own_files.Mapping | None = None
        self._stacks: own_files.Descriptor | None = None  # written by faulthandler
        self._signal = 0
        self._step = min(LOOK_S, self._timeout / (LOOKS_PER_TIMEOUT * 1e9) or LOOK_S)
        self._peers: Peers | None = None

    def start(self, *, forked: bool = False) -> None:
        """Starts checking; also in a forked child, which has none of the parent's threads."""
        self._forked = forked
        self._forget_end()  # in a child, the parent's
        self._mark, self._since, self._due = 0, clock.now(), self._timeout
        self._before: tuple[int, ProcessSample] | None = None
        # Watched time excludes that in which the process was stopped or the machine slept.
        self._looked, self._watched, self._watched_since = self._since, 0, 0
        self._rest, self._sample_due, self._peers = Rest(), 0, None
        # Before the timeout: a rank that aborts terminates its workers, which must have dumped.
        self._quiet = min(_QUIET_NS, self._timeout // 2 or _QUIET_NS)
        self._quiet_due, self._quiet_noted = self._quiet, False
        self._last_quiet: tuple[int, dict[str, Any]] | None = None  # last seen at rest so, its dump
        self._close_alive()
        self._running += 1
        self._opening = threading.RLock()  # in a forked child, the parent's may never be released
        own_threads.start_thread(self._run, self._running)

    def stop(self) -> None:
        """Stops checking."""
        with self._opening:  # the thread must not open files afterwards
            self._running += 1
        if self._library is not None:
            self._library.stop_watching()
        if self._signal:
            faulthandler.unregister(self._signal)
            self._signal = 0
        self._forget_end()
        self._close_alive()

    def _close_alive(self) -> None:
        alive, self._alive = self._alive, None
        if alive is not None:
            alive.close()

    def interrupted(self) -> None:
        """Keeps the last quiet dump where KeyboardInterrupt ended the rest that it shows."""
        self.keep_last("interrupt")

    def keep_last(self, reason: str) -> None:
        """Keeps the last quiet dump, if the rest that it shows has just ended."""
        folder, quiet = self._recorder.folder, self._last_quiet
        if folder is not None and quiet is not None and clock.now() - quiet[0] <= INTERRUPT_NS:
            dump = {**quiet[1], "reason": reason}
            own_files.write(folder / STALLS_FILE, json_bytes(dump) + b"\n", os.O_APPEND)

    def _run(self, serial: int) -> None:
        call_own_thread("watch")
        while serial == self._running:
            # Without a folder, a signal that ends the process cannot be noted: look soon.
            time.sleep(self._step if self._alive is not None else min(self._step, FIRST_LOOK_S))
            collects = own_threads.pause_collection()
            try:
                with self._recorder.contain_errors():
                    self._look(serial)
            finally:
                own_threads.resume_collection(collects)

    def _look(self, serial: int) -> None:
        recorder = self._recorder
        if recorder.folder is None or recorder.closed or serial != self._running:
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
        with contextlib.suppress(ValueError):  # closed meanwhile
            _INSTANT.pack_into(alive.view, 0, now)
        with contextlib.suppress(OSError):  # writing to a mapping does not update the file's time
            os.utime(recorder.folder / ALIVE_FILE)
        if self._stacks is not None and not self._stacks.is_ours():
            self._forget_end()  # the program closed it
        self._watched += min(now - self._looked, round(MAX_GAP * self._step * 1e9))
        self._looked = now
        if recorder.bound.look(recorder.folder, os.getpid(), *self._place()):
            recorder.thin()
        # A program without steps that is not recorded for want of room shows no progress.
        mark = self._progress()
        unseen = not recorder.ordering or (recorder.bound.full and not recorder.step)
        if mark != self._mark or unseen:
            if self._quiet_noted:
                self._quiet = min(2 * self._quiet, MAX_QUIET_NS)
            self._forget(recorder.folder)
            self._mark, self._since, self._due = mark, now, self._timeout
            self._watched_since, self._sample_due = self._watched, 0
            self._quiet_due, self._before = self._quiet, None
            self._rest.forget()
            return
        self._look_at_rest(recorder.folder, now, self._watched - self._watched_since)

    def _look_at_rest(self, folder: Path, now: int, idle: int) -> None:
        """Checks a process without records for `idle` ns."""
        if self._quiet_noted and self._last_quiet is not None:
            self._last_quiet = now, self._last_quiet[1]
        stalled = bool(self._timeout) and idle >= self._due
        quiet = self._due == self._timeout and idle >= self._quiet_due  # no stall was reported yet
        if self._timeout and (stalled or idle >= self._sample_due):
            self._sample_due = idle + max(
                self._timeout // LOOKS_PER_TIMEOUT, round(self._step * 1e9)
            )
            self._rest.look(ProcessSample.of(self._watched))
            if self._ends(folder, now):
                self._stalled(folder, now, abort=True)
        if self._before is None and idle >= min(self._quiet_due, self._due or self._quiet_due) / 2:
            self._before = now, ProcessSample.of(now)
        if stalled:
            self._due *= 2
            self._stalled(folder, now, abort=False)
        elif quiet:
            self._quiet_due *= 2
            self._note(folder, now, now - self._since)
        else:
            return
        self._before = now, ProcessSample.of(now)

    def _ends(self, folder: Path, now: int) -> bool:
        """Returns True if this process certainly cannot continue and is to be aborted.

        Also notes its state for other processes, even if it is not to be aborted itself.
        """
        if self._action != "abort" or self._rest.rested_ns < self._timeout // 2:
            return False
        waits = self._waits(now)
        own = rest_state(self._rest, waits, handlers=self._handles_signals())
        # The first look came a pause after the last record.
        rested = self._rest.rested_ns + round(MAX_GAP * self._step * 1e9)
        write_note(folder, RestNote(now, rested, own))
        if rested < self._timeout or not self._is_rank():
            return False
        return self._cannot_go_on(folder, own) and self._unmoved()

    def _cannot_go_on(self, folder: Path, own: RestState) -> bool:
        """Returns True if neither this process nor those it waits for can continue."""
        if own is RestState.closed:
            return True
        peers = self._peers = self._peers or Peers(folder)
        if own is RestState.process:
            return peers.children_rest(self._timeout)
        world = int(self._recorder.process.get("world_size", 1))
        waits = own in (RestState.collective, RestState.threads) and world > 1
        return waits and peers.ranks_rest(world, own, self._timeout)

    def _progress(self) -> int:
        """Returns a number that records change, and steps, which may have none."""
        return self._recorder.store.progress() + self._recorder.step

    def _unmoved(self) -> bool:
        """Returns True if no thread moved while the state was determined, which takes a while."""
        return self._progress() == self._mark and self._rest.unmoved(
            ProcessSample.of(self._watched)
        )

    def _waits(self, now: int) -> list[ThreadWait]:
        dump = self._dump(now, 0)
        threads = dump["threads"] if dump is not None else []
        return [thread_wait(one, self._is_library) for one in threads]

    def _handles_signals(self) -> bool:
        """Returns True if the program has signal handlers, for which it may wait."""
        handlers = (signal.getsignal(number) for number in signal.valid_signals())
        codes = (
            getattr(one, "__code__", None) or getattr(type(one).__call__, "__code__", None)
            for one in handlers
            if callable(one)
        )
        return any(code is not None and not self._is_library(code.co_filename) for code in codes)

    def _note(self, folder: Path, now: int, idle: int) -> None:
        """Writes the quiet dump, replacing the earlier one."""
        dump = self._dump(now, idle)
        if dump is not None:
            with contextlib.suppress(OSError):
                new = folder / f"{QUIET_FILE}.new"
                own_files.write(new, json_bytes({**dump, "reason": "quiet"}) + b"\n")
                new.replace(folder / QUIET_FILE)
                self._quiet_noted, self._last_quiet = True, (now, dump)

    def _forget(self, folder: Path) -> None:
        if self._quiet_noted:
            self._quiet_noted = False
            (folder / QUIET_FILE).unlink(missing_ok=True)

    def _open(self, folder: Path) -> own_files.Mapping | None:
        """Opens the files of this room; None if the run is finished and its journal gone."""
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
        """Starts the observer's watchdog, which also notes signals that end the process."""
        number, self._signal = 0, free_signal()
        file = stacks_file(folder) if self._signal else None
        if file is None:
            self._signal = 0
        else:
            # faulthandler needs an open file and keeps its number: the observer reopens it under
            # that number during a dump.
            number = file.number
            faulthandler.register(self._signal, file=number, all_threads=True)
            file.close()
        abort = self._action == "abort" and self._is_rank()
        place = os.fsencode(folder)
        self._library.watch(place, self._signal, number, self._timeout, int(abort))

    def _note_end(self, folder: Path) -> None:
        # faulthandler's handler in C needs no lock; then the signal takes effect. It dumps the
        # main thread alone: the others continue, and reading the stack of one that just ends
        # could crash the process.
        file = self._stacks = stacks_file(folder)
        if file is not None:
            faulthandler.register(signal.SIGTERM, file=file.number, all_threads=False, chain=True)

    def _forget_end(self) -> None:
        file, self._stacks = self._stacks, None
        if file is not None:
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else the program's own is lost
                faulthandler.unregister(signal.SIGTERM)
            file.close()

    def _place(self) -> tuple[int, int]:
        """Returns the rank and the number of ranks."""
        process = self._recorder.process
        return int(process.get("rank", 0)), max(1, int(process.get("world_size", 1)))

    def _is_rank(self) -> bool:
        # Children of a rank (data-loader workers) may wait for it for long.
        return self._recorder.process.get("role") == "rank"

    def _dump(self, now: int, idle: int) -> dict[str, Any] | None:
        """Returns a dump of all threads; None in a launcher: it ran no operator, was not forked,
        and waits for processes that it started."""
        assert self._recorder.folder is not None
        known = activity(self._recorder.folder)
        did = any(doing["last_op"] or doing["collective"] for doing in known.values())
        awaited = did or self._forked or self._recorder.process.get("expected")
        if not awaited and not (known and self._recorder.ordering and is_alone()):
            return None
        self._name_owners(known)
        share = self._shares(now)
        threads = [
            describe_thread(ident, stack, known, share) for ident, stack in read_stacks().items()
        ]
        threads += stuck_children(self._recorder.folder)
        return {"time_ns": now, "duration_ns": idle, "threads": threads}

    def _shares(self, now: int) -> dict[int, float]:
        """Returns by native id `share_of_core` of each thread."""
        if self._before is None:
            return {}
        then, before = self._before
        return {
            tid: share_of_core(old, thread, max(1, now - then))
            for tid, thread in ProcessSample.of(now).threads.items()
            if (old := before.threads.get(tid)) is not None
        }

    def _name_owners(self, known: dict[int, dict[str, Any]]) -> None:
        for doing in known.values():
            if doing["lock"] is None:
                continue
            holder = vars(threading)["_active"].get(self._holder(doing["lock"]))
            found = known.get(native_id(holder)) if holder is not None else None
            if holder is not None and found is not None:
                doing["owner"] = found["ordinal"]
                doing["waiting"] = f"a lock that {name_of(holder)} holds"

    def _stalled(self, folder: Path, now: int, *, abort: bool) -> None:
        recorder = self._recorder
        idle = now - self._since
        dump = self._dump(now, idle)
        if dump is None:
            return
        main = next((t for t in dump["threads"] if t["native_id"] == os.getpid()), None)
        # A long computation is not a hang unless other ranks wait for it, which they report.
        working = main is not None and (main["cpu"] or 0) >= BUSY and not main["collective"]
        dump["reason"] = "abort" if abort else "no_progress"
        own_files.write(folder / STALLS_FILE, json_bytes(dump) + b"\n", os.O_APPEND)
        # It replaces the quiet one, also where Ctrl-C ends this rest later.
        (folder / QUIET_FILE).unlink(missing_ok=True)
        self._quiet_noted, self._last_quiet = True, (now, dump)
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
    """Terminates data-loader workers and the like, as multiprocessing does at an orderly exit."""
    module: Any = sys.modules.get("multiprocessing")
    for child in module.active_children() if module is not None else ():
        if child.daemon:
            child.terminate()
