"""Compacts a run while it is being recorded: a process of low priority.

    python -m lanescope.collector.session.compactor_process RUN
    python -m lanescope.collector.session.compactor_process RUN LOCK

The first until its input closes, the second until no recorded process is left.
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
"""How often a running recording is looked at, seconds."""


def main(arguments: list[str]) -> int:
    """What cannot be compacted now is left to whoever finishes the run."""
    os.nice(10)
    run = Path(arguments[0])
    if len(arguments) > 1:
        return _alone(run, Path(arguments[1]))
    while not select.select([sys.stdin], [], [], POLL_S)[0]:
        # Loaded here, so that a command shorter than a look does not wait for pyarrow.
        from ..compaction.compact import advance

        try:
            advance(run)
        except OSError:
            return 1
    return 0


def _alone(run: Path, lock: Path) -> int:
    """Nobody waits for this process. It finishes the run, also where all others were killed."""
    with contextlib.suppress(PermissionError):  # the leader of a group cannot
        os.setsid()
    for name in os.listdir("/proc/self/fd"):  # of the program, pipes perhaps
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    os.chdir("/")
    from ..compaction.compact import advance, compact

    try:
        # A folder that was removed must not come back.
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
