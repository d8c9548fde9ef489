"""Records device activity: kernels and copies on their streams, within step windows.

It comes from torch's own profiler (`kineto`). A stream has a lane and a journal like a thread;
activities are stored there at the ends of steps. A process has one session of Kineto, which the
program's own use of torch.profiler takes over.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
import torch.autograd.profiler as torch_profiler

from ...format.names import MISSING, OWN_ACTIVITY, stream_name
from ...format.record_kinds import OpScope, ThreadKind
from ...journal import clock
from ...journal.journal import NO_SEQUENCE, RecordKind
from ...journal.writer import ThreadJournal
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext, Undo
from ..patches import Patches
from .cuda_contexts import CudaContexts
from .kineto import Activity, Collecting, ThreadOrdinals, activities, parts_of_torch

CLOCK_ERROR = "lanescope/device_clock_error"
"""Bound of the error of device times on the recorder's clock, ns, each time they are stored."""

NOT_IN_USE, _BUSY, _LEFT_OUT = "device_not_in_use", "device_profiler_busy", "device_left_out"
"""Reasons in the coverage: steps without device activity, because no device was in use or the
program's own profiler was on; and activities beyond MAX_ACTIVITIES."""

_UNAVAILABLE = f"{MISSING}activities of devices (no profiler session of the whole process)"

SPAN_NS = 1_000_000_000
"""Interval in ns after which the next end of a step stores activities."""

MAX_ACTIVITIES = 500_000
"""Activities stored at a time; bounds the pause of the thread that ends the step."""

_MODULES = ("cuda", "xpu", "mtia")
"""Devices of Kineto: names of torch's modules, and in capitals of its activities."""


@dataclass(frozen=True)
class InUse:
    """A device that the program has begun to use."""

    module: Any  # torch.cuda
    kinds: frozenset[Any]  # of torch's ProfilerActivity

    @classmethod
    def find(cls) -> InUse | None:
        """Returns the first device in use; None: no device.

        Does not query unused devices: that would initialise the driver, and forked children could
        not use it any more.
        """
        for name in _MODULES:
            module = getattr(torch, name, None)
            is_initialized = getattr(module, "is_initialized", None)
            if is_initialized is None or not is_initialized():
                continue
            profiler: Any = torch.profiler
            activity = profiler.ProfilerActivity
            kind = getattr(activity, name.upper(), None)
            if kind in profiler.supported_activities():
                return cls(module, frozenset({activity.CPU, kind}))
        return None

    def may_wait(self) -> bool:
        """Returns whether waiting for the device is allowed: not during the capture of a graph."""
        capturing = getattr(self.module, "is_current_stream_capturing", None)
        return capturing is None or not capturing()


