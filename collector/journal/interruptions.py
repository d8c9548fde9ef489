"""Was an exception raised by a signal handler of the program?

Python calls handlers between any two instructions of the main thread, so also while the recorder is
at work in a call of the program. What a handler raises there is the program's: a limit of time that
is over, a data-loader worker that died.
"""

from __future__ import annotations

import signal
from inspect import CO_VARARGS
from itertools import pairwise
from types import FrameType

_NUMBERS = frozenset(signal.valid_signals())


def is_interruption(error: BaseException) -> bool:
    """Whether a handler is among the calls that `error` came through.

    It is given the number of the signal and the very frame that called it, as no other function is.
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
