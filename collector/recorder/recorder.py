"""The recorder of a process, through which engines and hooks write threads, texts and records.

Each thread has its own state, so that the hot path takes no lock. Nothing here may raise into the
observed program: `failed` counts the error, warns once and continues.
"""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..format.file_names import JOURNAL_FOLDER
from ..format.names import THINNED, UNSEEN_BY
from ..format.options import Options
from ..format.record_kinds import PhaseKind, SyncKind, ThreadKind
from ..journal import clock
from ..journal.interruptions import is_interruption
from ..journal.journal import RecordKind, float_bits
from ..journal.process_journals import MAIN_ORDINAL, JournalStore, ThreadState
from .code_in_memory import write_sources
from .disk_bound import DiskBound
from .messages import say
from .own_work import Contained, OwnTorch
from .private_names import missing_names
from .thread_names import RUNNING, system_thread_name
from .versions import untested

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Recorder:
    """Records one process into `run`. Creates no folder before the first event."""

    def __init__(self, run: Path, options: Options, store: JournalStore | None = None) -> None:
        self.run = run
        self.store = store or JournalStore(options.keep_last_bytes)
        self.options = options
        self.step = 0
        self.coverage: Counter[str] = Counter()
        self.process: dict[str, Any] = {}
        self.active = self.ordering = options.steps is None or options.steps[0] == 0
        self.closed = False
        self.engine = ""
        self.on_step: Callable[[Recorder], None] | None = None  # called when a step ends
        self.on_next_step: Callable[[], None] | None = None  # called when the next one has begun
        self.on_interrupt: Callable[[], None] | None = None  # KeyboardInterrupt ends the program
        self.own_work: deque[tuple[int, int, int]] = deque(maxlen=10_000)  # thread, begin, end
        self._warned = False
        self._start()

    def _start(self) -> None:
        self.local = threading.local()
        self.start_ns = clock.now()
        options = self.options
        self._thinned = False  # something of this step is not recorded, for want of room
        self.bound = DiskBound(
            self.run, options.max_disk_bytes, ring=options.keep_last_bytes is not None
        )
        self.store.begin(self.run / JOURNAL_FOLDER / f"{os.getpid()}-{self.start_ns}")
        self.store.moment(self.step, self.active, self.ordering)
        self.describe()

    @property
    def folder(self) -> Path | None:
        """The process's folder in the journal; None before the first event."""
        return self.store.folder

    # threads and texts ---------------------------------------------------------------------

    def thread(self) -> ThreadState:
        """Returns the calling thread's state, which its first event creates."""
        try:
            state: ThreadState = self.local.state
        except AttributeError:
            state = self.enter_thread()
        return state

    def intern(self, text: str) -> int:
        """Returns the id of a text in this process's table."""
        return self.store.intern(text)

    def reserve_thread(self) -> int:
        """Returns an ordinal for a thread that is about to start."""
        return self.store.reserve_thread()

    def enter_thread(
        self,
        ordinal: int | None = None,
        thread: threading.Thread | None = None,
        *,
        started: bool = False,
    ) -> ThreadState:
        """Begins the calling thread's journal, under its reserved ordinal or the next one.

        `thread`: the thread, if `threading` has not registered it yet; `started`: it was started
        from Python, also without `threading`.
        """
        created = clock.now()
        native_id = threading.get_native_id()
        # current_thread() would add a dummy to threading.enumerate(), visible to the program.
        thread = thread or RUNNING.get(threading.get_ident())
        if native_id == os.getpid():
            name, kind, ordinal = "main", ThreadKind.main, MAIN_ORDINAL
        elif thread is not None:
            name, kind = thread.name, ThreadKind.python
        elif started:
            name, kind = system_thread_name(native_id), ThreadKind.python
        else:
            # Python drops such a thread's state and thread-locals after each of its calls.
            known = self.store.known_thread(native_id)
            if known is not None:
                self.local.state = known
                return known
            name, kind = system_thread_name(native_id), ThreadKind.native
        state = self.store.enter(ordinal, native_id, kind, name, created)
        self.local.state = state
        state.name = self.intern(name)
        self.put(state, RecordKind.THREAD, name=state.name, start=created, end=created)
        self._check_store()
        return state

    def name_thread(self, name: str) -> None:
        """Renames the calling thread's lane."""
        state, text = self.thread(), self.intern(name)
        if state.name != text:
            state.name = text
            instant = clock.now()
            self.put(state, RecordKind.THREAD, name=text, start=instant, end=instant)

    def leave_thread(self) -> None:
        """Closes the calling thread's journal, when the thread ends."""
        state: ThreadState | None = getattr(self.local, "state", None)
        if state is None:
            return
        self.store.leave(state)
        self._check_store()
        del self.local.state

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
        """Stores a record with the current phase and module, and the current step by default."""
        state.journal.append(
            int(kind),
            scope,
            depth,
            name,
            start,
            end,
            sequence,
            self.step if step is None else step,
            state.module,
            signature,
            stack,
            state.phase,
            aux,
            extra,
        )

    def put_all(self, state: ThreadState, records: NDArray[np.void]) -> None:
        """Stores records with the fields of `RECORD`, with the current phase and module."""
        records["module"], records["phase"] = state.module, state.phase
        state.journal.append_all(records.tobytes())

    def keep(self, kind: int, *, name: int, aux: int, extra: int) -> None:
        """Stores a record that `--keep-last` never overwrites."""
        state = self.thread()
        self.store.keep(state, int(kind), 0, 0, name, 0, 0, 0, self.step, 0, 0, 0, 0, aux, extra)

    def begin_phase(self, name: str, kind: PhaseKind) -> int:
        """Opens a phase on the calling thread; returns its depth for `end_phase`."""
        state = self.thread()
        text, start = self.intern(name), clock.now()
        state.journal.push_open(
            state.open, RecordKind.PHASE, kind, text, start, self.step, state.phase
        )
        state.open += 1
        state.phases.append((text, int(kind), start, self.step, state.module))
        state.phase, state.phase_kind = text, int(kind)
        return len(state.phases) - 1

    def end_phase(self, depth: int) -> None:
        """Closes the phase of that depth, and inner ones that an exception left open."""
        state = self.thread()
        end = clock.now()
        phases = state.phases
        while len(phases) > depth:
            name, kind, start, step, module = phases.pop()
            outer = phases[-1] if phases else None
            state.phase = outer[0] if outer else state.carried
            state.phase_kind = outer[1] if outer else int(PhaseKind.user)
            state.open -= 1
            state.journal.pop_open(state.open)
            if self.active:
                row = (int(RecordKind.PHASE), kind, len(phases), name, start, end, 0, step, module)
                state.journal.append(*row, 0, 0, state.phase, 0, 0)

    def mark(self, name: str, instant: int | None = None) -> None:
        """Records an instant on the calling thread: now, or the given one."""
        state = self.thread()
        instant = clock.now() if instant is None else instant
        self.put(
            state,
            RecordKind.PHASE,
            scope=PhaseKind.mark,
            depth=len(state.phases),
            name=self.intern(name),
            start=instant,
            end=instant,
        )

    def value(self, name: str, number: float, step: int | None = None) -> None:
        """Records a number of a series, of this step or of `step`."""
        self.put(
            self.thread(),
            RecordKind.VALUE,
            name=self.intern(name),
            start=clock.now(),
            sequence=float_bits(number),
            step=self.step if step is None else step,
        )

    def sync(
        self, kind: SyncKind, start: int, end: int, peer: int | None = None, stack: int = 0
    ) -> None:
        """Records a synchronisation event; `peer`: the other thread's ordinal."""
        self.put(
            self.thread(),
            RecordKind.SYNC,
            scope=int(kind),
            start=start,
            end=end,
            stack=stack,
            aux=0 if peer is None else peer + 1,
        )

    def open_sync(self, kind: SyncKind, start: int, target: int, stack: int) -> None:
        """Stores that the calling thread starts to wait."""
        state = self.thread()
        state.journal.push_open(
            state.open, RecordKind.SYNC, kind, 0, start, self.step, state.phase, stack, target
        )
        state.open += 1

    def close_sync(self) -> None:
        """Stores that the calling thread's wait ended."""
        state = self.thread()
        state.open -= 1
        state.journal.pop_open(state.open)

    def next_step(self) -> None:
        """Ends the current training step."""
        if self.on_step is not None and self.active:
            self.on_step(self)
        if self._thinned:
            self.coverage[THINNED] += 1
        elif not self.active:
            self.coverage["steps_left_out"] += 1
        self.step += 1
        window = self.options.steps
        if window is not None:
            self.ordering = window[0] <= self.step < window[1]
        self._thinned = False
        self.thin()
        if self.on_next_step is not None:
            self.on_next_step()

    def thin(self) -> None:
        """Records from now on what there is room for.

        What orders threads is recorded in all steps of the window: without it, accesses of a step
        before and of one after would seem to race.
        """
        out = self.ordering and self.bound.leaves_out(self.step)
        self._thinned |= out
        self.active = self.ordering and not out
        self.store.moment(self.step, self.active, self.ordering)

    # the process ---------------------------------------------------------------------------

    def describe(self, **changes: Any) -> None:
        """Rewrites process.json with these changes."""
        self.process.update(changes)
        coverage = self.coverage + self.store.coverage()
        coverage.update(dict.fromkeys(UNSEEN_BY.get(self.engine, ()), 1))
        coverage.update(dict.fromkeys((*missing_names(), *untested()), 1))
        self.process["coverage"] = {reason: n for reason, n in coverage.items() if n}
        self.store.describe(self.process)

    def close(self) -> None:
        """Stops recording and marks the journal as closed."""
        if self.closed:
            return
        self.closed = True
        if self._thinned:
            self.coverage[THINNED] += 1
        self.store.close()
        self._check_store()
        if self.options.source and self.folder is not None:
            with self.contain_errors():
                write_sources(self.folder)
        if kept_back := self.store.coverage()["recorder_errors"]:
            self.warn(f"recorder errors, some events are missing: {kept_back}")
        try:
            self.describe(
                closed=True, end_ns=clock.now(), ended=self.process.get("ended") or "exit"
            )
        except OSError as error:
            self.warn(f"cannot write to {self.run} ({error.strerror}); the run is incomplete")
        self.store.close_texts()

    def after_fork(self, **process: Any) -> None:
        """Begins a forked child's own journal and leaves the parent's files alone."""
        self.process.update(process)
        self.coverage = Counter()
        self._start()

    @contextlib.contextmanager
    def suppress_recording(self) -> Iterator[None]:
        """Suppresses recording on the calling thread."""
        state = self.thread()
        before, state.busy = state.busy, True
        try:
            yield
        finally:
            state.busy = before

    def own_torch(self) -> OwnTorch:
        """Runs the recorder's own use of torch: not recorded, without the program's modes."""
        return OwnTorch(self.thread(), self.own_work.append)

    # failures ------------------------------------------------------------------------------

    def contain_errors(self) -> Contained:
        """Contains exceptions of the recorder's own work within a call of the program."""
        return Contained(self.failed)

    def failed(self, error: BaseException) -> None:
        """Counts an exception of the recorder and warns once.

        Raises it again if it came from a signal handler, of the program or of Python (Ctrl-C).
        """
        if not isinstance(error, Exception) or is_interruption(error):
            raise error
        if isinstance(error, OSError) and str(error.filename).startswith(str(self.run)):
            self._warn_of_disk(error)
            return
        if self.closed:  # as where a call ends that began before
            return
        self.coverage["recorder_errors"] += 1
        reason = f"{type(error).__name__}: {error}"
        if RecursionError.__name__ in reason:  # the program is at its limit, as it will see
            return
        for frame, line in deque(traceback.walk_tb(error.__traceback__), maxlen=1):
            reason += f" ({os.path.basename(frame.f_code.co_filename)}:{line})"
        self.warn(f"recorder error, some events are missing: {reason}")

    def warn(self, sentence: str) -> None:
        """Prints one line to standard error, once per process."""
        if self._warned:
            return
        self._warned = True
        say(sentence)

    def _check_store(self) -> None:
        failure = self.store.failure
        if failure is not None:
            self._warn_of_disk(failure)

    def _warn_of_disk(self, failure: OSError) -> None:
        where = failure.filename or self.run
        self.warn(f"cannot write to {where} ({failure.strerror}); some events are lost")
