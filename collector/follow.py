"""Compacts a run while it is being recorded: a process of low priority, until its input closes.

python -m lanescope.collector.follow RUN
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

POLL_S = 1.0
"""How often a running recording is looked at, seconds."""


def main(arguments: list[str]) -> int:
    """`RUN`. What cannot be compacted now is left to whoever finishes the run."""
    os.nice(10)
    run = Path(arguments[0])
    while not select.select([sys.stdin], [], [], POLL_S)[0]:
        # Loaded here, so that a command shorter than a look does not wait for pyarrow.
        from .compact import advance

        try:
            advance(run)
        except OSError:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
