"""What orders threads: who publishes what it has done so far, and who receives it, by which object.

Whatever a thread did before it published to an object happened before all that another does after
it received from the object. An instant of publishing is taken before it takes effect, one of
receiving afterwards, so their order in time is never the wrong way round.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from _thread import get_ident
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from .. import clock
from ..kinds import SyncKind
from ..recorder import Recorder
from .stacks import Stacks

_ACQUIRE, _RELEASE = int(SyncKind.lock_acquire), int(SyncKind.lock_release)
_KNOWN_LIMIT = 100_000
_BETWEEN = contextlib.ExitStack.__exit__.__code__.co_filename
_SERIAL = "_lanescope_serial"
_MASK = 2**63 - 1
_SPREAD = 0x9E3779B97F4A7C15
"""2^64 / golden ratio, odd: spreads neighbouring numbers (Knuth, multiplicative hashing)."""


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
        self._known: dict[CodeType, bool] = {}
        self.programs: set[int] = set()  # locks that it used
        self._held: dict[int, int] = {}  # lock -> ident of the thread that has it
        self._again: dict[int, int] = {}  # lock -> how often more, where it may take it again
        # The calling thread has a lock now (and waited since `start`), or is about to give it up.
        self.took, self.gives = self._keeping(recorder.store.put_handover or self.note)
        self._is_library: Callable[[str], bool] = Stacks(recorder.intern, 1).is_library
        self.concurrent = False
        self._on_second: list[Callable[[], None]] = []

    def when_concurrent(self, do: Callable[[], None]) -> None:
        """`do` is called once there is a second thread; it must not raise."""
        self._on_second.append(do)

    def second_thread(self) -> None:
        """There is more than one thread from now on."""
        if not self.concurrent:
            self.concurrent = True
            for do in self._on_second:
                do()

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

    def becomes_programs(self, number: int) -> bool:
        """Whether a lock that is not among `programs` is being used by the program right now.

        What a library does with locks of its own orders threads by chance only, and would hide
        what the program forgot; what its classes mean is recorded where they are called.
        """
        if not self.from_program(3):
            return False
        if len(self.programs) >= _KNOWN_LIMIT:
            self.programs.clear()
        self.programs.add(number)
        return True

    def from_program(self, depth: int = 2) -> bool:
        """Whether the call `depth` frames out is the program's own, or an ExitStack's of its."""
        frame: FrameType | None = sys._getframe(depth)
        while frame is not None:
            code = frame.f_code
            if code.co_filename != _BETWEEN:
                known = self._known.get(code)
                if known is None:
                    if len(self._known) >= _KNOWN_LIMIT:
                        self._known.clear()
                    known = self._known[code] = not self._is_library(code.co_filename)
                return known
            frame = frame.f_back
        return False

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

    def _keeping(
        self, handover: Callable[[int, int], None]
    ) -> tuple[Callable[..., None], Callable[[int], None]]:
        # Closures: programs take and give locks by the million, and `self` is looked up each time.
        held, again, note = self._held, self._again, self.note

        def took(lock: int, start: int = 0) -> None:
            me = get_ident()
            if held.get(lock) == me:
                again[lock] = again.get(lock, 0) + 1
            else:
                if len(held) >= _KNOWN_LIMIT:
                    held.clear()
                held[lock] = me
            if start:
                note(SyncKind.lock_acquire, lock, start)
            else:
                handover(_ACQUIRE, lock)

        def gives(lock: int) -> None:
            if again and lock in again:
                if again[lock] == 1:
                    del again[lock]
                else:
                    again[lock] -= 1
            else:
                held.pop(lock, None)
            handover(_RELEASE, lock)

        return took, gives

    def holder(self, lock: int) -> int | None:
        """Ident of the thread that holds a lock; None: nobody, or since before there were two."""
        return self._held.get(lock)

    def wait(self, kind: SyncKind, target: int, waited: Callable[[], Any]) -> tuple[Any, int]:
        """Call `waited`, which may wait; returns its result, and since when it was called.

        Meanwhile it stands among the open events: where the process dies, it is known that the
        thread waited, and for what.
        """
        recorder = self._recorder
        start = clock.now()
        opened = self.concurrent and self._opened(kind, target, start)
        try:
            return waited(), start
        finally:
            if opened:
                with recorder.guarded():
                    recorder.close_sync()

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
