"""Keeps the recorder's own functions from being compiled by torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import CodeType
from typing import Any

from ..recorder.private_names import optional


def run_as_it_is(function: Any) -> bool:
    """Keeps Dynamo from compiling a function and its callees; False: this torch cannot.

    If a graph breaks, or a model is compiled in place, torch's uncompiled code calls modules.
    Dynamo would then compile each of their hooks separately, and they would do nothing. Within a
    graph they still vanish. Does not import Dynamo.
    """
    code = getattr(function, "__code__", None)
    return code is not None and _skipped(code)


@cache
def _skipped(code: CodeType) -> bool:
    skip = _skip()
    if skip is not None:
        skip(code)
    return skip is not None


@cache
def _skip() -> Callable[[CodeType], object] | None:
    """Returns what keeps Dynamo from compiling a code; None: this torch cannot."""
    found: list[Any] = []
    for name in ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction.SKIP"):
        lost = "calls of modules in code that torch.compile makes"
        found.append(optional("torch._C", f"_dynamo.eval_frame.{name}", lost))
        if found[-1] is None:
            return None
    use, strategy, skip = found
    return lambda code: use(code, strategy(skip, skip))
