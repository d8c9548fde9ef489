"""The spans of a selection folded into frames: how long each was open, and how long innermost.

`own` is the time in which a frame is the innermost one that is open, `total` adds all frames below
it: int64 nanoseconds, summed over the selected threads. So the totals of the outermost frames add
up to the time in which a span is open on a thread, counted once per thread and instant.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lanescope.webapp.runs.run import Run, Thread
from lanescope.webapp.runs.types import BoolArray, Int64Array, Window
from lanescope.webapp.timeline.flame_graph.frame_tree import ROOT, Frame, FrameTree
from lanescope.webapp.timeline.flame_graph.lane_walk import By, LaneWalk, Stretches

MIN_SHARE = 0.001
"""Of the selection; frames below are gathered into one beside their siblings, and counted."""

_MAX_FRAMES = 150
"""Frames of a picture, each four elements of a page; of more, the shortest are gathered too."""

OPERATORS_AT_ONCE = 2_000_000
"""About as many operators are walked at once, some 200 bytes each."""

_COLUMNS = (
    "node",
    "parent",  # -1: none
    "depth",
    "frame",  # Frame; None: the whole, and where frames are gathered
    "gathered",  # frames that were put together here; 0: none, this is a frame of its own
    "total_ns",
    "self_ns",
    "base_total_ns",
    "base_self_ns",
)

ThreadWindow = tuple[Thread, Window]
"""What is selected of a thread."""


def parts_of(
    run: Run, window: Window | None = None, ranks: Sequence[int] | None = None
) -> tuple[ThreadWindow, ...]:
    """Returns a window of all threads of some ranks; None: all of the run, all ranks."""
    chosen = (0, max(run.duration_ns, 1)) if window is None else window
    return tuple((one, chosen) for one in run.threads if ranks is None or one.rank in ranks)


def walked(run: Run, walk: LaneWalk, part: ThreadWindow) -> Iterator[Stretches]:
    """Yields the stretches of a thread, piece by piece: of a long one not all fit in memory."""
    thread, (low, high) = part
    held = run.rows.within("op", [thread.rank], (low, high), thread.thread)
    pieces = 1 + held // OPERATORS_AT_ONCE
    edges = np.unique(np.linspace(low, high, pieces + 1).astype(np.int64)).tolist()
    for piece in itertools.pairwise(edges):
        yield walk.stretches(thread, piece)


def fold(
    run: Run,
    parts: Sequence[ThreadWindow],
    by: By,
    tree: FrameTree,
    renamed: Callable[[Frame], Frame] = lambda frame: frame,
) -> Int64Array:
    """Adds the frames of a selection to a tree and returns the own time of each of its nodes, ns.

    `renamed` gives a frame the name that it has in the tree.
    """
    walk = LaneWalk(run, tree, by, renamed)
    own = np.zeros(1, np.int64)
    for part in parts:
        for piece in walked(run, walk, part):
            # Sums of times stay below 2^53, so the weights' float64 holds them exactly.
            spent = np.bincount(piece.node, np.diff(piece.edges), len(tree)).astype(np.int64)
            spent[: len(own)] += own
            own = spent
    own[ROOT] = 0  # nothing is open
    return own


def missing_frames(run: Run, by: By, frames: Iterable[Frame | None]) -> str:
    """Returns why no frame is a stack's or a module's, and what to record; "" where some are."""
    kinds = {frame.kind for frame in frames if frame is not None}
    if by == "stack" and "python" not in kinds:
        if run.imported:
            return "No operator has a Python stack: not in imported traces."
        return "No operator of this selection has a Python stack: record with --stacks all."
    if by == "module" and "module" not in kinds:
        return "No operator of this selection ran within a torch.nn.Module."
    return ""


@dataclass(frozen=True, eq=False)
class Flame:
    """A selection folded into a tree, beside the same selection of a baseline or without one."""

    by: By
    tree: FrameTree
    own: Int64Array
    base_own: Int64Array | None = None

    def frames(self, least: float = MIN_SHARE, most: int = _MAX_FRAMES) -> pd.DataFrame:
        """Returns one row per frame that is shown, parents first, with COLUMNS.

        Frames with less than `least` of the total, and all but about `most`, are gathered per
        parent. Without a baseline its columns are 0. Row 0 is the whole.
        """
        tree, size = self.tree, len(self.tree)
        own = np.zeros((2, size), np.int64)
        for row, spent in enumerate((self.own, self.base_own)):
            if spent is not None:
                own[row, : len(spent)] = spent
        total = np.stack([tree.sums(spent) for spent in own])
        widest = total.max(axis=0)
        limit = max(least * widest[ROOT], 1)
        if np.count_nonzero(widest >= limit) > most:
            limit = np.partition(widest, -most)[-most]
        shown = widest >= limit
        shown[ROOT] = True
        parent, depth = np.array(tree.parent), np.array(tree.depth)
        at = np.flatnonzero(shown)
        anchor, count, rest = _gathered(shown, widest > 0, parent, depth, total)
        table = pd.DataFrame(
            {
                "node": np.concatenate([at, size + np.arange(len(anchor))]),
                "parent": np.concatenate([parent[at], anchor]),
                "depth": np.concatenate([depth[at], depth[anchor] + 1]),
                "gathered": np.concatenate([np.zeros(len(at), np.int64), count]),
            }
        )
        for row, name in enumerate(("", "base_")):
            table[f"{name}total_ns"] = np.concatenate([total[row, at], rest[row]])
            table[f"{name}self_ns"] = np.concatenate([own[row, at], rest[row]])
        frames = [tree.frames[tree.frame[node]] if node else None for node in at.tolist()]
        table["frame"] = pd.Series([*frames, *[None] * len(anchor)], dtype="object")
        return table[list(_COLUMNS)]


def _gathered(
    shown: BoolArray, spent: BoolArray, parent: Int64Array, depth: Int64Array, total: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Returns nodes with frames below that are not shown, how many, and the time of these."""
    hidden = spent & ~shown
    anchor = parent.copy()
    for level in np.unique(depth[hidden]):
        here = np.flatnonzero(hidden & (depth == level))
        above = parent[here]
        anchor[here] = np.where(shown[above], above, anchor[above])
    anchors, counts = np.unique(anchor[hidden], return_counts=True)
    outermost = np.flatnonzero(hidden & shown[parent])
    rest = np.zeros((2, len(parent)), np.int64)
    for row in range(2):
        np.add.at(rest[row], parent[outermost], total[row, outermost])
    return anchors, counts, rest[:, anchors]
