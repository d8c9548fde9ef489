"""Heavy requests wait in queues of their own, so that they never hold all threads of the server.

A request that finds its queue full is refused at once (503, Retry-After): dozens of queries
neither delay the tiles of the page nor pile up work whose answers are no longer awaited.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

RETRY_AFTER_S = 5
"""Seconds after which a refused request may be sent again."""


class Queue:
    """Places for requests of one kind: some run, some wait for their turn, others are refused."""

    def __init__(self, running: int, waiting: int) -> None:
        self._places = threading.BoundedSemaphore(running + waiting)
        self._running = threading.BoundedSemaphore(running)

    def enter(self) -> bool:
        """Returns waits until the request may run; False at once where the queue is full."""
        if not self._places.acquire(blocking=False):
            return False
        self._running.acquire()
        return True

    def leave(self) -> None:
        """Ends a request that has entered."""
        self._running.release()
        self._places.release()


@dataclass(frozen=True)
class Queues:
    """The queues of a server. Together they hold fewer requests than the server has threads."""

    downloads: Queue = field(default_factory=lambda: Queue(running=2, waiting=6))
    pages: Queue = field(default_factory=lambda: Queue(running=4, waiting=8))

    def of(self, path: str) -> Queue | None:
        """Returns the queue of an address; None for requests that are answered at once, such as
        tiles."""
        if path.startswith(("/query.", "/table/")):
            return self.downloads
        return self.pages if path.startswith("/_dash-update-component") else None
