"""Keeps the recorder's own functions from being compiled by torch.compile."""

from __future__ import annotations

from functools import cache
from types import CodeType
from typing import Any

from ..recorder.private_names import optional


def run_as_it_is(function: Any) -> bool:
    """Keeps Dynamo from compiling a function and what it calls; False: this torch cannot be told.

    Where a compiled model's module is called by torch's own code, which is not compiled (its graph
    broke, or it was compiled in place), Dynamo would compile its hooks, each on its own, and they
    would do nothing. Within a graph they still vanish. Dynamo itself is not imported for it.
    """
    code = getattr(function, "__code__", None)
    return code is not None and _skipped(code)


@cache
def _skipped(code: CodeType) -> bool:
    found: list[Any] = []
    for name in ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction.SKIP"):
        lost = "calls of modules in code that torch.compile makes"
        found.append(optional("torch._C", f"_dynamo.eval_frame.{name}", lost))
        if found[-1] is None:
            return False
    use, strategy, skip = found
    use(code, strategy(skip, skip))
    return True
