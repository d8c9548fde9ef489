"""The same selection of a baseline: its threads, its windows, and frames of the same name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import PurePath

import numpy as np

from lanescope.webapp.analysis.sequence_alignment import thread_pairs
from lanescope.webapp.analysis.source_lines import excerpt, text_of
from lanescope.webapp.analysis.stack_frames import frames_of
from lanescope.webapp.bundles.comparable import comparable
from lanescope.webapp.plugins.diff.pairing.renaming import renamed
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Window
from lanescope.webapp.timeline.flame_graph.flame import Flame, ThreadWindow, fold
from lanescope.webapp.timeline.flame_graph.frame_tree import Frame, FrameTree
from lanescope.webapp.timeline.flame_graph.lane_walk import By

_Key = tuple[str, str, str, int]
"""File's name, function, line of the program or its number, which of the lines of that text."""


@lru_cache(maxsize=8)  # a page asks for the same one again, in another theme
def flame(run: Run, parts: tuple[ThreadWindow, ...], by: By, baseline: Run | None) -> Flame:
    """Returns a selection folded into frames, beside the same one of a baseline if there is one.

    Modules of the baseline have the names that they have in the run, as in `diff`. A Python frame
    of it is that of the run with the same line of source in the same function, so lines that were
    only moved stay the same frame.
    """
    tree = FrameTree()
    own = fold(run, parts, by, tree)
    if baseline is None:
        return Flame(by, tree, own)
    base = renamed(*comparable(baseline, run)).run
    same = _same_frames(base, run) if by == "stack" else lambda frame: frame
    return Flame(by, tree, own, fold(base, parts_of_baseline(base, run, parts), by, tree, same))


def parts_of_baseline(
    base: Run, run: Run, parts: Sequence[ThreadWindow]
) -> tuple[ThreadWindow, ...]:
    """Returns the threads that belong to those of the parts, with the same windows of their steps.

    A thread of the baseline without a partner is selected where all threads of its rank are that
    do have one.
    """
    windows = {(one.rank, one.thread): window for one, window in parts}
    of_rank = {one.rank: window for one, window in parts}
    pairs = thread_pairs(base, run)
    left_out = {b.rank for a, b in pairs if a and b and (b.rank, b.thread) not in windows}
    found = []
    for a, b in pairs:
        if a is None or a.rank not in of_rank:
            continue
        window = windows.get((b.rank, b.thread)) if b else None
        if window is None and (b is not None or a.rank in left_out):
            continue
        found.append((a, same_window(base, run, a.rank, window or of_rank[a.rank])))
    return tuple(found)


def same_window(base: Run, run: Run, rank: int, window: Window) -> Window:
    """Returns the window of the baseline that has the same place among the steps of a rank.

    Instants within a step, and between two, keep their share of it; so a step of the run is the
    step of the same number, however long it took.
    """
    ends = np.array([[0, run.duration_ns], [0, base.duration_ns]])
    knots = [ends]
    if rank in run.ranks and rank in base.ranks:
        mine, theirs = run.steps(rank), base.steps(rank)
        _, i, j = np.intersect1d(mine.index, theirs.index, return_indices=True)
        knots += [np.stack([mine.start_ns[i], theirs.start_ns[j]])]
        knots += [np.stack([mine.end_ns[i], theirs.end_ns[j]])]
    known = np.sort(np.concatenate(knots, axis=1), axis=1)
    low, high = np.interp(window, *known).round().astype(np.int64).tolist()
    return low, max(high, low + 1)


def _same_frames(base: Run, run: Run) -> Callable[[Frame], Frame]:
    """Returns a function from a Python frame of the baseline to the same one of the run."""
    of_run = {key: frame for frame, key in _keys(run)}
    of_base = {frame: of_run.get(key, frame) for frame, key in _keys(base)}
    return lambda frame: of_base.get(frame, frame)


def _keys(run: Run) -> Iterator[tuple[Frame, _Key]]:
    """Yields each Python frame of the run's stacks, and what makes it the same in another run."""
    known: dict[Frame, int] = {}
    for rank in run.ranks:
        stacks = run.events("stack", rank, columns=["stack"])["stack"].to_pylist()
        for stack in stacks:
            for f in frames_of(run, rank, stack):
                known.setdefault(Frame(f["function"], "python", f["file"], f["line"]), rank)
    seen: Counter[tuple[str, str, str]] = Counter()
    for frame in sorted(known, key=lambda one: (one.file, one.name, one.line)):
        lines = excerpt(run, known[frame], frame.file, frame.line)
        text = text_of(lines).strip() if lines else f"line {frame.line}"
        place = (PurePath(frame.file).name, frame.name, text)
        yield frame, (*place, seen[place])
        seen[place] += 1
