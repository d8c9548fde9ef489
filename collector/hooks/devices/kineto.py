"""Reads device activities from torch's own profiler (Kineto). Writes nothing.

Kineto uses the wall clock. Its times are converted to the recorder's monotonic clock by the offset
of the two, interpolated between readings at the begin and at the end of the collection.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...format.names import LAUNCH_SUFFIXES, ON_DEVICE
from ...journal import clock
from ...journal.journal import HEADER, MAGIC, SEGMENT_SUFFIX
from ...recorder.private_names import optional

_LOW_BITS = 0xFFFF_FFFF


@dataclass(frozen=True)
class Reading:
    """The wall clock's offset at a local instant, ns, and the error of that reading."""

    local_ns: int
    offset_ns: int
    half_width_ns: int

    @classmethod
    def now(cls) -> Reading:
        """Reads both clocks."""
        offset, half_width = clock.wall_offset()
        return cls(clock.now(), offset, half_width)


@dataclass(frozen=True)
class WallToLocal:
    """Converts instants of the wall clock to instants of the recorder's clock."""

    first: Reading
    last: Reading

    @property
    def error_ns(self) -> int:
        """Returns a bound in ns: the drift between the clocks, and the width of a reading.

        Does not include Kineto's own error in reading the wall clock, which is unknown.
        """
        drift = abs(self.last.offset_ns - self.first.offset_ns)
        return drift + max(self.first.half_width_ns, self.last.half_width_ns)

    def __call__(self, wall_ns: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Returns local instants, ns."""
        first, last = self.first, self.last
        span = max(1, last.local_ns - first.local_ns)
        local = np.asarray(wall_ns, np.int64) - first.offset_ns
        passed = np.clip(local - first.local_ns, 0, span) / span
        drift = last.offset_ns - first.offset_ns
        return local - np.rint(drift * passed).astype(np.int64)


class Activity(NamedTuple):
    """A kernel, copy or fill on a stream. Times are local, ns."""

    device: str  # cuda:0
    stream: int
    name: str
    start_ns: int
    end_ns: int
    launch_ns: int  # begin of the launching call; 0: not known
    launch_thread: int | None  # ordinal of the thread that made this call


class ThreadOrdinals:
    """Finds the recorded thread for a thread id of Kineto.

    Kineto uses the operating system's id if torch registered the thread, otherwise the lower half
    of its POSIX id.
    """

    def __init__(self, folder: Path) -> None:
        """Reads the threads with journals in the process's folder. Raises OSError."""
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
        """Returns the ordinal of the thread with this id at that instant; None: not recorded."""
        native_id = self._native.get(identity & _LOW_BITS, identity)
        began = [one for one in self._by_id.get(native_id, ()) if one[0] <= instant]
        return max(began)[1] if began else None


def activities(
    events: Iterable[Any], to_local: WallToLocal, threads: ThreadOrdinals | None
) -> list[Activity]:
    """Returns the device activities among Kineto's events, in order of their start.

    An activity and the call that launched it have the same correlation number.
    """
    on_device, calls = [], {}
    for event in events:
        kind = _category(event)
        if kind in ON_DEVICE:
            on_device.append(event)
        elif kind.endswith(LAUNCH_SUFFIXES):
            calls[event.correlation_id()] = event
    launches = [calls.get(event.correlation_id()) for event in on_device]
    start = to_local([event.start_ns() for event in on_device])
    end = np.maximum(start, to_local([event.end_ns() for event in on_device]))
    launched = to_local([0 if call is None else call.start_ns() for call in launches])
    found = []
    for event, begin, until, call, instant in zip(
        on_device, start.tolist(), end.tolist(), launches, launched.tolist(), strict=True
    ):
        thread = None
        if call is not None and threads is not None:
            thread = threads.at(call.device_resource_id(), instant)
        device = f"{event.device_type().name.lower()}:{event.device_index()}"
        stream, name = event.device_resource_id(), event.name()
        launch = 0 if call is None else instant
        found.append(Activity(device, stream, name, begin, until, launch, thread))
    return sorted(found, key=attrgetter("start_ns"))


def _category(event: Any) -> str:
    """Returns Kineto's category of an event: its own word, or one that leads to the same.

    torch 2.11, for one, has no word: the device says what ran on it, the name what the driver did.
    """
    if hasattr(event, "activity_type"):
        return str(event.activity_type())
    if event.device_type().name != "CPU":
        return "gpu_user_annotation" if event.is_user_annotation() else "kernel"
    return "cuda_runtime" if _DRIVER_CALL.match(event.name()) else "cpu_op"


_DRIVER_CALL = re.compile("(cuda|cu|hip|ur|ze|mtia)[A-Z]")

_NAMES = (
    "_profiler.ProfilerConfig",
    "_profiler.ProfilerState",
    "_profiler._ExperimentalConfig",
    "_profiler.RecordScope",
    "_autograd._prepare_profiler",
    "_autograd._enable_profiler",
    "_autograd._disable_profiler",
)
"""Names in torch._C that a session needs."""


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
    """A session of Kineto: at most one at a time in a process; any thread may end it.

    Collects autograd's nodes on the host, which registers autograd's threads. The recorder's engine
    sees everything else on the host, so that costs nothing here.
    """

    def __init__(self, kinds: Collection[Any], scopes: Collection[Any] | None = None) -> None:
        """Begins with some kinds of torch's ProfilerActivity. Raises torch's exceptions."""
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
            # For the whole process instead of this thread.
            found._ExperimentalConfig(**{_WHOLE_PROCESS: True}, disable_external_correlation=True),
        )
        chosen = {found.RecordScope.BACKWARD_FUNCTION} if scopes is None else set(scopes)
        self._first = Reading.now()
        found._prepare_profiler(config, set(kinds))
        found._enable_profiler(config, set(kinds), chosen)

    def end(self) -> tuple[list[Any], WallToLocal]:
        """Returns Kineto's events and the conversion to local times. Raises torch's exceptions."""
        result = self._torch._disable_profiler()
        return result.events(), WallToLocal(self._first, Reading.now())
