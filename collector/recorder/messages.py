"""Prints messages of the recorder from within the recorded program."""

from __future__ import annotations

import contextlib
import sys


def say(sentence: str) -> None:
    """Writes one line to standard error, if the program has one."""
    stream = sys.stderr
    if stream is not None:
        with contextlib.suppress(Exception):  # it may be an object of the program
            stream.write(f"lanescope: {sentence}\n")
            stream.flush()
