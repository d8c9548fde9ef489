"""Describes the result of a recorded command: the run, or why nothing was recorded."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path

from ..compaction import manifest
from ..format.file_names import JOURNAL_FOLDER, LOCK_FILE, MANIFEST
from ..format.options import Options
from .reached import ENTERED, FAILED, IMPORTED, REACHED_FILE, WITHOUT


def conclude(run: Path, options: Options, command: str, status: int) -> tuple[bool, str]:
    """Returns if a finished command was recorded, and a sentence about the run or why it was not.

    Removes a folder without recording.

    `command`: the command's first word; `status`: its exit status.
    """
    if not (run / MANIFEST).exists():
        return False, f"{run} was removed while the command ran; its recording is lost"
    words = _pop_lines(run)
    try:
        recorded = bool(manifest.load_manifest(run)["files"]) or any(
            (run / JOURNAL_FOLDER).glob("*/")
        )
    except (OSError, ValueError, LookupError):
        recorded = True  # opening it reports the error
    if recorded:
        return True, f"recorded {run}; see it with: lanescope view {shlex.quote(str(run))}"
    forget(run)
    ended = f" (it ended with exit status {status})" if status else ""
    return False, f"nothing was recorded: {_reason(command, words, options)}{ended}"


def _pop_lines(run: Path) -> list[str]:
    """Returns the lines of the processes, and deletes their file."""
    try:
        lines = (run / REACHED_FILE).read_text(errors="replace").splitlines()
        (run / REACHED_FILE).unlink()
    except OSError:
        return []
    return lines


def forget(run: Path) -> None:
    """Removes a run's folder and files if nothing was recorded."""
    with contextlib.suppress(OSError):
        for name in (MANIFEST, REACHED_FILE, LOCK_FILE):
            (run / name).unlink(missing_ok=True)
        journal = run / JOURNAL_FOLDER
        if journal.is_dir():
            journal.rmdir()
        run.rmdir()


def _reason(command: str, words: list[str], options: Options) -> str:
    """Returns the reason for the process that came furthest."""
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
