"""Results that one thread leaves for another in futures of torch, and what is called with them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...format.record_kinds import SyncKind
from ...recorder.private_names import optional
from ..patches import Patches
from .sync_events import Handovers

_Method = Callable[..., Any]


def install(handovers: Handovers) -> Callable[[], None]:
    """Record `torch.futures`, also futures that operations hand out (`Work.get_future`)."""
    patches, numbers = Patches(), _Numbers(handovers)
    kind: Any = torch.futures.Future.__base__  # what `then` and `collect_all` make is of it

    def replace(name: str, make: Callable[[Handovers, _Numbers, _Method], _Method]) -> None:
        patches.replace(kind, name, lambda original: make(handovers, numbers, original))

    replace("set_result", _setting)
    for name in ("wait", "value"):
        replace(name, _getting)
    replace("done", _looking)
    replace("then", _chaining)
    replace("add_done_callback", _calling)
    # Looked up by `collect_all` and `wait_all` each time.
    original = optional("torch._C", "_collect_all", "order by torch.futures.collect_all")
    if original is not None:
        patches.put(sys.modules["torch._C"], "_collect_all", _collecting(numbers, original))
    return patches.undo


class _Numbers:
    """By which numbers a future's result comes: its own first, then those of whom it is made of.

    Kept beside the futures, whose type allows no attributes. A callback is given another object for
    the same future, so that what it receives is told when it is added.
    """

    def __init__(self, handovers: Handovers) -> None:
        self._handovers = handovers
        self._known: weakref.WeakKeyDictionary[Any, tuple[int, ...]] = weakref.WeakKeyDictionary()

    def of(self, future: Any) -> tuple[int, ...]:
        known = self._known.get(future)
        if known is None:
            known = self._known.setdefault(future, (self._handovers.next_number(),))
        return known

    def made(self, future: Any, numbers: tuple[int, ...]) -> None:
        self._known[future] = numbers

    def received(self, numbers: Sequence[int]) -> None:
        """The calling thread knows what those that set these did before."""
        for number in numbers:
            self._handovers.note(SyncKind.future_get, number)


def _setting(handovers: Handovers, numbers: _Numbers, original: _Method) -> _Method:
    def set_result(self: Any, *args: Any, **keywords: Any) -> Any:
        if handovers.concurrent:
            handovers.note(SyncKind.future_set, numbers.of(self)[0])
        return original(self, *args, **keywords)

    return set_result


def _getting(handovers: Handovers, numbers: _Numbers, original: _Method) -> _Method:
    def get(self: Any, *args: Any, **keywords: Any) -> Any:
        if not handovers.concurrent:
            return original(self, *args, **keywords)
        own, *others = numbers.of(self)
        try:
            result, start = handovers.wait(
                SyncKind.future_get, own, lambda: original(self, *args, **keywords)
            )
        except BaseException:  # the result may be that exception
            numbers.received((own, *others))
            raise
        handovers.note(SyncKind.future_get, own, start)
        numbers.received(others)
        return result

    return get


def _looking(handovers: Handovers, numbers: _Numbers, original: _Method) -> _Method:
    def done(self: Any) -> Any:
        seen = original(self)
        if seen and handovers.concurrent:
            numbers.received(numbers.of(self))
        return seen

    return done


def _run_when_set(
    handovers: Handovers, numbers: _Numbers, future: Any, callback: Callable[..., Any], result: int
) -> Callable[..., Any]:
    """`callback`, which knows of its adding and of the setting, and sets `result`."""
    added, known = handovers.next_number(), numbers.of(future)
    handovers.note(SyncKind.callback_post, added)

    def run(*args: Any) -> Any:
        handovers.note(SyncKind.callback_run, added)
        numbers.received(known)
        try:
            return callback(*args)
        finally:
            handovers.note(SyncKind.future_set, result)

    return run


def _chaining(handovers: Handovers, numbers: _Numbers, original: _Method) -> _Method:
    def then(self: Any, callback: Callable[..., Any]) -> Any:
        result = handovers.next_number()
        made = original(self, _run_when_set(handovers, numbers, self, callback, result))
        numbers.made(made, (result,))
        return made

    return then


def _calling(handovers: Handovers, numbers: _Numbers, original: _Method) -> _Method:
    def add_done_callback(self: Any, callback: Callable[..., Any]) -> None:
        result = handovers.next_number()  # which nobody can wait for
        original(self, _run_when_set(handovers, numbers, self, callback, result))

    return add_done_callback


def _collecting(numbers: _Numbers, original: Callable[..., Any]) -> Callable[..., Any]:
    def collect_all(futures: Any) -> Any:
        futures = list(futures)
        made = original(futures)
        sources = dict.fromkeys(number for future in futures for number in numbers.of(future))
        numbers.made(made, tuple(sources) or numbers.of(made))
        return made

    return collect_all
