"""Records sync events: a thread publishes to an object, or receives from it.

Everything a thread does before it publishes to an object happens before everything that another
thread does after it receives from the object. The instant of publishing is taken before it takes
effect, the instant of receiving afterwards, so their order in time is never wrong.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import weakref
from _thread import get_ident
from collections.abc import Callable
from multiprocessing import synchronize
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ...format.loop_names import LOCK_ADDRESS_AGAIN, ORPHANED_LOCK
from ...format.record_kinds import SyncKind
from ...journal import clock
from ...recorder.recorder import Recorder
from .. import patches
from ..base import Hook, HookContext
from ..stacks import Stacks, program_place

_ACQUIRE, _RELEASE = int(SyncKind.lock_acquire), int(SyncKind.lock_release)
_KNOWN_LIMIT = 100_000
_MAX_DELETED = 1_000
_BETWEEN_FILE = contextlib.ExitStack.__exit__.__code__.co_filename
_BETWEEN = frozenset(
    vars(kind)[name].__code__
    for kind, names in (
        (synchronize.SemLock, ("__enter__", "__exit__")),
        (synchronize.Condition, ("__enter__", "__exit__", "wait", "wait_for")),
    )
    for name in names
)
"""Code of Python's library through which a program acquires and releases locks."""

_SERIAL = "_lanescope_serial"
_MASK = 2**63 - 1
_SPREAD = 0x9E3779B97F4A7C15
"""2^64 / golden ratio, odd: spreads neighbouring numbers (Knuth, multiplicative hashing)."""


class Waiting(NamedTuple):
    """A call that may wait."""

    target: int
    start: int
    opened: bool  # it is one of the open events


