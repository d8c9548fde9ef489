"""What torch's own profiler (Kineto) tells of a device, in the recorder's terms. Writes nothing.

Kineto gives instants of the wall clock. They are moved to the recorder's monotonic clock by the
offset between the two as read when the collection began and when it ended, in a straight line
between these readings.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ...format.names import LAUNCH_SUFFIXES, ON_DEVICE
from ...journal import clock
from ...journal.journal import HEADER, MAGIC, SEGMENT_SUFFIX
from ...recorder.private_names import optional

_LOW_BITS = 0xFFFF_FFFF


@dataclass(frozen=True)
class Reading:
    """The wall clock's offset at a local instant, ns, and how exactly it could be read."""

    local_ns: int
    offset_ns: int
    half_width_ns: int

    @classmethod
    def now(cls) -> Reading:
        """Both clocks at this moment."""
        offset, half_width = clock.wall_offset()
        return cls(clock.now(), offset, half_width)


@dataclass(frozen=True)
class WallToLocal:
    """Instants of the wall clock as instants of the recorder's clock."""

    first: Reading
    last: Reading

    @property
    def error_ns(self) -> int:
        """Bound of the mapping's own error: the clocks' drift apart, and the width of a reading.

        How well Kineto knows the wall clock is not in it; there is no way to ask.
        """
        drift = abs(self.last.offset_ns - self.first.offset_ns)
        return drift + max(self.first.half_width_ns, self.last.half_width_ns)

    def __call__(self, wall_ns: int) -> int:
        """A local instant, ns."""
        first, last = self.first, self.last
        span = max(1, last.local_ns - first.local_ns)
        passed = min(max(wall_ns - first.offset_ns - first.local_ns, 0), span)
        return wall_ns - first.offset_ns - (last.offset_ns - first.offset_ns) * passed // span


@dataclass(frozen=True)
class Activity:
    """A kernel, copy or fill on a stream. Times are local, ns."""

    device: str  # cuda:0
    stream: int
    name: str
    start_ns: int
    end_ns: int
    launch_ns: int  # when the call that launched it began; 0: not known
    launch_thread: int | None  # ordinal of the thread that made this call


class ThreadOrdinals:
    """Which thread of the recording a thread is that Kineto names.

    Kineto names a thread by the operating system's id where torch told it about the thread, and
    by the lower half of its POSIX id elsewhere.
    """

    def __init__(self, folder: Path) -> None:
        """Of the threads whose journals are in the process's folder. Raises OSError."""
        self._by_id: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for path in folder.glob(f"*{SEGMENT_SUFFIX}"):
            self._note(path)
        self._native = {
            thread.ident & _LOW_BITS: thread.native_id
            for thread in threading.enumerate()
            if thread.ident is not None and thread.native_id is not None
        }

    def _note(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                data = file.read(HEADER.size)
        except FileNotFoundError:
            return  # compacted at this moment
        if len(data) == HEADER.size and data.startswith(MAGIC):
            fields = HEADER.unpack(data)
            ordinal, native_id, created = fields[4], fields[8], fields[9]
            self._by_id[native_id].append((created, ordinal))

    def at(self, identity: int, instant: int) -> int | None:
        """The thread that had this id then; None where no such one was recorded."""
        native_id = self._native.get(identity & _LOW_BITS, identity)
        began = [one for one in self._by_id.get(native_id, ()) if one[0] <= instant]
        return max(began)[1] if began else None


def activities(
    events: Iterable[Any], to_local: WallToLocal, threads: ThreadOrdinals | None
) -> list[Activity]:
    """The device activities among Kineto's events, in order of their start.

    An activity and the call that launched it have the same correlation number.
    """
    on_device, calls = [], {}
    for event in events:
        kind = event.activity_type()
        if kind in ON_DEVICE:
            on_device.append(event)
        elif kind.endswith(LAUNCH_SUFFIXES):
            calls[event.correlation_id()] = event
    found = []
    for event in on_device:
        call = calls.get(event.correlation_id())
        launched, thread = 0, None
        if call is not None:
            launched = to_local(call.start_ns())
            if threads is not None:
                thread = threads.at(call.device_resource_id(), launched)
        device = f"{event.device_type().name.lower()}:{event.device_index()}"
        start, end = to_local(event.start_ns()), to_local(event.end_ns())
        found.append(
            Activity(
                device,
                event.device_resource_id(),
                event.name(),
                start,
                max(start, end),
                launched,
                thread,
            )
        )
    return sorted(found, key=lambda one: one.start_ns)


_NAMES = (
    "_profiler.ProfilerConfig",
    "_profiler.ProfilerState",
    "_profiler._ExperimentalConfig",
    "_profiler.RecordScope",
    "_autograd._prepare_profiler",
    "_autograd._enable_profiler",
    "_autograd._disable_profiler",
)
"""What a session is made of, in torch._C."""


def parts_of_torch() -> SimpleNamespace | None:
    """Returns torch's private types and functions of a session; None where any is missing.

    Torch before 2.7 has no session of the whole process: its settings lack a name for that.
    """
    lost = "activities of devices"
    found = {name.rpartition(".")[2]: optional("torch._C", name, lost) for name in _NAMES}
    settings = found["_ExperimentalConfig"]
    if None in found.values() or _WHOLE_PROCESS not in str(vars(settings)["__init__"].__doc__):
        return None
    return SimpleNamespace(**found)


_WHOLE_PROCESS = "profile_all_threads"


class Collecting:
    """A session of Kineto. There is one at a time in a process; any thread may end it.

    Of the host it notes autograd's nodes, and by that learns of autograd's own threads; all else
    that runs on the host is seen by the recorder's engine, so that it costs nothing here.
    """

    def __init__(self, kinds: Collection[Any], scopes: Collection[Any] | None = None) -> None:
        """Begin, with these of torch's ProfilerActivity. Raises what torch raises."""
        found = parts_of_torch()
        if found is None:
            raise RuntimeError("this torch has no profiler session of the whole process")
        self._torch = found
        config = found.ProfilerConfig(
            found.ProfilerState.KINETO,
            False,
            False,
            False,
            False,
            False,
            # The state of the process, and not of this thread.
            found._ExperimentalConfig(**{_WHOLE_PROCESS: True}, disable_external_correlation=True),
        )
        chosen = {found.RecordScope.BACKWARD_FUNCTION} if scopes is None else set(scopes)
        self._first = Reading.now()
        found._prepare_profiler(config, set(kinds))
        found._enable_profiler(config, set(kinds), chosen)

    def end(self) -> tuple[list[Any], WallToLocal]:
        """Kineto's events so far, and the way to local times. Raises what torch raises."""
        result = self._torch._disable_profiler()
        return result.events(), WallToLocal(self._first, Reading.now())
