"""Reads numbers back from a device without waiting: that would change the observed schedule."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from ...recorder.recorder import Recorder
from ..cuda_graphs import capturing
from .norms import has_norm


def has_passed(event: Any) -> bool:
    """Returns whether a device has reached an event, without the hook on the program's questions.

    What the recorder sees to be done orders nothing in the program.
    """
    hooked: Any = torch.cuda.Event
    asked: Any = super(hooked, event) if isinstance(event, hooked) else event
    return bool(asked.query())


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
        """Passes on numbers that have arrived; with `wait`, all of them."""
        if not self._pending or capturing() or not self._lock.acquire(blocking=wait):
            return
        try:
            while self._pending:
                event, host, then = first = self._pending.popleft()
                if wait:
                    event.synchronize()
                elif not has_passed(event):
                    self._pending.appendleft(first)
                    return
                then(host)
        finally:
            self._lock.release()

    def finish(self, recorder: Recorder) -> None:
        """Passes on all numbers as a recording ends, unless it has no journal. Never raises."""
        with recorder.contain_errors():
            if recorder.folder is not None:
                self.drain(wait=True)
