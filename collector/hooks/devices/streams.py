"""What orders the streams of devices: events that one records and another waits for, and the waits
of the host for either.

torch tells it wherever it comes about, in Python or in C++ (autograd, collectives, copies), to
those who ask it to trace the device. It calls Python for each, and for each allocation there too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...format.record_kinds import SyncKind
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext, Undo

_TRACED = ("torch.cuda._gpu_trace", "torch.xpu._gpu_trace")
"""Where torch keeps what to call, by kind of device."""


Note = Callable[[int, int, int, bool], object]
"""Stores a row of the calling thread: SyncKind, event, stream, whether there is a stream."""


def install(recorder: Recorder, note: Note) -> Callable[[], None]:
    """Record it by `note`. torch's tracing cannot be stopped: afterwards it has nobody to tell."""
    told = _Told(recorder, note)
    listeners = {
        "EventRecordCallbacks": told.recorded,
        "EventWaitCallbacks": told.waits,
        "EventSynchronizationCallbacks": told.event_reached,
        "StreamSynchronizationCallbacks": told.stream_reached,
        "DeviceSynchronizationCallbacks": told.device_reached,
    }
    added: list[tuple[list[Any], Any]] = []
    lost = "events and waits of device streams"
    activate = optional("torch._C", "_activate_gpu_trace", lost)
    if activate is None:
        return lambda: None
    for module in _TRACED:
        for registry, listener in listeners.items():
            called = optional(module, f"{registry}.callback_list", lost)
            if called is not None:
                called.append(listener)
                added.append((called, listener))
    activate()

    def uninstall() -> None:
        for called, listener in added:
            called.remove(listener)

    return uninstall


class _Told:
    """Calls of torch's. The handles are those of the device's own interface."""

    def __init__(self, recorder: Recorder, note: Note) -> None:
        self._recorder = recorder
        self._store = note

    def recorded(self, event: int, stream: int) -> None:
        """What the stream had been given by now is what the event stands for."""
        self._note(SyncKind.device_event_record, event, stream)

    def waits(self, event: int, stream: int) -> None:
        """What the stream is given from now on comes after the event."""
        self._note(SyncKind.device_event_wait, event, stream)

    def event_reached(self, event: int) -> None:
        """The calling thread waited for the event."""
        self._note(SyncKind.device_event_synchronize, event)

    def stream_reached(self, stream: int) -> None:
        """The calling thread waited for all that the stream had been given."""
        self._note(SyncKind.stream_synchronize, 0, stream)

    def device_reached(self) -> None:
        """It waited for all streams."""
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
