"""Queues: an item carries what its sender did to whoever takes it."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from multiprocessing import queues
from typing import Any

from ...format.record_kinds import SyncKind
from ..base import Hook
from ..patches import Changed, Patches
from .sync_events import Handovers, Waiting

_NOTHING = object()


def install(handovers: Handovers) -> Callable[[], None]:
    """Record `queue.Queue` and its subclasses, `SimpleQueue`, and queues of multiprocessing."""
    patches = Patches()
    get, copied = _get(handovers), _get_copy(handovers)
    patches.ends(queue.Queue, "put", *_put(handovers), when_concurrent=True)
    patches.ends(queue.Queue, "get", *get, self_alone=True, when_concurrent=True)
    kind: Any
    for kind in (queue.Queue, queues.JoinableQueue):
        finished, joins = _task_done(handovers), _join(handovers)
        patches.ends(kind, "task_done", finished, self_alone=True, when_concurrent=True)
        patches.ends(kind, "join", *joins, self_alone=True, when_concurrent=True)
    for name in ("put", "put_nowait"):
        patches.ends(queue.SimpleQueue, name, _put_simple(handovers), when_concurrent=True)
    for name in ("get", "get_nowait"):
        patches.ends(queue.SimpleQueue, name, *get, self_alone=True, when_concurrent=True)
    for kind in (queues.Queue, queues.JoinableQueue):
        patches.ends(kind, "put", _put_to_feeder(handovers))
    patches.ends(queues.SimpleQueue, "put", _post_copy(handovers), self_alone=True)
    for kind in (queues.Queue, queues.SimpleQueue):
        patches.ends(kind, "get", *copied, self_alone=True, when_concurrent=True)
    patches.ends(
        queues.Queue, "_feed", _feeding(handovers), lost="order by queues between processes"
    )
    return patches.undo


def _item(args: tuple[Any, ...], keywords: dict[str, Any], name: str) -> Any:
    """What is put into a queue; _NOTHING where the call is about to fail for lack of it."""
    return args[1] if len(args) > 1 else keywords.get(name, _NOTHING)


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


def _put_to_feeder(handovers: Handovers) -> Callable[..., None]:
    post = _post_copy(handovers)

    def begin(*args: Any, **keywords: Any) -> None:
        # Also the first, which starts the thread.
        items = id(vars(args[0]).get("_buffer"))
        item = _item(args, keywords, "obj")
        handovers.note(SyncKind.queue_put, handovers.item(items, item))
        post(args[0])

    return begin


def _feeding(handovers: Handovers) -> Callable[..., Changed]:
    def begin(*args: Any, **keywords: Any) -> Changed:
        return Changed(None, (_Buffer(handovers, args[0]), *args[1:]), keywords)

    return begin


def _post_copy(handovers: Handovers) -> Callable[[Any], None]:
    """An item leaves for another process, or for another thread of this one, which gets a copy.

    Nobody can tell which copy is of which item, so whoever gets one knows of all put before.
    """

    def begin(own: Any) -> None:
        if handovers.concurrent:
            handovers.note(SyncKind.event_set, handovers.key(own))

    return begin


def _get_copy(handovers: Handovers) -> tuple[Callable[..., Any], Callable[..., None]]:
    def done(own: Any, _: Any) -> None:
        handovers.note(SyncKind.event_wait, handovers.key(own))

    return _itself, done


def _itself(own: Any) -> Any:
    return own


def _put(handovers: Handovers) -> tuple[Callable[..., Any], ...]:
    def begin(*args: Any, **keywords: Any) -> Waiting | None:
        own, item = args[0], _item(args, keywords, "item")
        target = handovers.key(own)
        handovers.note(SyncKind.queue_put, handovers.item(target, item))
        # Room in it is handed back by whoever takes an item.
        return handovers.waits(SyncKind.queue_room, target) if own.maxsize > 0 else None

    def done(waiting: Waiting, _: Any) -> None:
        handovers.waited(waiting)
        handovers.note(SyncKind.queue_room, waiting.target, waiting.start)

    return begin, done, _left(handovers)


def _left(handovers: Handovers) -> Callable[[Waiting, BaseException], None]:
    return lambda waiting, _: handovers.waited(waiting)


def _get(handovers: Handovers) -> tuple[Callable[..., Any], ...]:
    def begin(own: Any) -> Waiting:
        target = handovers.key(own)
        if getattr(own, "maxsize", 0) > 0:
            handovers.note(SyncKind.queue_taken, target)
        return handovers.waits(SyncKind.queue_get, target)

    def done(waiting: Waiting, item: Any) -> None:
        handovers.waited(waiting)
        target = handovers.item(waiting.target, item)
        handovers.note(SyncKind.queue_get, target, waiting.start)

    return begin, done, _left(handovers)


def _task_done(handovers: Handovers) -> Callable[[Any], None]:
    def begin(own: Any) -> None:
        handovers.note(SyncKind.task_done, handovers.item(handovers.key(own), None))

    return begin


def _join(handovers: Handovers) -> tuple[Callable[..., Any], ...]:
    def begin(own: Any) -> Waiting:
        return handovers.waits(SyncKind.queue_join, handovers.item(handovers.key(own), None))

    def done(waiting: Waiting, _: Any) -> None:
        handovers.waited(waiting)
        handovers.note(SyncKind.queue_join, waiting.target, waiting.start)

    return begin, done, _left(handovers)


def _put_simple(handovers: Handovers) -> Callable[..., None]:
    def begin(*args: Any, **keywords: Any) -> None:
        item = _item(args, keywords, "item")
        handovers.note(SyncKind.queue_put, handovers.item(handovers.key(args[0]), item))

    return begin


HOOK = Hook("order of threads (queues)", lambda context: install(context.sync))
