"""The engine in C++: an observer of every operator of every thread, behind a plain C interface.

It sees what torch itself announces: operators with what they are made of, autograd nodes, user
scopes, the work that backends do for collectives; on threads that Python knows and on those it does
not. Both it and Python write into the same journals: `NativeStore` hands Python's events on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..format.names import NOT_COMPUTING
from ..format.record_kinds import ThreadKind
from ..hooks.stacks import Stacks
from ..journal.journal import RECORD, RECORD_BYTES, json_bytes
from ..journal.process_journals import JournalStore, ModuleCalls, ThreadState
from ..journal.string_table import MAX_SIGNATURES
from ..journal.writer import ThreadJournal
from ..recorder.recorder import Recorder
from .native_library import Library

_REASONS = (
    "filtered",
    "shorter_than_minimum",
    "traced_without_data",
    "tensors_without_storage",
    "recorder_errors",
    "tensors_not_read",
    "dropped",
    "overwritten",
    "signatures_left_out",
    "texts_left_out",
)
"""Counters of the observer, in the order of Counters::Reason in process.h."""


class _Journal(ThreadJournal):
    """A thread's journal for Python: passes all to the observer, on the same thread."""

    __slots__ = ("_levels", "_library")

    def __init__(self, library: Library, ordinal: int) -> None:
        self._library = library
        self._levels: list[int] = []
        self.ordinal = ordinal

    def append(self, *fields: int) -> None:
        """Stores one record; fields in the order of `RECORD`."""
        self._library.append(RECORD.pack(*fields), 1)

    def append_all(self, records: bytes) -> None:
        """Stores several records, packed as `RECORD`."""
        self._library.append(records, len(records) // RECORD_BYTES)

    def push_open_record(self, level: int, *fields: int) -> None:
        """Stores that an event began; the observer knows its level among open operators."""
        self._levels.append(self._library.push_open(RECORD.pack(*fields)))

    def pop_open(self, level: int) -> None:
        """Stores that the last event opened by Python ended."""
        if self._levels:
            self._library.pop_open(self._levels.pop())


class _Shared(ctypes.Structure):
    """`Shared` of thread.h: the fields of a thread's state that the observer reads."""

    _fields_ = (
        ("phase", ctypes.c_uint32),
        ("phase_kind", ctypes.c_uint32),
        ("module", ctypes.c_uint32),
        ("busy", ctypes.c_uint32),
        ("ordinal", ctypes.c_uint32),
        ("started", ctypes.c_uint32),
        ("latest", ctypes.c_uint32),  # serial of the state now at this address
        ("in_modules", ctypes.c_uint32),  # number of open module calls
    )
    latest: int


class _State(_Shared, ThreadState):
    """A thread's state, partly in the observer's memory."""

    serial: int  # of this state
    library: Library

    @classmethod
    def at(cls, address: int, library: Library) -> _State:
        """Returns the state of the thread that the observer keeps at `address`."""
        state = cls.from_address(address)
        state.serial = state.latest
        state.library = library
        ThreadState.__init__(state, _Journal(library, state.ordinal))
        return state

    def enter_module(self, module: int, path: int) -> None:
        """Notes that the thread calls a module."""
        self.library.enter_module(module, path)

    def leave_module(self) -> int:
        """Notes that the innermost call returned."""
        return int(self.library.leave_module())


class NativeStore(JournalStore):
    """Passes Python's events to the observer, which writes the journals."""

    def __init__(self, library: Library, keep_last: int | None = None) -> None:
        self._library = library
        self._keep_last = keep_last  # bytes
        self._ids: dict[str, int] = {"": 0}
        self._states: dict[int, _State] = {}  # by address

    def begin(self, folder: Path) -> None:
        """Writes into `folder` from now on."""
        self._place = folder
        self._states = {}
        self._library.begin(os.fsencode(folder), self._keep_last or 0)

    @property
    def folder(self) -> Path | None:
        """The process's folder; None before the first file."""
        return self._place if self._library.opened() else None

    @property
    def failure(self) -> OSError | None:
        """The error by which events are lost, if any."""
        error = self._library.failure()
        return OSError(error, os.strerror(error)) if error else None

    def intern(self, text: str) -> int:
        """Returns the id of a text in this process's table."""
        found = self._ids.get(text)
        if found is None:
            data = text.encode("utf-8", "replace")
            found = self._library.intern(data, len(data))
            if found:
                if len(self._ids) >= MAX_SIGNATURES:
                    self._ids.clear()
                self._ids[text] = found
        return found

    def moment(self, step: int, active: bool, ordering: bool) -> None:
        """Sets the current training step, whether it is recorded, and whether what orders threads
        is."""
        self._library.moment(step, active, ordering)

    def describe(self, process: dict[str, Any]) -> None:
        """Writes process.json, now or with the first file."""
        self._library.describe(json_bytes(process, indent=1))

    def follow(self, command: bytes) -> None:
        """Sets the shell command that starts the compactor once a journal has become long."""
        self._library.follow(command)

    def reserve_thread(self) -> int:
        """Returns an ordinal for a thread that is about to start."""
        return int(self._library.reserve())

    def known_thread(self, native_id: int) -> ThreadState | None:
        """Returns the calling thread's state, if it or one of its operators entered before."""
        address = self._library.entered()
        return self._state(address) if address else None

    def enter(
        self, ordinal: int | None, native_id: int, kind: ThreadKind, name: str, started: int
    ) -> ThreadState:
        """Begins the calling thread's journal, unless one of its operators did."""
        address = self._library.enter(-1 if ordinal is None else ordinal, kind, started)
        if not address:
            raise RuntimeError("the recording is over")
        return self._state(address)

    def keep(self, state: ThreadState, *fields: int) -> None:
        """Stores a record of the calling thread that is never overwritten."""
        if self._keep_last is None:
            state.journal.append(*fields)
        else:
            self._library.keep(RECORD.pack(*fields))

    def put_sync(
        self, state: ThreadState, step: int, kind: int, target: int, start: int, stack: int
    ) -> None:
        """Stores a synchronisation event of the calling thread, which ends now."""
        self._library.sync(kind, start, target, stack)

    def handover_of(self, kind: int) -> Callable[[Any], object]:
        """Returns the library's function, which Python calls like a built-in."""
        return self._library.handover_of(kind)

    def module_calls(self) -> ModuleCalls:
        """Returns the library's functions."""
        library = self._library
        return ModuleCalls(library.module_entered, library.module_left, library.module_gone)

    def leave(self, state: ThreadState) -> None:
        """Closes the calling thread's journal."""
        self._library.leave()

    def close(self) -> None:
        """Closes all journals of the process."""
        self._library.leave()
        self._library.end()

    def close_texts(self) -> None:
        """Closes the table of texts."""
        self._library.detach()

    def progress(self) -> int:
        """Returns a number that changes with every record of any thread."""
        return int(self._library.progress())

    def coverage(self) -> Counter[str]:
        """Returns counts of lost and left-out records and texts, by reason."""
        return self._count()

    def _count(self) -> Counter[str]:
        counts = (ctypes.c_uint64 * len(_REASONS))()
        self._library.count(ctypes.byref(counts))
        return Counter(dict(zip(_REASONS, counts, strict=True)))

    def _state(self, address: int) -> _State:
        # An address is reused after its thread has ended, with another serial.
        found = self._states.get(address)
        if found is None or found.serial != found.latest:
            found = self._states[address] = _State.at(address, self._library)
        return found


class NativeEngine:
    """Installs the observer with the recording's settings."""

    def __init__(self, recorder: Recorder, library: Library, stacks: Stacks) -> None:
        self._library = library
        options = recorder.options
        library.patterns(_lines(options.include), _lines(options.exclude), _lines(NOT_COMPUTING))
        library.settings(
            options.level != "timing",
            options.level == "numerics",
            options.op_stacks,
            options.sampled_stacks,
            options.collective_stacks,
            options.streams,
            options.activations_every,
            options.min_duration_ns,
        )
        inside, packages, standard = stacks.folders
        library.stacks(options.stack_depth, _lines(inside), _lines(packages), os.fsencode(standard))

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Does nothing: the observer sees every thread."""
        yield

    def start(self) -> None:
        """Starts observing every thread."""
        self._library.install()

    def stop(self) -> None:
        """Stops observing."""
        self._library.remove()

    def flush_node(self) -> None:
        """Does nothing: the observer sees the ends of nodes."""


def _lines(texts: tuple[str, ...]) -> bytes:
    return os.fsencode("\n".join(texts))
