"""Pins the CUDA device of a thread, a block or a coroutine."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager
from functools import wraps
from types import TracebackType
from typing import Any


class Pin:
    """A context manager and decorator that makes a device current."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._entered = threading.local()

    def __enter__(self) -> None:
        block = self._block()
        block.__enter__()
        vars(self._entered).setdefault("blocks", []).append(block)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        vars(self._entered)["blocks"].pop().__exit__(kind, error, trace)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function with the device current while it runs."""
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def steps(*args: Any, **keywords: Any) -> Any:
                return await _Steps(function(*args, **keywords), self._block)

            return steps

        @wraps(function)
        def run(*args: Any, **keywords: Any) -> Any:
            with self._block():
                return function(*args, **keywords)

        return run

    def _block(self) -> AbstractContextManager[Any]:
        import torch  # deferred: this module is loaded before torch

        block: AbstractContextManager[Any] = torch.cuda.device(self._device)
        return block


class _Steps:
    """Runs each part of a coroutine between two awaits within its own block."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], block: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self._coroutine = coroutine
        self._block = block

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[Any], Any] = self._coroutine.send
        given: Any = None
        while True:
            try:
                with self._block():
                    awaited = step(given)
            except StopIteration as end:
                return end.value
            try:
                step, given = self._coroutine.send, (yield awaited)
            except BaseException as error:  # belongs to the coroutine, also a cancellation
                step, given = self._coroutine.throw, error


def pin(device: Any) -> Pin:
    """Makes `device` (an index, "cuda:1", ...) the current CUDA device inside.

        threading.Thread(target=ls.pin(1)(work))
        with ls.pin(1): ...
        @ls.pin(1)
        async def serve(): ...

    A new thread starts with device 0, not with its parent's. Coroutines share the current device of
    their thread: one that sets it changes it for the others at its next await. A pinned coroutine
    has its device whenever it runs, and does not change that of others.
    """
    return Pin(device)
