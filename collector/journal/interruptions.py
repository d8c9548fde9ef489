"""Recognises exceptions that a signal handler of the program raised.

Python calls handlers between any two instructions of the main thread, also inside the recorder. An
exception of a handler belongs to the program: a timeout, or a data-loader worker that died.
"""

from __future__ import annotations

import signal
from inspect import CO_VARARGS
from itertools import pairwise
from types import FrameType

_NUMBERS = frozenset(signal.valid_signals())


def is_interruption(error: BaseException) -> bool:
    """Returns True if `error` passed through a signal handler.

    Only a handler's arguments are a signal number and the frame that it interrupted.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        if _is_handler(trace.tb_next.tb_frame, trace.tb_frame):
            return True
        trace = trace.tb_next
    return False


def _is_handler(frame: FrameType, caller: FrameType) -> bool:
    code, values = frame.f_code, frame.f_locals
    given = [values.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & CO_VARARGS:
        given += values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ())
    return any(
        second is caller and isinstance(first, int) and first in _NUMBERS
        for first, second in pairwise(given)
    )
