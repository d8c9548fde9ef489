"""The core that engines and sources write through: threads, texts, steps, failures.

One `Recorder` per process. It hands each thread its own state, so that the hot path takes no lock.
Nothing in here may raise into the observed program: `failed` counts, warns once, and goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import clock
from .journal import PROCESS_FILE, Kind, StringTable, ThreadJournal, float_bits, write_json
from .kinds import JOURNAL_FOLDER, PhaseKind, SyncKind, ThreadKind
from .options import Options

NO_STEP = 0
MAIN_ORDINAL = 0


class ThreadState:
    """What the recorder keeps per thread. Only its own thread touches it."""

    __slots__ = (
        "busy", "depth", "forward", "journal", "module", "modules", "node", "open", "ordinal",
        "phase", "phase_kind", "phases", "scopes",
    )  # fmt: skip

    def __init__(self, journal: ThreadJournal) -> None:
        self.journal = journal
        self.ordinal = journal.ordinal
        self.busy = False  # the recorder's own work: nothing is recorded meanwhile
        self.open = 0  # entries on the journal's stack of open events
        self.depth = 0  # nesting of ops
        self.phases: list[tuple[int, int, int, int, int]] = []  # name, kind, start, step, module
        self.phase = 0  # text of the innermost phase
        self.phase_kind = int(PhaseKind.user)
        self.modules: list[int] = []  # texts of the paths of modules being called
        self.module = 0
        self.forward: int | None = None  # the phase that the outermost module opened
        self.scopes: list[tuple[str, int, int]] = []  # user scopes: name, start, depth
        self.node: Any = None  # the autograd node whose ops are being seen (portable engine)


class Recorder:
    """Records one process into `run`. Cheap until the first event: no folder before that."""

    def __init__(self, run: Path, options: Options) -> None:
        self.run = run
        self.options = options
        self.step = NO_STEP
        self.coverage: Counter[str] = Counter()
        self.texts = StringTable()
        self.process: dict[str, Any] = {}
        self.active = options.steps is None or options.steps[0] == 0
        self.closed = False
        self.engine = ""
        self.on_step: Callable[[Recorder], None] | None = None  # called where a step ends
        self._warned = False
        self._start()

    def _start(self) -> None:
        self.folder: Path | None = None
        self.local = threading.local()
        self._lock = threading.Lock()
        self._ordinals = itertools.count(MAIN_ORDINAL + 1)
        self._journals: dict[int, ThreadJournal] = {}
        self._native: dict[int, ThreadState] = {}  # by the operating system's thread id
        self.start_ns = clock.now()

    # threads and texts ---------------------------------------------------------------------

    def thread(self) -> ThreadState:
        """The calling thread's state, made at its first event."""
        try:
            state: ThreadState = self.local.state
        except AttributeError:
            state = self.enter_thread()
        return state

    def intern(self, text: str) -> int:
        """Id of a text in this process's table."""
        return self.texts.intern(text)

    def reserve_thread(self) -> int:
        """An ordinal for a thread that is about to start."""
        return next(self._ordinals)

    def enter_thread(
        self, ordinal: int | None = None, thread: threading.Thread | None = None
    ) -> ThreadState:
        """Begin the calling thread's journal, under an ordinal reserved for it or the next.

        `thread` is given where Python does not know yet which one is running.
        """
        started = clock.now()
        native_id = threading.get_native_id()
        # current_thread() would leave a dummy in threading.enumerate(), where programs see it.
        thread = thread or vars(threading)["_active"].get(threading.get_ident())
        if native_id == os.getpid():
            name, kind, ordinal = "main", ThreadKind.main, MAIN_ORDINAL
        elif thread is not None:
            name, kind = thread.name, ThreadKind.python
        else:
            # Python forgets such a thread, and what is local to it, after each of its calls.
            known = self._native.get(native_id)
            if known is not None:
                self.local.state = known
                return known
            name, kind = _system_thread_name(native_id), ThreadKind.native
        with self._lock:
            folder = self._open_folder()
        if ordinal is None:
            ordinal = self.reserve_thread()
        journal = ThreadJournal(
            folder, pid=os.getpid(), ordinal=ordinal, native_id=native_id,
            kind=int(kind), created_ns=started,
        )  # fmt: skip
        self._journals[ordinal] = journal
        state = ThreadState(journal)
        self.local.state = state
        if kind is ThreadKind.native:
            self._native[native_id] = state
        self.put(state, Kind.THREAD, name=self.intern(name), start=started, end=started)
        self._check_journal(journal)
        return state

    def leave_thread(self) -> None:
        """The calling thread ends: give its journal's spare blocks back."""
        state: ThreadState | None = getattr(self.local, "state", None)
        if state is None:
            return
        self._check_journal(state.journal)
        state.journal.close()
        self._journals.pop(state.ordinal, None)
        self.coverage["dropped"] += state.journal.dropped
        del self.local.state

    def _open_folder(self) -> Path:
        if self.folder is not None:
            return self.folder
        folder = self.run / JOURNAL_FOLDER / f"{os.getpid()}-{self.start_ns}"
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.texts.attach(folder)
            self.describe()
        except OSError as error:
            self.warn(f"cannot write to {self.run} ({error.strerror}); nothing more is recorded")
        return folder

    # records -------------------------------------------------------------------------------

    def put(
        self,
        state: ThreadState,
        kind: int,
        *,
        scope: int = 0,
        depth: int = 0,
        name: int = 0,
        start: int = 0,
        end: int = 0,
        sequence: int = 0,
        signature: int = 0,
        stack: int = 0,
        aux: int = 0,
        extra: int = 0,
        step: int | None = None,
    ) -> None:
        """Store a record with the phase and module of the moment, and its step unless given."""
        state.journal.append(
            int(kind), scope, depth, name, start, end, sequence,
            self.step if step is None else step, state.module,
            signature, stack, state.phase, aux, extra,
        )  # fmt: skip

    def begin_phase(self, name: str, kind: PhaseKind) -> int:
        """Open a phase on the calling thread; returns its depth, which closes it."""
        state = self.thread()
        text = self.intern(name)
        start = clock.now()
        state.journal.push_open(state.open, Kind.PHASE, kind, text, start, self.step, state.phase)
        state.open += 1
        state.phases.append((text, int(kind), start, self.step, state.module))
        state.phase, state.phase_kind = text, int(kind)
        return len(state.phases) - 1

    def end_phase(self, depth: int) -> None:
        """Close the phase of that depth, and with it any inner one that an exception left open."""
        state = self.thread()
        end = clock.now()
        phases = state.phases
        while len(phases) > depth:
            name, kind, start, step, module = phases.pop()
            outer = phases[-1] if phases else None
            state.phase = outer[0] if outer else 0
            state.phase_kind = outer[1] if outer else int(PhaseKind.user)
            state.open -= 1
            state.journal.pop_open(state.open)
            if self.active:
                state.journal.append(
                    int(Kind.PHASE), kind, len(phases), name, start, end, 0, step, module,
                    0, 0, state.phase, 0, 0,
                )  # fmt: skip

    def mark(self, name: str) -> None:
        """An instant on the calling thread."""
        state = self.thread()
        instant = clock.now()
        self.put(
            state, Kind.PHASE, scope=PhaseKind.mark, depth=len(state.phases),
            name=self.intern(name), start=instant, end=instant,
        )  # fmt: skip

    def value(self, name: str, number: float) -> None:
        """A number of a series, now."""
        self.put(
            self.thread(), Kind.VALUE, name=self.intern(name), start=clock.now(),
            sequence=float_bits(number),
        )  # fmt: skip

    def sync(
        self, kind: SyncKind, start: int, end: int, peer: int | None = None, stack: int = 0
    ) -> None:
        """A thread event; `peer` is the other thread's ordinal."""
        self.put(
            self.thread(), Kind.SYNC, scope=int(kind), start=start, end=end, stack=stack,
            aux=0 if peer is None else peer + 1,
        )  # fmt: skip

    def next_step(self) -> None:
        """The current training step ends here."""
        if self.on_step is not None and self.active:
            self.on_step(self)
        self.step += 1
        window = self.options.steps
        if window is not None:
            self.active = window[0] <= self.step < window[1]

    # the process ---------------------------------------------------------------------------

    def describe(self, **changes: Any) -> None:
        """Write process.json anew with what became known."""
        self.process.update(changes)
        if self.folder is None:
            return
        self.process["coverage"] = {k: v for k, v in self.coverage.items() if v}
        write_json(self.folder / PROCESS_FILE, self.process)

    def close(self) -> None:
        """Finish: after this nothing is recorded, and the journal says that the end is known."""
        if self.closed:
            return
        self.closed = True
        for journal in list(self._journals.values()):
            journal.close()
            self.coverage["dropped"] += journal.dropped
            if journal.failure is not None:
                self._check_journal(journal)
        try:
            self.describe(closed=True, end_ns=clock.now())
        except OSError as error:
            self.warn(f"cannot write to {self.run} ({error.strerror}); the run is incomplete")
        self.texts.close()

    def after_fork(self, **process: Any) -> None:
        """In a forked child: leave the parent's files alone and begin a journal of its own."""
        self.process.update(process)
        self.coverage = Counter()
        self.texts.detach()
        self._start()

    # failures ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Around the recorder's own work in the program's call: what it raises stays in here."""
        try:
            yield
        except Exception as error:
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Something of the recorder raised: count it, say so once, go on."""
        self.coverage["recorder_errors"] += 1
        self.warn(f"recorder error, some events are missing: {type(error).__name__}: {error}")

    def warn(self, sentence: str) -> None:
        """One line on standard error, once per process."""
        if self._warned:
            return
        self._warned = True
        try:
            sys.stderr.write(f"lanescope: {sentence}\n")
        except (OSError, ValueError):
            return  # nowhere to say it

    def _check_journal(self, journal: ThreadJournal) -> None:
        failure = journal.failure or self.texts.failure
        if failure is not None and self.folder is not None:
            self.warn(f"cannot write to {self.run} ({failure.strerror}); some events are lost")


def _system_thread_name(native_id: int) -> str:
    try:
        return Path(f"/proc/self/task/{native_id}/comm").read_text().strip()
    except OSError:
        return ""