class SyncRecorder:
    """Records sync events once there is a second thread; one thread needs no order.

    Each object has a number: a lock its address, any other object a serial number of its own,
    below zero. So a new object at the address of a deleted one is not mistaken for it.
    """

    def __init__(self, recorder: Recorder, stacks: Stacks | None) -> None:
        self._recorder = recorder
        self._stacks = stacks
        self._put = recorder.store.put_sync
        self._serials = itertools.count(1)
        self._known: dict[CodeType, bool | None] = {}
        self.user_locks: set[int] = set()  # locks that the program uses, by address
        self.held: dict[int, int] = {}  # lock -> ident of the owner
        self._again: dict[int, int] = {}  # lock -> further acquisitions by its owner
        self._orphaned: dict[int, int] = {}  # lock -> owner, in the parent of a forked process
        self._gone: dict[int, weakref.ref[Any]] = {}  # calls `_forget`
        self._deleted: set[int] = set()  # addresses of locks that were deleted
        self._used_again: set[int] = set()  # those that were noted
        # Called after a thread acquired a lock without waiting, and before it releases one.
        self.on_acquired, self.on_released = map(self._lock_recorder, (_ACQUIRE, _RELEASE))
        self._is_library: Callable[[str], bool] = Stacks(recorder.intern, 1).is_library
        self.concurrent = False
        # With other processes: then what orders a thread's first operator counts as well.
        self.shares_memory = False

    def second_thread(self) -> None:
        """Starts recording: from now on there is more than one thread."""
        if not self.concurrent:
            self.concurrent = True
            patches.concurrent(is_so=True)

    def forked(self) -> None:
        """Notes in a forked child which locks other threads of the parent hold."""
        own = get_ident()
        self._orphaned = {lock: owner for lock, owner in self.held.items() if owner != own}

    def next_number(self) -> int:
        """Returns a number that no object has."""
        return -next(self._serials)

    def key(self, target: Any) -> int:
        """Returns the number of an object other than a lock."""
        try:
            attributes = vars(target)
        except TypeError:  # it cannot hold one
            return id(target)
        serial: int | None = attributes.get(_SERIAL)
        if serial is None:
            serial = attributes.setdefault(_SERIAL, next(self._serials))
        return -serial

    def item(self, number: int, item: Any) -> int:
        """Returns the number of an item in the queue with that number."""
        return -((number * _SPREAD ^ id(item)) & _MASK) - 1

    def part(self, number: int, ordinal: int) -> int:
        """Returns the number of the object's part `ordinal`, such as a round of a barrier."""
        return -((number * _SPREAD ^ ordinal) & _MASK) - 1

    def mark_user_lock(self, lock: Any, depth: int = 1) -> bool:
        """Adds a lock to `user_locks` and returns True if the program itself is using it now.

        A library's internal locks order threads only by chance, and would hide synchronisation
        that the program forgot. The library's classes are recorded where the program calls them.
        `depth`: number of frames between here and the caller of the hooked function.
        """
        if not self.from_program(sys._getframe(depth)):
            return False
        if len(self.user_locks) >= _KNOWN_LIMIT:
            for known in (self.user_locks, self.held, self._again, self._gone):
                known.clear()
        number = id(lock)
        with contextlib.suppress(TypeError):  # a program's own class of locks may not allow it
            self._gone[number] = weakref.ref(lock, lambda _: self._forget(number))
        self.user_locks.add(number)
        self._note_address_again(number)
        return True

    def _note_address_again(self, number: int) -> None:
        """Notes once where a lock has the address of a deleted one: they are not one lock."""
        at = number if len(self._deleted) < _MAX_DELETED else 0
        if (at and at not in self._deleted) or at in self._used_again:
            return
        if hasattr(self._recorder.local, "state"):  # the recorder has seen the thread
            self._used_again.add(at)
            self._recorder.value(LOCK_ADDRESS_AGAIN, float(at))

    def _forget(self, number: int) -> None:
        """Forgets a deleted lock: the next one at its address may be a library's."""
        self.user_locks.discard(number)
        if len(self._deleted) < _MAX_DELETED:
            self._deleted.add(number)
        for known in (self.held, self._again, self._gone):
            known.pop(number, None)

    def from_program(self, frame: FrameType | None) -> bool:
        """Returns whether the program made a call from this frame, itself or through helpers."""
        while frame is not None:
            code = frame.f_code
            try:
                known = self._known[code]
            except KeyError:
                known = self._judged(code)
            if known is not None:
                return known
            frame = frame.f_back
        return False

    def _judged(self, code: CodeType) -> bool | None:
        """Returns whether the code is the program's; None: it acts for its own caller."""
        if len(self._known) >= _KNOWN_LIMIT:
            self._known.clear()
        file = code.co_filename
        between = file in (_BETWEEN_FILE, patches.__file__) or code in _BETWEEN
        known = self._known[code] = None if between else not self._is_library(file)
        return known

    def note(self, kind: int, target: int, start: int = 0) -> None:
        """Records that the calling thread published or received now. Never raises.

        `start`: instant in ns since which it waited; 0: it did not wait.
        """
        recorder = self._recorder
        if not self.concurrent:
            return
        if not recorder.ordering:
            return
        try:
            state = recorder.local.state
        except AttributeError:  # the recorder has not seen the thread
            if not self.shares_memory:
                return
            state = recorder.thread()
        try:
            stack = self._stacks.capture() if start and self._stacks else 0
            self._put(state, recorder.step, kind, target, start, stack)
        except Exception as error:
            recorder.failed(error)

    def _lock_recorder(self, kind: int) -> Callable[[Any], object]:
        own = self._recorder.store.handover_of(kind)
        return own or (lambda lock: self.note(kind, id(lock)))

    def on_reacquired(self, lock: Any, start: int = 0) -> None:
        """Records that the calling thread acquired a lock, which it may own already.

        `start`: instant in ns since which it waited; 0: it did not wait.
        """
        held, number, me = self.held, id(lock), get_ident()
        if held.get(number) == me:
            self._again[number] = self._again.get(number, 0) + 1
        else:
            held[number] = me
        if start:
            self.note(_ACQUIRE, number, start)
        else:
            self.on_acquired(lock)

    def on_rereleased(self, lock: Any) -> None:
        """Records that the calling thread is about to release such a lock once."""
        again, number = self._again, id(lock)
        if again and number in again:
            if again[number] == 1:
                del again[number]
            else:
                again[number] -= 1
        else:
            self.held.pop(number, None)
        self.on_released(lock)

    def owner_of(self, lock: int) -> int | None:
        """Returns the ident of a lock's owner; None: free, or owned before recording began."""
        return self.held.get(lock)

    def waits(self, kind: SyncKind, target: int) -> Waiting:
        """Opens a wait of the calling thread, which `waited` closes.

        If the process dies meanwhile, the open event shows that the thread waited, and for what.
        """
        start = clock.now()
        owner = self._orphaned.get(target)
        if owner is not None and owner == self.held.get(target):
            with self._recorder.contain_errors():
                place = program_place(sys._getframe(), self._is_library)
                self._recorder.value(f"{ORPHANED_LOCK}{place}", 1.0)
        # A thread alone that waits for a lock of the program has it itself. A lock of Python's
        # library may be one that `Condition.wait` has just made for a notification.
        awaited = self.concurrent or (
            kind == SyncKind.lock_acquire and self.from_program(sys._getframe(2))
        )
        return Waiting(target, start, awaited and self._opened(kind, target, start))

    def waited(self, waiting: Waiting) -> None:
        """Closes a wait."""
        if waiting.opened:
            self._recorder.close_sync()

    def _opened(self, kind: SyncKind, target: int, start: int) -> bool:
        recorder = self._recorder
        if not recorder.ordering or not hasattr(recorder.local, "state"):
            return False
        try:
            stack = self._stacks.capture() if self._stacks else 0
            recorder.open_sync(kind, start, target, stack)
        except Exception as error:
            recorder.failed(error)
            return False
        return True


def _hook(context: HookContext) -> None:
    context.share(SyncRecorder(context.recorder, context.collective_stacks))


HOOK = Hook("order of threads", _hook)
