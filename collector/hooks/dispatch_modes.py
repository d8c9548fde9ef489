"""Pushes and pops dispatch modes of the calling thread, by torch's private functions.

A mode's own `__enter__` would also set process-wide flags that other threads read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from ..recorder.private_names import optional

_MODULE = "torch.utils._python_dispatch"
_LOST = "operators (portable engine), and validators of operators"


@cache
def _stack() -> tuple[Callable[[Any], None], Callable[[], Any], Callable[[], Any]] | None:
    """Returns the functions push, pop and current; None if this torch lacks one."""
    push, pop, current = (
        optional(_MODULE, name, _LOST)
        for name in ("_push_mode", "_pop_mode", "_get_current_dispatch_mode")
    )
    if push is None or pop is None or current is None:
        return None
    return push, pop, current


@cache
def _depth() -> Callable[[], int]:
    return optional("torch._C", "_len_torch_dispatch_stack", _LOST) or (lambda: 0)


def depth() -> int:
    """Returns how many modes are entered; in a mode's handler, those below it."""
    return _depth()()


def push(mode: Any) -> bool:
    """Makes the mode the innermost; returns False if this torch cannot."""
    stack = _stack()
    if stack is not None:
        stack[0](mode)
    return stack is not None


def pop(mode: Any) -> None:
    """Removes the mode, unless another was entered since and not left."""
    stack = _stack()
    if stack is not None and mode is not None and stack[2]() is mode:
        stack[1]()


def pop_own(kind: type) -> Any:
    """Removes the innermost mode if it is of this type; returns it, or None."""
    stack = _stack()
    mode = stack[2]() if stack is not None else None
    if not isinstance(mode, kind):
        return None
    pop(mode)
    return mode


@contextlib.contextmanager
def entered(mode: Any) -> Iterator[None]:
    """Pushes the mode for the body of a context."""
    pushed = push(mode)
    try:
        yield
    finally:
        stack = _stack()
        if pushed and stack is not None:
            stack[1]()
