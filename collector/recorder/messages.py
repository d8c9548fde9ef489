"""What the recorder says to the user, from within the recorded program."""

from __future__ import annotations

import contextlib
import sys


def say(sentence: str) -> None:
    """Write one line on standard error, where there is one."""
    stream = sys.stderr
    if stream is not None:  # as in a program that was started without it
        with contextlib.suppress(OSError, ValueError):
            stream.write(f"lanescope: {sentence}\n")
            stream.flush()
