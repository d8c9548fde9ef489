"""Queues: an item carries what its sender did to whoever takes it."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from multiprocessing import queues
from typing import Any

from ...format.record_kinds import SyncKind
from ...recorder.private_names import optional
from ..patches import Patches
from .sync_events import Handovers

_Method = Callable[..., Any]


def install(handovers: Handovers) -> Callable[[], None]:
    """Record `queue.Queue` and its subclasses, `SimpleQueue`, and queues of multiprocessing."""
    patches = Patches()

    def replace(owner: type, name: str, make: Callable[[Handovers, _Method], _Method]) -> None:
        patches.replace(owner, name, lambda original: make(handovers, original))

    replace(queue.Queue, "put", _put)
    replace(queue.Queue, "get", _get)
    replace(queue.Queue, "task_done", _task_done)
    replace(queue.Queue, "join", _join)
    for name in ("put", "put_nowait"):
        replace(queue.SimpleQueue, name, _put_simple)
    for name in ("get", "get_nowait"):
        replace(queue.SimpleQueue, name, _get_simple)
    for kind in (queues.Queue, queues.JoinableQueue):
        replace(kind, "put", _put_to_feeder)
    replace(queues.Queue, "get", _get_copy)
    replace(queues.JoinableQueue, "task_done", _task_done)
    replace(queues.JoinableQueue, "join", _join)
    replace(queues.SimpleQueue, "put", _put_copy)
    replace(queues.SimpleQueue, "get", _get_copy)
    feed = optional(queues.__name__, "Queue._feed", "order by queues between processes")
    if feed is not None:
        patches.put(queues.Queue, "_feed", _feeding(handovers, feed))
    return patches.undo


class _Buffer:
    """The items of a queue between processes, as the thread that sends them takes them."""

    def __init__(self, handovers: Handovers, items: deque[Any]) -> None:
        self._handovers = handovers
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def popleft(self) -> Any:
        item = self._items.popleft()
        self._handovers.note(SyncKind.queue_get, self._handovers.item(id(self._items), item))
        return item


def _put_to_feeder(handovers: Handovers, original: _Method) -> _Method:
    def put(self: Any, obj: Any, *args: Any, **keywords: Any) -> None:
        # Also the first, which starts the thread.
        handovers.note(SyncKind.queue_put, handovers.item(id(vars(self).get("_buffer")), obj))
        _post_copy(handovers, self)
        original(self, obj, *args, **keywords)

    return put


def _feeding(handovers: Handovers, original: _Method) -> Any:
    def feed(buffer: deque[Any], *args: Any) -> None:
        original(_Buffer(handovers, buffer), *args)

    return staticmethod(feed)


def _post_copy(handovers: Handovers, queue: Any) -> None:
    """An item leaves for another process, or for another thread of this one, which gets a copy.

    Nobody can tell which copy is of which item, so whoever gets one knows of all put before.
    """
    if handovers.concurrent:
        handovers.note(SyncKind.event_set, handovers.key(queue))


def _put_copy(handovers: Handovers, original: _Method) -> _Method:
    def put(self: Any, obj: Any) -> None:
        _post_copy(handovers, self)
        original(self, obj)

    return put


def _get_copy(handovers: Handovers, original: _Method) -> _Method:
    def get(self: Any, *args: Any, **keywords: Any) -> Any:
        item = original(self, *args, **keywords)
        if handovers.concurrent:
            handovers.note(SyncKind.event_wait, handovers.key(self))
        return item

    return get


def _put(handovers: Handovers, original: _Method) -> _Method:
    def put(self: Any, item: Any, *args: Any, **keywords: Any) -> None:
        if not handovers.concurrent:
            original(self, item, *args, **keywords)
            return
        target = handovers.key(self)
        handovers.note(SyncKind.queue_put, handovers.item(target, item))
        if self.maxsize <= 0:
            original(self, item, *args, **keywords)
            return
        # Room in it is handed back by whoever takes an item.
        _, start = handovers.wait(
            SyncKind.queue_room, target, lambda: original(self, item, *args, **keywords)
        )
        handovers.note(SyncKind.queue_room, target, start)

    return put


def _get(handovers: Handovers, original: _Method) -> _Method:
    def get(self: Any, *args: Any, **keywords: Any) -> Any:
        if not handovers.concurrent:
            return original(self, *args, **keywords)
        target = handovers.key(self)
        if self.maxsize > 0:
            handovers.note(SyncKind.queue_taken, target)
        item, start = handovers.wait(
            SyncKind.queue_get, target, lambda: original(self, *args, **keywords)
        )
        handovers.note(SyncKind.queue_get, handovers.item(target, item), start)
        return item

    return get


def _task_done(handovers: Handovers, original: _Method) -> _Method:
    def task_done(self: Any) -> None:
        if handovers.concurrent:
            handovers.note(SyncKind.task_done, handovers.item(handovers.key(self), None))
        original(self)

    return task_done


def _join(handovers: Handovers, original: _Method) -> _Method:
    def join(self: Any) -> None:
        if not handovers.concurrent:
            original(self)
            return
        target = handovers.item(handovers.key(self), None)
        _, start = handovers.wait(SyncKind.queue_join, target, lambda: original(self))
        handovers.note(SyncKind.queue_join, target, start)

    return join


def _put_simple(handovers: Handovers, original: _Method) -> _Method:
    def put(self: Any, item: Any, *args: Any, **keywords: Any) -> None:
        if handovers.concurrent:
            handovers.note(SyncKind.queue_put, handovers.item(id(self), item))
        original(self, item, *args, **keywords)

    return put


def _get_simple(handovers: Handovers, original: _Method) -> _Method:
    def get(self: Any, *args: Any, **keywords: Any) -> Any:
        if not handovers.concurrent:
            return original(self, *args, **keywords)
        item, start = handovers.wait(
            SyncKind.queue_get, id(self), lambda: original(self, *args, **keywords)
        )
        handovers.note(SyncKind.queue_get, handovers.item(id(self), item), start)
        return item

    return get
