"""How far the processes of a recorded command came, in a file of the run: `outcome.py` reads it.

Loaded when an interpreter starts, so it must be cheap, and loads no other module. `lanescope
record` leaves the file empty in the run's folder, and each Python process that LaneScope enters
appends a line.
"""

import os

from ..format.variables import RUN_VARIABLE

REACHED_FILE = ".reached"
"""A word per line, each of a process; `startup/sitecustomize.py` writes there as well."""

ENTERED, IMPORTED, FAILED, WITHOUT = "entered", "imported", "failed", "without"
"""Python has begun; torch is imported and recording is on; it could not be turned on; Python has
no lanescope installed, and then which Python."""

_MOST_BYTES = 64 * 1024


def reached(word: str) -> None:
    """Notes how far this process came, if `lanescope record` watches over it. Never raises."""
    run = os.environ.get(RUN_VARIABLE)
    if not run:
        return
    try:
        # Without O_CREAT: nobody asks where the file is not.
        file = os.open(os.path.join(run, REACHED_FILE), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            if os.fstat(file).st_size < _MOST_BYTES:
                os.write(file, f"{word}\n".encode())
        finally:
            os.close(file)
    except OSError:
        pass
