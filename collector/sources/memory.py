"""Memory of the process, sampled at step boundaries."""

from __future__ import annotations

import os
from pathlib import Path

from ..recorder import Recorder

SERIES = "lanescope/rss"
"""Resident set size in bytes."""

_STATM = Path("/proc/self/statm")


def sample(recorder: Recorder) -> None:
    """Record the resident set size now; nothing where the system does not tell it cheaply."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except OSError:
        return
    recorder.value(SERIES, float(pages * os.sysconf("SC_PAGE_SIZE")))
