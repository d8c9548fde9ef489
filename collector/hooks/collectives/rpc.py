"""Records workers of torch.distributed.rpc: name and rank of each, which needs no process group,
and errors of the functions that others call, with who gets them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any
from zlib import crc32

import torch.distributed as dist

from ...format.marks import RemoteError
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..exceptions import place_of_text
from ..patches import caller
from ..stacks import program_line
from .init_process_group import expect, rank_and_world_size

_INIT = "init_rpc"
_LOST = "names and ranks of RPC workers"
_ERRORS = "errors of remote functions"

_MAX_MARKS = 300
"""Different errors and lines of a process that are marked."""


def _hook(context: HookContext) -> None:
    """Describes the process as the worker that it becomes, before it waits for the others."""
    recorder, patches = context.recorder, context.patches
    errors = context.share(RemoteErrors(recorder, context.stacks.is_library))
    if not (dist.is_available() and dist.rpc.is_available()):
        return
    original: Any = vars(dist.rpc).get(_INIT)
    parameters = inspect.signature(original) if original is not None else None

    def begins(*arguments: Any, **keywords: Any) -> None:
        if parameters is None:
            return
        given = parameters.bind(*arguments, **keywords).arguments
        recorder.describe(worker=str(given["name"]))
        errors.on_threads()
        rank, size = rank_and_world_size(given)
        if size > 1 and 0 <= rank < size and not dist.is_initialized():
            expect(recorder, rank, size)

    patches.ends(dist.rpc, _INIT, begins, lost=_LOST)
    patches.ends(dist.rpc.internal, "_run_function", _itself, errors.ran, lost=_ERRORS)
    patches.ends(dist.rpc, "rpc_async", errors.called, lost=_ERRORS)


def _itself(call: Any) -> Any:
    return call


class RemoteErrors:
    """Marks what remote functions raise, and what their callers get of it."""

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder, self._is_library = recorder, is_library
        self._known: set[RemoteError] = set()
        self.on_threads: Callable[[], object] = lambda: None  # as a worker starts its threads

    def ran(self, call: Any, result: Any) -> None:
        """Marks an exception that a function raised for another worker."""
        if isinstance(result, dist.rpc.internal.RemoteException):
            place = place_of_text(result.msg, self._is_library)
            short = " ".join(result.msg.partition("\n")[2].partition("\nTraceback")[0].split())
            text = f"{_name(call.func)}: {short[:_MAX_TEXT]}" + f" ({place})" * bool(place)
            self._mark("raised", _checksum(result.msg), text)

    def read(self, error: BaseException) -> None:
        """Marks that a caller gets such an exception, which a future raises."""
        said = error.args[0] if error.args else None
        if isinstance(said, str) and _REMOTE in said:
            self._mark("read", _checksum(said), "")

    def called(self, _to: Any, function: Any, *_: Any, **__: Any) -> None:
        """Marks the line that calls a function of another worker without waiting for it."""
        self._mark("called", _name(function), program_line(caller(), self._is_library))

    def _mark(self, what: str, key: str, text: str) -> None:
        one = RemoteError(what, key, text)
        if one not in self._known and len(self._known) < _MAX_MARKS:
            self._known.add(one)
            self._recorder.mark(one.encode())


_REMOTE = "On WorkerInfo("
"""How the text of such an exception begins."""

_MAX_TEXT = 200
"""Characters of an error that are kept."""


def _name(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).replace(" ", "")


def _checksum(message: str) -> str:
    """Returns that of the worker and the class of the error: torch words the rest in other ways."""
    worker, _, said = message.partition(_REMOTE)[2].partition("\n")
    return f"{crc32((worker + said.partition('(')[0]).encode()):08x}"


HOOK = Hook("RPC workers", _hook)
