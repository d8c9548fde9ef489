"""Numbers that a device computes, handed on once they are in host memory; nothing waits for them.

Waiting for a device would change the schedule that is being observed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch


class Deliveries:
    """Small tensors on their way to the host, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Any, torch.Tensor, Callable[[torch.Tensor], None]]] = deque()
        self._lock = threading.Lock()

    def hand_on(self, numbers: torch.Tensor, then: Callable[[torch.Tensor], None]) -> None:
        """Call `then` with the numbers in host memory: now, or in a `drain` after their arrival."""
        numbers = numbers.detach()
        if numbers.device.type == "cpu":
            then(numbers)
            return
        host = torch.empty_like(numbers, device="cpu", pin_memory=True)
        host.copy_(numbers, non_blocking=True)
        event: Any = torch.get_device_module(numbers.device).Event()
        event.record()
        self._pending.append((event, host, then))

    def drain(self, *, wait: bool) -> None:
        """Hand on what devices have delivered by now; with `wait`, all of it."""
        if not self._pending or not self._lock.acquire(blocking=wait):
            return
        try:
            while self._pending:
                event, host, then = self._pending[0]
                if wait:
                    event.synchronize()
                elif not event.query():
                    return
                self._pending.popleft()
                then(host)
        finally:
            self._lock.release()
