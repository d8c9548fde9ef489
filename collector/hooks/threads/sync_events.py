"""What orders threads: who publishes what it has done so far, and who receives it, by which object.

Whatever a thread did before it published to an object happened before all that another does after
it received from the object. An instant of publishing is taken before it takes effect, one of
receiving afterwards, so their order in time is never the wrong way round.
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

from ...format.record_kinds import SyncKind
from ...journal import clock
from ...recorder.recorder import Recorder
from .. import patches
from ..base import Hook, HookContext
from ..stacks import Stacks

_ACQUIRE, _RELEASE = int(SyncKind.lock_acquire), int(SyncKind.lock_release)
_KNOWN_LIMIT = 100_000
_BETWEEN_FILE = contextlib.ExitStack.__exit__.__code__.co_filename
_BETWEEN = frozenset(
    vars(kind)[name].__code__
    for kind, names in (
        (synchronize.SemLock, ("__enter__", "__exit__")),
        (synchronize.Condition, ("__enter__", "__exit__", "wait", "wait_for")),
    )
    for name in names
)
"""Python's own code through which a program takes and gives locks."""

_SERIAL = "_lanescope_serial"
_MASK = 2**63 - 1
_SPREAD = 0x9E3779B97F4A7C15
"""2^64 / golden ratio, odd: spreads neighbouring numbers (Knuth, multiplicative hashing)."""


class Waiting(NamedTuple):
    """A call that may wait."""

    target: int
    start: int
    opened: bool  # it stands among the open events


class Handovers:
    """Records them, from when there is a second thread; until then there is no one to be ordered.

    Objects are known by a number: locks by address, others by a serial number of their own, below
    zero, so that one at the address of another that is gone is not taken for it.
    """

    def __init__(self, recorder: Recorder, stacks: Stacks | None) -> None:
        self._recorder = recorder
        self._stacks = stacks
        self._put = recorder.store.put_sync
        self._serials = itertools.count(1)
        self._known: dict[CodeType, bool | None] = {}
        self.programs: set[int] = set()  # locks that it used
        self.held: dict[int, int] = {}  # lock -> ident of the thread that has it
        self._again: dict[int, int] = {}  # lock -> how often more, where it may take it again
        self._gone: dict[int, weakref.ref[Any]] = {}  # what tells that a lock is no more
        # The calling thread has a lock now, and did not wait; it is about to give it up.
        self.taken, self.given = (self._of(kind) for kind in (_ACQUIRE, _RELEASE))
        self._is_library: Callable[[str], bool] = Stacks(recorder.intern, 1).is_library
        self.concurrent = False

    def second_thread(self) -> None:
        """There is more than one thread from now on."""
        if not self.concurrent:
            self.concurrent = True
            patches.concurrent(is_so=True)

    def next_number(self) -> int:
        """A number that no object has."""
        return -next(self._serials)

    def key(self, target: Any) -> int:
        """The number of an object that is no lock."""
        try:
            attributes = vars(target)
        except TypeError:  # it cannot hold one
            return id(target)
        serial: int | None = attributes.get(_SERIAL)
        if serial is None:
            serial = attributes.setdefault(_SERIAL, next(self._serials))
        return -serial

    def item(self, number: int, item: Any) -> int:
        """The number of an item on its way through the queue of that number."""
        return -((number * _SPREAD ^ id(item)) & _MASK) - 1

    def part(self, number: int, ordinal: int) -> int:
        """The number of the `ordinal`th part of what happens to the object of that number."""
        return -((number * _SPREAD ^ ordinal) & _MASK) - 1

    def becomes_programs(self, lock: Any, depth: int = 1) -> bool:
        """Whether a lock that is not among `programs` is being used by the program right now.

        What a library does with locks of its own orders threads by chance only, and would hide
        what the program forgot; what its classes mean is recorded where they are called. `depth`:
        how far out from here a hooked function was called.
        """
        if not self.from_program(sys._getframe(depth)):
            return False
        if len(self.programs) >= _KNOWN_LIMIT:
            for known in (self.programs, self.held, self._again, self._gone):
                known.clear()
        number = id(lock)
        with contextlib.suppress(TypeError):  # a program's own class of locks may not allow it
            self._gone[number] = weakref.ref(lock, lambda _: self._forget(number))
        self.programs.add(number)
        return True

    def _forget(self, number: int) -> None:
        """That lock is no more: a library's may be the next at its address."""
        self.programs.discard(number)
        for known in (self.held, self._again, self._gone):
            known.pop(number, None)

    def from_program(self, frame: FrameType | None) -> bool:
        """Whether a call from this frame is the program's own, or made for it."""
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
        """Whether that is code of the program; None: it calls for whoever called it."""
        if len(self._known) >= _KNOWN_LIMIT:
            self._known.clear()
        file = code.co_filename
        between = file in (_BETWEEN_FILE, patches.__file__) or code in _BETWEEN
        known = self._known[code] = None if between else not self._is_library(file)
        return known

    def note(self, kind: int, target: int, start: int = 0) -> None:
        """The calling thread published or received now; it waited since `start`, if that is given.

        Never raises.
        """
        recorder = self._recorder
        if not self.concurrent:
            return
        if not recorder.active:
            return
        try:
            state = recorder.local.state
        except AttributeError:  # the recorder has not seen the thread
            return
        try:
            stack = self._stacks.capture() if start and self._stacks else 0
            self._put(state, recorder.step, kind, target, start, stack)
        except Exception as error:
            recorder.failed(error)

    def _of(self, kind: int) -> Callable[[Any], object]:
        own = self._recorder.store.handover_of(kind)
        return own or (lambda lock: self.note(kind, id(lock)))

    def took(self, lock: Any, start: int = 0) -> None:
        """The calling thread has a lock now that it may have had; it waited since `start`, or 0."""
        held, number, me = self.held, id(lock), get_ident()
        if held.get(number) == me:
            self._again[number] = self._again.get(number, 0) + 1
        else:
            held[number] = me
        if start:
            self.note(_ACQUIRE, number, start)
        else:
            self.taken(lock)

    def gives(self, lock: Any) -> None:
        """It is about to give up such a lock, once."""
        again, number = self._again, id(lock)
        if again and number in again:
            if again[number] == 1:
                del again[number]
            else:
                again[number] -= 1
        else:
            self.held.pop(number, None)
        self.given(lock)

    def holder(self, lock: int) -> int | None:
        """Ident of the thread that holds a lock; None: nobody, or since before there were two."""
        return self.held.get(lock)

    def waits(self, kind: SyncKind, target: int) -> Waiting:
        """The calling thread may wait from now on, until `waited`.

        Meanwhile it stands among the open events: where the process dies, it is known that the
        thread waited, and for what.
        """
        start = clock.now()
        return Waiting(target, start, self.concurrent and self._opened(kind, target, start))

    def waited(self, waiting: Waiting) -> None:
        """It waits no more."""
        if waiting.opened:
            self._recorder.close_sync()

    def _opened(self, kind: SyncKind, target: int, start: int) -> bool:
        recorder = self._recorder
        if not recorder.active or not hasattr(recorder.local, "state"):
            return False
        try:
            stack = self._stacks.capture() if self._stacks else 0
            recorder.open_sync(kind, start, target, stack)
        except Exception as error:
            recorder.failed(error)
            return False
        return True


def _hook(context: HookContext) -> None:
    context.sync = Handovers(context.recorder, context.collective_stacks)


HOOK = Hook("order of threads", _hook)
