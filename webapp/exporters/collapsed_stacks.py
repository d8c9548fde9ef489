"""A flame graph as collapsed stacks, which flamegraph.pl, inferno, speedscope and others read.

A line per path of frames: `outermost;inner;innermost 1234`, with the time in which the last one
was innermost, ns, of all threads together. The numbers add up to the time in which anything ran.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np

from lanescope.webapp.exporters.base import ExportRequest, window_within
from lanescope.webapp.runs import units
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run
from lanescope.webapp.timeline.flame_graph.flame import fold, missing_frames, parts_of
from lanescope.webapp.timeline.flame_graph.frame_tree import FrameTree
from lanescope.webapp.timeline.flame_graph.lane_walk import By


def export(run: Run, path: Path, wanted: ExportRequest) -> None:
    """Writes the threads of some ranks, in a window."""
    by = cast(By, wanted.by or "nesting")
    tree = FrameTree()
    parts = parts_of(run, window_within(run, wanted.window), wanted.ranks)
    own = fold(run, parts, by, tree)
    if why := missing_frames(run, by, tree.frames) or ("" if own.any() else "Nothing ran here."):
        raise RunError(why)
    with path.open("w", encoding="utf-8") as sink:
        for node in np.flatnonzero(own).tolist():
            frames = (frame.title.replace(";", ":") for frame in tree.path(node))
            sink.write(f"{';'.join(map(units.printable, frames))} {own[node]}\n")
