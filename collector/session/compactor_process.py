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
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ..format.file_names import JOURNAL_FOLDER, MANIFEST

if TYPE_CHECKING:
    from ..compaction.compact import CompactionProgress

_POLL_S = 1.0
"""Interval between compactions of a running recording, seconds."""

_Signs = tuple[list[bool], list[tuple[str, int]]]

NICENESS = ((250_000_000, 10), (500_000_000, 5))
"""Priority while the journals take less than so many bytes; with more, that of the program: it
records more than a process of low priority gets time to compact beside it."""


def main(arguments: list[str]) -> int:
    """Compacts a run; leaves the rest to the process that finishes it. Returns the exit status."""
    run = Path(arguments[0])
    if len(arguments) > 1:
        return _alone(run, Path(arguments[1]))
    steps, wait_s = CompactionSteps(run), _POLL_S
    while not select.select([sys.stdin], [], [], wait_s)[0]:
        try:
            # Before there is a journal, the program is loading torch on the same cores.
            behind = _journal_bytes(run) > 0 and steps.next().behind
        except OSError:
            return 1
        wait_s = 0.0 if behind else _POLL_S
    return 0


class CompactionSteps:
    """Steps of compaction, each taken only where there may be something new: a program that waits
    or records little is not read again each second."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._signs: _Signs | None = None
        self._progress: CompactionProgress | None = None

    def next(self) -> CompactionProgress:
        """Compacts once; returns what the step before left if nothing has changed since then.

        Raises OSError as `advance` does.
        """
        signs = _signs(self._run)
        if self._progress is None or self._progress.behind or signs != self._signs:
            self._signs, self._progress = signs, _advanced(self._run)
        return self._progress


def _signs(run: Path) -> _Signs:
    """Returns what a step goes by: a segment that is full is followed by another one, a thread that
    ends cuts its own, and a process ends."""
    from ..compaction.journal_folders import has_ended, journal_folders

    ended = [has_ended(folder) for folder in journal_folders(run)]
    return ended, sorted((path, found.st_size) for path, found in _files(run))


def _advanced(run: Path) -> CompactionProgress:
    """Compacts once, in a thread of its own: one that has given up priority cannot have it back.

    Raises OSError as `advance` does.
    """
    # Imported here, so that a short command does not wait for pyarrow.
    from ..compaction.compact import advance

    level = next((nice for bound, nice in NICENESS if _journal_bytes(run) < bound), 0)

    def work() -> CompactionProgress:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), level)
        return advance(run)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def _journal_bytes(run: Path) -> int:
    """Returns the disk space of all journals of a run."""
    return sum(512 * found.st_blocks for _, found in _files(run))


def _files(run: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yields the files of all journals; each may be gone by now."""
    # Each second: pathlib takes several times as long.
    with contextlib.suppress(FileNotFoundError), os.scandir(run / JOURNAL_FOLDER) as folders:
        for folder in folders:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                for file in os.scandir(folder):
                    with contextlib.suppress(FileNotFoundError):
                        yield file.path, file.stat()


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
    steps = CompactionSteps(run)
    try:
        # Do not recreate a removed folder.
        while (run / MANIFEST).exists():
            progress = steps.next()
            if progress.done:
                from ..compaction.compact import compact

                compact(run)
                return 0
            if not progress.behind:
                time.sleep(_POLL_S)
    except OSError:
        return 1
    finally:
        with contextlib.suppress(OSError):
            lock.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