class Device:
    """Collects activities in the windows of the recording, which begin and end with steps."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._streams: dict[tuple[str, int], ThreadJournal] = {}
        self._in_use: InUse | None = None
        self._collecting: Collecting | None = None
        self._bounds: list[int] = []  # instants of step ends since then, ns
        self._first_step = 0
        self._began = 0
        self._theirs = False  # the program's own profiler is on
        self._broken = False
        self._missed = ""  # why the current step has no activities

    def next_step(self) -> None:
        """Ends a step; the recorder already counts the next one."""
        with self._recorder.contain_errors():
            recorder, instant = self._recorder, clock.now()
            self._count_missed()
            if self._collecting is not None:
                self._bounds.append(instant)
                due = not recorder.active or instant - self._began >= SPAN_NS
                if due and self._may_wait():
                    self._store(wait=True)
            if recorder.active and self._collecting is None:
                self._begin()

    def begin(self) -> None:
        """Begins the recording, and the window if it holds the first step."""
        with self._recorder.contain_errors():
            if self._recorder.active:
                self._begin()

    def initialised(self) -> None:
        """Begins where the program has only now begun to use a device: it may never end a step."""
        if self._missed == NOT_IN_USE and not self._recorder.closed:
            self._missed = ""
            self.begin()

    def make_room(self) -> None:
        """Ends the collection before the program starts its own profiler."""
        with self._recorder.contain_errors():
            if self._collecting is not None:
                self._missed = _BUSY
                self._store(wait=self._may_wait())
        self._theirs = True

    def given_back(self) -> None:
        """Allows collection after the program's profiler has ended."""
        self._theirs = False

    def stop(self) -> None:
        """Stores all activities. Does not wait: a hanging device must not block the exit."""
        with self._recorder.contain_errors():
            self._count_missed()
            if self._collecting is not None:
                self._store(wait=False)
        for journal in self._streams.values():
            journal.close()
            self._recorder.coverage["dropped"] += journal.dropped
        self._streams.clear()

    def forget(self) -> None:
        """Forgets device and journals in a forked child: they are the parent's."""
        self._streams = {}
        self._collecting = None
        self._missed = ""
        self._broken = True

    def _count_missed(self) -> None:
        if self._missed:
            self._recorder.coverage[self._missed] += 1
            self._missed = ""

    def _may_wait(self) -> bool:
        return self._in_use is None or self._in_use.may_wait()

    def _begin(self) -> None:
        if self._broken:
            return
        self._in_use = InUse.find()
        if self._theirs or self._in_use is None:
            self._missed = _BUSY if self._theirs else NOT_IN_USE
            return
        self._broken = True  # in case the next line raises
        self._collecting = Collecting(self._in_use.kinds)
        self._broken = False
        self._began, self._first_step = clock.now(), self._recorder.step
        self._bounds.clear()

    def _store(self, *, wait: bool) -> None:
        """Ends the collection and writes its activities, each stream into its journal."""
        recorder = self._recorder
        with recorder.own_torch():
            if wait and self._in_use is not None:
                self._in_use.module.synchronize()
            collecting, self._collecting = self._collecting, None
            if collecting is None or recorder.folder is None:
                return
            events, to_local = collecting.end()
            found = activities(events, to_local, ThreadOrdinals(recorder.folder))
            own = _by_thread(recorder.own_work)
            recorder.own_work.clear()
            recorder.coverage[_LEFT_OUT] += max(0, len(found) - MAX_ACTIVITIES)
            for activity in found[:MAX_ACTIVITIES]:
                self._write(activity, own=_launched_within(activity, own))
            if found:
                recorder.value(CLOCK_ERROR, float(to_local.error_ns))

    def _write(self, activity: Activity, *, own: bool) -> None:
        recorder = self._recorder
        key = activity.device, activity.stream
        journal = self._streams.get(key) or self._open(key, activity.start_ns)
        step = self._first_step + bisect_right(
            self._bounds, activity.launch_ns or activity.start_ns
        )
        thread = activity.launch_thread
        journal.append(
            int(RecordKind.OP),
            int(OpScope.kernel),
            0,
            recorder.intern(OWN_ACTIVITY * own + activity.name),
            activity.start_ns,
            activity.end_ns,
            NO_SEQUENCE,
            step,
            0,
            recorder.intern(f"\t\t{activity.device}"),
            0,
            0,
            0 if thread is None else thread + 1,
            activity.launch_ns,
        )

    def _open(self, key: tuple[str, int], first_ns: int) -> ThreadJournal:
        """Opens a stream's journal. Only the thread that ends a step writes to it."""
        recorder = self._recorder
        folder = recorder.folder
        assert folder is not None  # checked by `_store`
        journal = ThreadJournal(
            folder,
            pid=os.getpid(),
            ordinal=recorder.reserve_thread(),
            native_id=0,
            kind=int(ThreadKind.stream),
            created_ns=first_ns,
        )
        self._streams[key] = journal
        name = recorder.intern(stream_name(*key))
        journal.append(
            int(RecordKind.THREAD), 0, 0, name, first_ns, first_ns, 0, 0, 0, 0, 0, 0, 0, 0
        )
        return journal


def _by_thread(work: Iterable[tuple[int, int, int]]) -> dict[int, list[tuple[int, int]]]:
    """Returns stretches of work (thread, begin, end) of each thread, by time."""
    found: dict[int, list[tuple[int, int]]] = {}
    for thread, begin, end in work:
        found.setdefault(thread, []).append((begin, end))
    return found


def _launched_within(activity: Activity, work: Mapping[int, Sequence[tuple[int, int]]]) -> bool:
    thread = activity.launch_thread
    stretches = () if thread is None else work.get(thread, ())
    at = bisect_right(stretches, activity.launch_ns, key=itemgetter(1))
    return at < len(stretches) and stretches[at][0] <= activity.launch_ns


def install(recorder: Recorder) -> tuple[Device, Callable[[], None]]:
    """Collects in the recorder's windows, and gives way to the program's own profilers."""
    device, patches = Device(recorder), Patches()
    hooks = {
        "_prepare_profiler": device.make_room,
        "_enable_profiler": device.make_room,
        "_disable_profiler": device.given_back,
    }
    known = {
        name: optional(torch_profiler.__name__, name, "activities of devices") for name in hooks
    }
    if None in known.values() or parts_of_torch() is None:
        recorder.coverage[_UNAVAILABLE] = 1
        return device, device.stop
    for name in known:
        patches.ends(torch_profiler, name, _calls(hooks[name]))
    recorder.on_next_step = device.next_step
    device.begin()

    def uninstall() -> None:
        recorder.on_next_step = None
        patches.undo()
        device.stop()

    return device, uninstall


def _calls(hook: Callable[[], None]) -> Callable[..., None]:
    return lambda *_, **__: hook()


def _hook(context: HookContext) -> Undo | None:
    if not context.recorder.options.device_activity:
        return None
    device, undo = install(context.recorder)
    context.get(CudaContexts).on_initialised = device.initialised
    context.share(device)
    return undo


HOOK = Hook("activities of devices", _hook)
