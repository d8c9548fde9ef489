"""torch.compile: another backend where the user asks for one, to see single ops; and how a function
of the recorder's is kept from being compiled.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ...recorder.private_names import optional

# The recorder's module hooks are global, and do see a compiled module's wrapper once more; they
# expect it. The program did nothing that it would have to be warned of.
_HOOKS_WARNING = r"Using `torch\.compile\(module\)` when there are global hooks on modules"


def install(backend: str | None) -> Callable[[], None]:
    """Compile with `backend` whatever the program asks for; with None, as the program does."""
    warnings.filterwarnings("ignore", message=_HOOKS_WARNING, category=UserWarning)
    original: Callable[..., Any] = torch.compile

    def uninstall() -> None:
        torch.compile = original

    if backend is None:
        return uninstall

    @wraps(original)
    def compile_with_backend(model: Any = None, **settings: Any) -> Any:
        # These belong to the backend that the program had chosen.
        settings |= {"backend": backend, "mode": None, "options": None}
        return original(model, **settings)

    torch.compile = compile_with_backend
    return uninstall


def run_as_it_is(function: Any) -> bool:
    """Keep Dynamo from compiling a function and what it calls; False: this torch cannot be told.

    Where a compiled model's module is called by torch's own code, which is not compiled (its graph
    broke, or it was compiled in place), Dynamo would compile its hooks, each on its own, and they
    would do nothing. Within a graph they still vanish. Dynamo itself is not imported for it.
    """
    found: list[Any] = []
    for name in ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction.SKIP"):
        lost = "calls of modules in code that torch.compile makes"
        found.append(optional("torch._C", f"_dynamo.eval_frame.{name}", lost))
        if found[-1] is None:
            return False
    use, strategy, skip = found
    use(function.__code__, strategy(skip, skip))
    return True
