"""Stores a process's events: its folder, its texts, and a journal for each of its threads.

`JournalStore` writes from Python. The native engine's store has the same methods, so that a thread
has one journal and a text one id with either.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..format.record_kinds import PhaseKind, ThreadKind
from . import background_compactor, clock
from .journal import PROCESS_FILE, RecordKind, write_json
from .own_lock import own_lock
from .segment_ring import Ring
from .string_table import StringTable
from .writer import ThreadJournal

MAIN_ORDINAL = 0
KEPT_ORDINAL = 2**32 - 1
"""Ordinal of the journal with records that are never overwritten; it belongs to no thread."""


class ThreadState:
    """State of one thread; only that thread accesses it."""

    def __init__(self, journal: ThreadJournal) -> None:
        self.journal = journal
        self.ordinal = journal.ordinal
        self.name = 0  # text of its name
        self.busy = False  # the recorder itself is at work: record nothing
        self.open = 0  # entries on the journal's stack of open events
        self.depth = 0  # nesting of ops
        self.phases: list[tuple[int, int, int, int, int]] = []  # name, kind, start, step, module
        self.phase = 0  # text of the innermost phase
        self.carried = 0  # text of the phase in which the thread or its task was started
        self.started = 0  # text of the stack at which the thread or its task was started
        self.phase_kind = int(PhaseKind.user)
        self.modules: list[int] = []  # texts of the paths of modules being called
        self.in_modules = 0  # their number
        self.module = 0  # text of the path of the innermost module
        self.forward: int | None = None  # the phase that the outermost module opened
        self.scopes: list[Any] = []  # open user scopes (portable engine)
        self.node: Any = None  # the autograd node that runs (portable engine)

    def enter_module(self, module: int, path: int) -> None:
        """Notes that the thread calls a module; `path`: text of its path."""
        self.modules.append(path)
        self.module = path
        self.in_modules += 1

    def leave_module(self) -> int:
        """Notes that the innermost call returned, and returns the text of the module's path."""
        path = self.modules.pop()
        self.in_modules -= 1
        self.module = self.modules[-1] if self.modules else 0
        return path


class ModuleCalls(NamedTuple):
    """An engine's functions for calls of modules, which are quicker than Python's.

    The first two take the module and return True if they did everything.
    """

    entered: Callable[[Any], object]
    left: Callable[[Any], object]
    gone: Callable[[], object]  # called when a module is deleted


class JournalStore:
    """Writes journals from Python. Creates no file before the first thread enters."""

    def __init__(self, keep_last: int | None = None) -> None:
        self.texts = StringTable()
        self._keep_last = keep_last  # bytes
        self._follower = b""
        self._reset(Path())

    def begin(self, folder: Path) -> None:
        """Writes into `folder` from now on; a forked child leaves the parent's files alone."""
        self.texts.detach()
        for journal in self._journals.values():
            journal.leave()
        self._reset(folder)

    def _reset(self, folder: Path) -> None:
        self._place = folder
        self._opened = False
        self._process: dict[str, Any] = {}
        self._lock = own_lock()
        self._ordinals = itertools.count(MAIN_ORDINAL + 1)
        self._journals: dict[int, ThreadJournal] = {}
        self._ring = None if self._keep_last is None else Ring(self._keep_last)
        self._native: dict[int, ThreadState] = {}  # by the operating system's thread id
        self._coverage: Counter[str] = Counter()
        self._failure: OSError | None = None

    @property
    def folder(self) -> Path | None:
        """The process's folder; None before the first file."""
        return self._place if self._opened else None

    @property
    def failure(self) -> OSError | None:
        """The error by which events are lost, if any."""
        return self._failure or self.texts.failure

    def intern(self, text: str) -> int:
        """Returns the id of a text in this process's table."""
        return self.texts.intern(text)

    def intern_signature(self, text: str) -> tuple[int, bool]:
        """Returns the id of shapes, dtypes and device; False: the id is that of LEFT_OUT."""
        return self.texts.intern_signature(text)

    def moment(self, step: int, active: bool, ordering: bool) -> None:
        """Sets the current training step, whether it is recorded, and whether what orders threads
        is."""

    def describe(self, process: dict[str, Any]) -> None:
        """Writes process.json, now or with the first file. Raises OSError."""
        self._process = process
        if self._opened:
            write_json(self._place / PROCESS_FILE, process)

    def follow(self, command: bytes) -> None:
        """Sets the shell command that starts the compactor once a journal has become long."""
        self._follower = command

    # threads -------------------------------------------------------------------------------

    def reserve_thread(self) -> int:
        """Returns an ordinal for a thread that is about to start."""
        return next(self._ordinals)

    def known_thread(self, native_id: int) -> ThreadState | None:
        """Returns the state of a native thread, whose thread-local data Python does not keep."""
        return self._native.get(native_id)

    def enter(
        self, ordinal: int | None, native_id: int, kind: ThreadKind, name: str, started: int
    ) -> ThreadState:
        """Begins the calling thread's journal, under its reserved ordinal or the next one."""
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
        """Stores a record of the calling thread that is never overwritten."""
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
        """Stores a synchronisation event of the calling thread, which ends now.

        `start`: begin of its wait in ns, 0: it did not wait.
        """
        now = clock.now()
        state.journal.append(
            int(RecordKind.SYNC),
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
        """Returns a faster function for sync events without a wait; None: use put_sync."""
        return None

    def module_calls(self) -> ModuleCalls | None:
        """Returns quicker functions for calls of modules; None: there are none."""
        return None

    def leave(self, state: ThreadState) -> None:
        """Closes the calling thread's journal."""
        self._close(state.journal)
        self._journals.pop(state.ordinal, None)

    def close(self) -> None:
        """Closes all journals of the process."""
        for journal in list(self._journals.values()):
            self._close(journal)
        self._journals.clear()

    def close_texts(self) -> None:
        """Closes the table of texts."""
        self.texts.close()

    def progress(self) -> int:
        """Returns a number that changes with every record of any thread."""
        return sum(journal.position for journal in list(self._journals.values()))

    def coverage(self) -> Counter[str]:
        """Returns counts of lost and left-out records and texts, by reason."""
        overwritten = self._ring.overwritten if self._ring is not None else 0
        return self._coverage + self.texts.left_out + Counter(overwritten=overwritten)

    def _close(self, journal: ThreadJournal) -> None:
        journal.close()
        self._coverage["dropped"] += journal.dropped
        self._failure = self._failure or journal.failure

    def _start_follower(self) -> None:
        try:
            background_compactor.start_process(self._follower)
        except (OSError, AttributeError):
            self._follower = b""  # the run is compacted when it ends

    def _open_folder(self) -> None:
        if self._opened:
            return
        self._opened = True
        try:
            # The run's folder must exist: if it was removed, or is out of sight (chroot), it must
            # not be created again.
            for folder in (self._place.parent, self._place):
                folder.mkdir(exist_ok=True)
            self.texts.attach(self._place)
            write_json(self._place / PROCESS_FILE, self._process)
        except OSError as error:
            self._failure = error
