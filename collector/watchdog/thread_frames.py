"""Reads the frames of other threads while those go on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ..journal.own_threads import pause_collection, resume_collection


@contextmanager
def thread_frames() -> Iterator[dict[int, FrameType]]:
    """Yields the innermost frame of each thread by its ident; read them in a brief block.

    Python 3.11 makes a frame's object only as `f_back` is read, and may collect garbage there. A
    destructor of the program then lets the other thread return from that frame, whose memory is
    read afterwards: wrong objects, or a crash. So no garbage is collected within the block.
    """
    collects = pause_collection()
    frames = sys._current_frames()
    try:
        yield frames
    finally:
        # The caller's own frame is among them: a circle, which would keep all that the functions
        # of the program hold.
        frames.clear()
        resume_collection(collects)
