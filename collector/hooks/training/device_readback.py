"""Reads numbers back from a device without waiting: that would change the observed schedule."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from ...recorder.recorder import Recorder
from ..cuda_graphs import capturing
from .norms import has_norm

_END_S = 5.0
"""Longest wait for a device as the recording ends: one that hangs must not keep the process."""

_hanging: list[Any] = []
"""The first event that was not reached by then; no other one is waited for."""


def has_passed(event: Any) -> bool:
    """Returns whether a device has reached an event, without the hook on the program's questions.

    What the recorder sees to be done orders nothing in the program.
    """
    hooked: Any = torch.cuda.Event
    asked: Any = super(hooked, event) if isinstance(event, hooked) else event
    return bool(asked.query())


def passes_soon(event: Any) -> bool:
    """Waits for a device to reach an event as the recording ends; returns whether it has."""
    until = 0.0 if _hanging else time.monotonic() + _END_S
    while not has_passed(event):
        if time.monotonic() > until:
            _hanging.append(event)
            del _hanging[1:]
            return False
        time.sleep(0.001)
    return True


class DeviceReadback:
    """Copies small tensors to the host, in the order of the requests."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Any, torch.Tensor, Callable[[torch.Tensor], None]]] = deque()
        self._lock = threading.RLock()

    def enqueue(self, numbers: torch.Tensor, then: Callable[[torch.Tensor], None]) -> None:
        """Calls `then` with the numbers in host memory, now or in a `drain` after they arrive.

        A FakeTensor, or another subclass that runs its own operators, has no numbers, and neither
        has a tensor of a CUDA graph that is being captured.
        """
        numbers = numbers.detach()
        if not has_norm(numbers):
            return
        if numbers.device.type == "cpu":
            then(numbers)
            return
        if capturing():
            return
        host = torch.empty_like(numbers, device="cpu", pin_memory=True)
        host.copy_(numbers, non_blocking=True)
        event: Any = torch.get_device_module(numbers.device).Event()
        event.record()
        self._pending.append((event, host, then))

    def drain(self, *, wait: bool) -> None:
        """Passes on numbers that have arrived; with `wait`, all that arrive soon."""
        if not self._pending or capturing() or not self._lock.acquire(blocking=wait):
            return
        try:
            while self._pending:
                event, host, then = first = self._pending.popleft()
                if not (passes_soon if wait else has_passed)(event):
                    self._pending.appendleft(first)
                    return
                then(host)
        finally:
            self._lock.release()

    def finish(self, recorder: Recorder) -> None:
        """Passes on numbers as a recording ends, unless it has no journal. Never raises."""
        with recorder.contain_errors():
            if recorder.folder is not None:
                self.drain(wait=True)
