"""Records sync events of device streams: an event's record and wait, and waits of the host.

torch's device tracing reports them, whether Python or C++ (autograd, collectives, copies) caused
them. It calls Python for each, and also for each allocation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...format.record_kinds import SyncKind
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext, Undo
from ..patches import Patches

_TRACED = ("torch.cuda._gpu_trace", "torch.xpu._gpu_trace")
"""Modules in which torch keeps the callbacks, by kind of device."""


Note = Callable[[int, int, int, bool], object]
"""Stores a row of the calling thread: SyncKind, event, stream, whether there is a stream."""


def install(recorder: Recorder, note: Note) -> Callable[[], None]:
    """Records sync events by `note`. Tracing cannot be stopped; undoing removes the callbacks."""
    listener = _Listener(recorder, note)
    listeners = {
        "EventRecordCallbacks": listener.recorded,
        "EventWaitCallbacks": listener.waits,
        "EventSynchronizationCallbacks": listener.event_reached,
        "StreamSynchronizationCallbacks": listener.stream_reached,
        "DeviceSynchronizationCallbacks": listener.device_reached,
    }
    added: list[tuple[list[Any], Any]] = []
    lost = "events and waits of device streams"
    activate = optional("torch._C", "_activate_gpu_trace", lost)
    if activate is None:
        return lambda: None
    for module in _TRACED:
        for registry, callback in listeners.items():
            called = optional(module, f"{registry}.callback_list", lost)
            if called is not None:
                called.append(callback)
                added.append((called, callback))
    activate()
    patches = _asked(listener)

    def uninstall() -> None:
        patches.undo()
        for called, callback in added:
            called.remove(callback)

    return uninstall


def _asked(listener: _Listener) -> Patches:
    """Records that a thread saw by `query` that an event or a stream was done.

    torch's tracing leaves that out.
    """
    cuda: Any = torch.cuda
    patches = Patches()

    def event_seen(event: Any, done: bool) -> None:
        if done:
            listener.event_reached(event.cuda_event)

    def stream_seen(stream: Any, done: bool) -> None:
        if done:
            listener.stream_reached(stream.cuda_stream)

    for owner, seen in ((cuda.Event, event_seen), (cuda.Stream, stream_seen)):
        patches.ends(owner, "query", lambda one: one, seen, self_alone=True)
    return patches


class _Listener:
    """Receives torch's callbacks. Handles are those of the device's own interface."""

    def __init__(self, recorder: Recorder, note: Note) -> None:
        self._recorder = recorder
        self._store = note

    def recorded(self, event: int, stream: int) -> None:
        """Records that an event was recorded on a stream."""
        self._note(SyncKind.device_event_record, event, stream)

    def waits(self, event: int, stream: int) -> None:
        """Records that a stream waits for an event."""
        self._note(SyncKind.device_event_wait, event, stream)

    def event_reached(self, event: int) -> None:
        """Records that the calling thread waited for an event."""
        self._note(SyncKind.device_event_synchronize, event)

    def stream_reached(self, stream: int) -> None:
        """Records that the calling thread waited for a stream."""
        self._note(SyncKind.stream_synchronize, 0, stream)

    def device_reached(self) -> None:
        """Records that the calling thread waited for all streams."""
        self._note(SyncKind.device_synchronize, 0)

    def _note(self, kind: SyncKind, event: int, stream: int | None = None) -> None:
        try:
            self._store(kind, event, stream or 0, stream is not None)
        except Exception as error:
            self._recorder.failed(error)


def _hook(context: HookContext) -> Undo | None:
    assert context.library is not None
    if not context.recorder.options.streams:
        return None
    return install(context.recorder, context.library.device_sync)


HOOK = Hook("device streams", _hook, levels=("access", "numerics"), native=True)
