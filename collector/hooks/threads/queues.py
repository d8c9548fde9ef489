"""Records queues: the receiver of an item comes after its sender."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from multiprocessing import connection, queues
from typing import Any

from ...format.record_kinds import OTHER_PROCESSES, SyncKind
from ..base import Hook, HookContext
from ..patches import ChangedArguments
from .sync_events import SyncRecorder, Waiting
from .unfinished_work import Takers

_NOTHING = object()
_CONNECTION: Any = connection.Connection.__base__
"""The class that sends and receives for all kinds of connections."""


def _hook(context: HookContext) -> None:
    """Records `queue.Queue` and its subclasses, `SimpleQueue`, and queues of multiprocessing."""
    sync, patches = context.get(SyncRecorder), context.patches
    get, copied = _get(sync, context.get(Takers)), _get_copy(sync)
    patches.ends(queue.Queue, "put", *_put(sync), when_concurrent=True)
    patches.ends(queue.Queue, "get", *get, self_alone=True, when_concurrent=True)
    kind: Any
    for kind in (queue.Queue, queues.JoinableQueue):
        finished, joins = _task_done(sync), _join(sync)
        patches.ends(kind, "task_done", finished, self_alone=True, when_concurrent=True)
        patches.ends(kind, "join", *joins, self_alone=True, when_concurrent=True)
    for name in ("put", "put_nowait"):
        patches.ends(queue.SimpleQueue, name, _put_simple(sync), when_concurrent=True)
    for name in ("get", "get_nowait"):
        patches.ends(queue.SimpleQueue, name, *get, self_alone=True, when_concurrent=True)
    for kind in (queues.Queue, queues.JoinableQueue):
        patches.ends(kind, "put", _put_to_feeder(sync))
    patches.ends(queues.SimpleQueue, "put", _post_copy(sync), self_alone=True)
    for kind in (queues.Queue, queues.SimpleQueue):
        patches.ends(kind, "get", *copied, self_alone=True, when_concurrent=True)
    # What other processes send, whatever stands around the connection: queues, pools, managers.
    for name in ("send", "send_bytes"):
        patches.ends(_CONNECTION, name, _send(sync), self_alone=True, when_concurrent=True)
    for name in ("recv", "recv_bytes", "recv_bytes_into"):
        patches.ends(_CONNECTION, name, *_receive(sync), self_alone=True, when_concurrent=True)
    patches.ends(queues.Queue, "_feed", _feeding(sync), lost="order by queues between processes")


def _item(args: tuple[Any, ...], keywords: dict[str, Any], name: str) -> Any:
    """Returns the item put into a queue; _NOTHING if it is missing: the call is about to fail."""
    return args[1] if len(args) > 1 else keywords.get(name, _NOTHING)


class _Buffer:
    """Wraps the items of a queue between processes; records when its feeder thread takes one."""

    def __init__(self, sync: SyncRecorder, items: deque[Any]) -> None:
        self._sync = sync
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def popleft(self) -> Any:
        item = self._items.popleft()
        self._sync.note(SyncKind.queue_get, self._sync.item(id(self._items), item))
        return item


def _put_to_feeder(sync: SyncRecorder) -> Callable[..., None]:
    post = _post_copy(sync)

    def begin(*args: Any, **keywords: Any) -> None:
        # Also for the first item, which starts the thread.
        items = id(vars(args[0]).get("_buffer"))
        item = _item(args, keywords, "obj")
        sync.note(SyncKind.queue_put, sync.item(items, item))
        post(args[0])

    return begin


def _feeding(sync: SyncRecorder) -> Callable[..., ChangedArguments]:
    def begin(*args: Any, **keywords: Any) -> ChangedArguments:
        return ChangedArguments(None, (_Buffer(sync, args[0]), *args[1:]), keywords)

    return begin


def _post_copy(sync: SyncRecorder) -> Callable[[Any], None]:
    """Returns a hook for an item sent to another process, or as a copy to another thread.

    A copy cannot be matched to its item, so its receiver comes after all items put before.
    """

    def begin(own: Any) -> None:
        if sync.concurrent:
            sync.note(SyncKind.event_set, sync.key(own))

    return begin


def _get_copy(sync: SyncRecorder) -> tuple[Callable[..., Any], Callable[..., None]]:
    def done(own: Any, _: Any) -> None:
        sync.note(SyncKind.event_wait, sync.key(own))

    return _itself, done


def _send(sync: SyncRecorder) -> Callable[[Any], None]:
    """Returns a hook for what a connection sends. Its other end is in another process as a rule,
    which may send something to another thread in answer, on another connection."""

    def begin(_: Any) -> None:
        if sync.concurrent:
            sync.note(SyncKind.event_set, OTHER_PROCESSES)

    return begin


def _receive(sync: SyncRecorder) -> tuple[Callable[..., Any], Callable[..., None]]:
    def done(*_: Any) -> None:
        sync.note(SyncKind.event_wait, OTHER_PROCESSES)

    return _itself, done


def _itself(own: Any) -> Any:
    return own


def _put(sync: SyncRecorder) -> tuple[Callable[..., Any], ...]:
    def begin(*args: Any, **keywords: Any) -> Waiting | None:
        own, item = args[0], _item(args, keywords, "item")
        target = sync.key(own)
        sync.note(SyncKind.queue_put, sync.item(target, item))
        # The thread that takes an item makes room.
        return sync.waits(SyncKind.queue_room, target) if own.maxsize > 0 else None

    def done(waiting: Waiting, _: Any) -> None:
        sync.waited(waiting)
        sync.note(SyncKind.queue_room, waiting.target, waiting.start)

    return begin, done, _left(sync)


def _left(sync: SyncRecorder) -> Callable[[Waiting, BaseException], None]:
    return lambda waiting, _: sync.waited(waiting)


def _get(sync: SyncRecorder, takers: Takers) -> tuple[Callable[..., Any], ...]:
    def begin(own: Any) -> Waiting:
        takers.takes(own)
        target = sync.key(own)
        if getattr(own, "maxsize", 0) > 0:
            sync.note(SyncKind.queue_taken, target)
        return sync.waits(SyncKind.queue_get, target)

    def done(waiting: Waiting, item: Any) -> None:
        sync.waited(waiting)
        target = sync.item(waiting.target, item)
        sync.note(SyncKind.queue_get, target, waiting.start)

    return begin, done, _left(sync)


def _task_done(sync: SyncRecorder) -> Callable[[Any], None]:
    def begin(own: Any) -> None:
        sync.note(SyncKind.task_done, sync.item(sync.key(own), None))

    return begin


def _join(sync: SyncRecorder) -> tuple[Callable[..., Any], ...]:
    def begin(own: Any) -> Waiting:
        return sync.waits(SyncKind.queue_join, sync.item(sync.key(own), None))

    def done(waiting: Waiting, _: Any) -> None:
        sync.waited(waiting)
        sync.note(SyncKind.queue_join, waiting.target, waiting.start)

    return begin, done, _left(sync)


def _put_simple(sync: SyncRecorder) -> Callable[..., None]:
    def begin(*args: Any, **keywords: Any) -> None:
        item = _item(args, keywords, "item")
        sync.note(SyncKind.queue_put, sync.item(sync.key(args[0]), item))

    return begin


HOOK = Hook("order of threads (queues)", _hook)
