"""What came of a recorded command, in a sentence: the run, or why there is none."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ..compaction import manifest
from ..format.file_names import JOURNAL_FOLDER, LOCK_FILE, MANIFEST
from ..format.options import Options
from .reached import ENTERED, FAILED, IMPORTED, REACHED_FILE, WITHOUT


def conclude(run: Path, options: Options, command: str, status: int) -> str:
    """Returns what to say of a run after its command, and leaves no folder without a recording.

    `command` is the command's first word, `status` its exit status.
    """
    if not (run / MANIFEST).exists():
        return f"{run} was removed while the command ran; its recording is lost"
    words = _taken(run)
    try:
        recorded = bool(manifest.read(run)["files"]) or any((run / JOURNAL_FOLDER).glob("*/"))
    except (OSError, ValueError, LookupError):
        recorded = True  # what is wrong with it, opening it says
    if recorded:
        return f"recorded {run}; see it with: lanescope view {run}"
    forget(run)
    ended = f" (it ended with exit status {status})" if status else ""
    return f"nothing was recorded: {_reason(command, words, options)}{ended}"


def _taken(run: Path) -> list[str]:
    """Returns the lines of the processes; the file is gone then."""
    try:
        lines = (run / REACHED_FILE).read_text(errors="replace").splitlines()
        (run / REACHED_FILE).unlink()
    except OSError:
        return []
    return lines


def forget(run: Path) -> None:
    """Removes what `lanescope record` made for a run of which nothing was recorded."""
    with contextlib.suppress(OSError):
        for name in (MANIFEST, REACHED_FILE, LOCK_FILE):
            (run / name).unlink(missing_ok=True)
        journal = run / JOURNAL_FOLDER
        if journal.is_dir():
            journal.rmdir()
        run.rmdir()


def _reason(command: str, words: list[str], options: Options) -> str:
    """Of several processes, that of the one which came furthest."""
    if IMPORTED in words:
        window = "" if options.steps is None else " in steps {}:{}".format(*options.steps)
        return f"the command imported torch, and ran no operator{window}"
    if FAILED in words:
        return "the command imported torch, and recording could not be turned on; see above"
    pythons = sorted({word.partition(" ")[2] for word in words if word.startswith(WITHOUT)})
    if pythons:
        return (
            f"{', '.join(pythons)} has no lanescope installed; install it there, or run the "
            "command with a Python that has it"
        )
    if ENTERED in words:
        return "the command did not import torch"
    if os.path.basename(command).startswith("python"):
        return (
            f"{command} did not load LaneScope; do not start it with -S, and with -I or -E only "
            "where lanescope is installed for it"
        )
    return (
        f"{command} did not start Python, or not with LaneScope (python -S, an empty environment)"
    )
