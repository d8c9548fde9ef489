"""Where a process's events go: its folder, its texts, and a journal for each of its threads.

`Store` writes from Python. An engine that writes from elsewhere brings a store of its own with the
same methods, so that a thread has one journal and a text one id, whoever writes.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..format.record_kinds import PhaseKind, ThreadKind
from . import background_compactor, clock
from .journal import PROCESS_FILE, Kind, write_json
from .segment_ring import Ring
from .string_table import StringTable
from .writer import ThreadJournal

MAIN_ORDINAL = 0
KEPT_ORDINAL = 2**32 - 1
"""Of the journal that holds what no new record may overwrite; no thread has it."""


class ThreadState:
    """What the recorder keeps per thread. Only its own thread touches it."""

    def __init__(self, journal: ThreadJournal) -> None:
        self.journal = journal
        self.ordinal = journal.ordinal
        self.name = 0  # text of the name it is known under
        self.busy = False  # the recorder's own work: nothing is recorded meanwhile
        self.open = 0  # entries on the journal's stack of open events
        self.depth = 0  # nesting of ops
        self.phases: list[tuple[int, int, int, int, int]] = []  # name, kind, start, step, module
        self.phase = 0  # text of the innermost phase
        self.carried = 0  # text of the phase that the thread, or the task on it, was started in
        self.started = 0  # text of the stack that the thread, or the task on it, was started at
        self.phase_kind = int(PhaseKind.user)
        self.modules: list[int] = []  # texts of the paths of modules being called
        self.in_modules = 0  # how many they are
        self.module = 0  # the path of the innermost
        self.forward: int | None = None  # the phase that the outermost module opened
        self.scopes: list[Any] = []  # user scopes that have begun (portable engine)
        self.node: Any = None  # the autograd node whose ops are being seen (portable engine)

    def enter_module(self, module: int, path: int) -> None:
        """The thread calls a module, of that id and text of its path."""
        self.modules.append(path)
        self.module = path
        self.in_modules += 1

    def leave_module(self) -> int:
        """It leaves the innermost one, whose path is returned."""
        path = self.modules.pop()
        self.in_modules -= 1
        self.module = self.modules[-1] if self.modules else 0
        return path


class ModuleCalls(NamedTuple):
    """What an engine does at a call of a module without more of Python.

    The first two get the module, and return whether all has been done that there is to do.
    """

    entered: Callable[[Any], object]
    left: Callable[[Any], object]
    gone: Callable[[], object]  # to be called when a module is no more


class Store:
    """Journals written from Python. Nothing is on disk before the first thread enters."""

    def __init__(self, keep_last: int | None = None) -> None:
        self.texts = StringTable()
        self._keep_last = keep_last  # bytes
        self._follower = b""
        self._reset(Path())

    def begin(self, folder: Path) -> None:
        """Write into `folder` from now on; also in a forked child, which leaves the parent's."""
        self.texts.detach()
        self._reset(folder)

    def _reset(self, folder: Path) -> None:
        self._place = folder
        self._opened = False
        self._process: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._ordinals = itertools.count(MAIN_ORDINAL + 1)
        self._journals: dict[int, ThreadJournal] = {}
        self._ring = None if self._keep_last is None else Ring(self._keep_last)
        self._native: dict[int, ThreadState] = {}  # by the operating system's thread id
        self._coverage: Counter[str] = Counter()
        self._failure: OSError | None = None

    @property
    def folder(self) -> Path | None:
        """The process's folder, once something is in it."""
        return self._place if self._opened else None

    @property
    def failure(self) -> OSError | None:
        """Why events are being lost, if they are."""
        return self._failure or self.texts.failure

    def intern(self, text: str) -> int:
        """Id of a text in this process's table."""
        return self.texts.intern(text)

    def intern_signature(self, text: str) -> tuple[int, bool]:
        """The same for a text of shapes, dtypes and device, and whether it is that text's."""
        return self.texts.intern_signature(text)

    def moment(self, step: int, active: bool) -> None:
        """The training step of the moment, and whether it is recorded."""

    def describe(self, process: dict[str, Any]) -> None:
        """What process.json shall say, now or once there is a folder. Raises OSError."""
        self._process = process
        if self._opened:
            write_json(self._place / PROCESS_FILE, process)

    def follow(self, command: bytes) -> None:
        """What a shell must do to start a follower of the run, once a journal has become long."""
        self._follower = command

    # threads -------------------------------------------------------------------------------

    def reserve_thread(self) -> int:
        """An ordinal for a thread that is about to start."""
        return next(self._ordinals)

    def known_thread(self, native_id: int) -> ThreadState | None:
        """State of a thread that Python forgets after each of its calls, if it entered before."""
        return self._native.get(native_id)

    def enter(
        self, ordinal: int | None, native_id: int, kind: ThreadKind, name: str, started: int
    ) -> ThreadState:
        """Begin the calling thread's journal, under an ordinal reserved for it or the next."""
        with self._lock:
            self._open_folder()
        if ordinal is None:
            ordinal = self.reserve_thread()
        journal = ThreadJournal(
            self._place,
            pid=os.getpid(),
            ordinal=ordinal,
            native_id=native_id,
            kind=int(kind),
            created_ns=started,
            ring=self._ring,
            grown=self._start_follower if self._follower else None,
        )
        self._journals[ordinal] = journal
        state = ThreadState(journal)
        if kind is ThreadKind.native:
            self._native[native_id] = state
        self._failure = self._failure or journal.failure
        return state

    def keep(self, state: ThreadState, *fields: int) -> None:
        """Store a record of the calling thread that new ones must not overwrite."""
        if self._ring is None:
            state.journal.append(*fields)
            return
        with self._lock:
            journal = self._journals.get(KEPT_ORDINAL)
            if journal is None:
                journal = self._journals[KEPT_ORDINAL] = ThreadJournal(
                    self._place,
                    pid=os.getpid(),
                    ordinal=KEPT_ORDINAL,
                    native_id=0,
                    kind=int(ThreadKind.native),
                    created_ns=0,
                    ring=self._ring,
                    kept=True,
                )
            journal.append(*fields)

    def put_sync(
        self, state: ThreadState, step: int, kind: int, target: int, start: int, stack: int
    ) -> None:
        """Store that the calling thread published or received now; `start`: waited since, or 0."""
        now = clock.now()
        state.journal.append(
            int(Kind.SYNC),
            kind,
            0,
            0,
            start or now,
            now,
            0,
            step,
            state.module,
            0,
            stack,
            state.phase,
            0,
            target,
        )

    def handover_of(self, kind: int) -> Callable[[Any], object] | None:
        """Stores such a hand-over of an object that nobody waited for, where that is quicker."""
        return None

    def module_calls(self) -> ModuleCalls | None:
        """What is done at calls of modules, where that is quicker."""
        return None

    def leave(self, state: ThreadState) -> None:
        """The calling thread ends: give its journal's spare blocks back."""
        self._close(state.journal)
        self._journals.pop(state.ordinal, None)

    def close(self) -> None:
        """Finish all journals of the process."""
        for journal in list(self._journals.values()):
            self._close(journal)
        self._journals.clear()

    def close_texts(self) -> None:
        """No text comes any more."""
        self.texts.close()

    def progress(self) -> int:
        """A number that changes with every record of any thread."""
        return sum(journal.position for journal in list(self._journals.values()))

    def coverage(self) -> Counter[str]:
        """What the store itself lost or left out: reason -> count."""
        overwritten = self._ring.overwritten if self._ring is not None else 0
        return self._coverage + self.texts.left_out + Counter(overwritten=overwritten)

    def _close(self, journal: ThreadJournal) -> None:
        journal.close()
        self._coverage["dropped"] += journal.dropped
        self._failure = self._failure or journal.failure

    def _start_follower(self) -> None:
        try:
            background_compactor.start(self._follower)
        except (OSError, AttributeError):
            self._follower = b""  # the run is compacted when it ends

    def _open_folder(self) -> None:
        if self._opened:
            return
        self._opened = True
        try:
            # The run itself must be there: one that was removed, or that the program cannot see
            # any more (chroot), must not come back.
            for folder in (self._place.parent, self._place):
                folder.mkdir(exist_ok=True)
            self.texts.attach(self._place)
            write_json(self._place / PROCESS_FILE, self._process)
        except OSError as error:
            self._failure = error
