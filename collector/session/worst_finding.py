"""Names the most severe finding of a run at the end of `lanescope record`.

The checks run in a process of their own, of low priority and for a bounded time: whatever comes of
them, the recording and the command's exit status stay as they are.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ..format.options import RUN_VARIABLE

LIMIT_S = 20.0
"""The checks of a run may take this long."""

_MAX_BYTES = 100 << 20
"""Of Parquet files. Larger runs would not be checked within LIMIT_S."""


def worst_finding(run: Path, limit_s: float = LIMIT_S) -> str:
    """Returns a sentence about the most severe finding of a run; empty if it cannot be checked.

    Ctrl-C, and signals that end a process, end the checks and nothing else.
    """
    later = f"check it with: lanescope check {run}"
    try:
        size = sum(path.stat().st_size for path in run.rglob("*.parquet"))
        if size > _MAX_BYTES:
            return f"the run is large; {later}"
        return _sentence(_checked(run, limit_s), run)
    except subprocess.TimeoutExpired:
        return f"its checks take more than {limit_s:.0f} s; {later}"
    except (KeyboardInterrupt, OSError, ValueError, LookupError, TypeError):
        return ""


def _checked(run: Path, limit_s: float) -> Any:
    """Returns the object that `check --json` prints. Raises ValueError where it prints none."""
    command = [sys.executable, "-m", "lanescope", "check", str(run), "--json", "--fail-on", "never"]
    environment = {k: v for k, v in os.environ.items() if k != RUN_VARIABLE}
    with _interruptible():
        done = subprocess.run(
            ["nice", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    return json.loads(done.stdout)


def _sentence(report: Any, run: Path) -> str:
    severe = [one for one in report["findings"] if one["severity"] != "info"]
    if severe:
        title = "".join(c if c.isprintable() else "?" for c in str(severe[0]["title"]))
        others = f" (and {len(severe) - 1} more)" if len(severe) > 1 else ""
        return f"{severe[0]['severity']}: {title}{others}; see: lanescope check {run}"
    failed = [one["name"] for one in report["checks"] if not one["passed"]]
    if failed:
        return f"error: {failed[0]} is beyond its limit; see: lanescope check {run}"
    passed = sum(one["unanswered"] is None for one in report["examined"]) + len(report["checks"])
    return f"{passed} checks passed"


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raises KeyboardInterrupt in the block for signals that would end this process."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in ending}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
