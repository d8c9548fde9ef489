"""Compacts a run while it is being recorded: a process of low priority.

    python -m lanescope.collector.session.compactor_process RUN
    python -m lanescope.collector.session.compactor_process RUN LOCK

The first runs until its input closes, the second until no recorded process is left.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

from ..format.file_names import MANIFEST

POLL_S = 1.0
"""Interval between compactions of a running recording, seconds."""


def main(arguments: list[str]) -> int:
    """Compacts a run; leaves the rest to the process that finishes it. Returns the exit status."""
    os.nice(10)
    run = Path(arguments[0])
    if len(arguments) > 1:
        return _alone(run, Path(arguments[1]))
    while not select.select([sys.stdin], [], [], POLL_S)[0]:
        # Imported here, so that a short command does not wait for pyarrow.
        from ..compaction.compact import advance

        try:
            advance(run)
        except OSError:
            return 1
    return 0


def _alone(run: Path, lock: Path) -> int:
    """Compacts and finishes a run without supervisor, also if all its processes were killed."""
    with contextlib.suppress(PermissionError):  # a group leader cannot
        os.setsid()
    for name in os.listdir("/proc/self/fd"):  # the program's, perhaps pipes
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    os.chdir("/")
    from ..compaction.compact import advance, compact

    try:
        # Do not recreate a removed folder.
        while (run / MANIFEST).exists():
            if advance(run):
                compact(run)
                return 0
            time.sleep(POLL_S)
    except OSError:
        return 1
    finally:
        with contextlib.suppress(OSError):
            lock.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
