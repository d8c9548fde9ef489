"""Records how far each process of a recorded command came, in a file that `outcome.py` reads.

Loaded at the start of an interpreter: must be cheap, and loads no other module. `lanescope record`
creates the file in the run's folder, and each Python process that LaneScope enters appends a line.
"""

import os

from ..format.variables import RUN_VARIABLE

REACHED_FILE = ".reached"
"""One word per line and process; `startup/sitecustomize.py` also writes it."""

ENTERED, IMPORTED, FAILED, WITHOUT = "entered", "imported", "failed", "without"
"""Words: Python has begun; torch is imported and recording is on; recording could not be turned on;
lanescope is not installed, followed by the path of Python."""

_MAX_BYTES = 64 * 1024


def report_reached(word: str) -> None:
    """Appends this process's line if `lanescope record` started it. Never raises."""
    run = os.environ.get(RUN_VARIABLE)
    if not run:
        return
    try:
        # Without O_CREAT: a run without the file needs no line.
        file = os.open(os.path.join(run, REACHED_FILE), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            if os.fstat(file).st_size < _MAX_BYTES:
                os.write(file, f"{word}\n".encode())
        finally:
            os.close(file)
    except OSError:
        pass
