"""A flame graph for https://www.speedscope.app: one profile per thread, in order of time.

The format: https://www.speedscope.app/file-format-schema.json, profiles of type "evented", whose
events open and close frames. Times are whole nanoseconds from the start of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.webapp.exporters.base import ExportRequest, window_within
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array
from lanescope.webapp.timeline.flame_graph.flame import (
    ThreadWindow,
    missing_frames,
    parts_of,
    walked,
)
from lanescope.webapp.timeline.flame_graph.frame_tree import ROOT, FrameTree
from lanescope.webapp.timeline.flame_graph.lane_walk import By, LaneWalk

SCHEMA = "https://www.speedscope.app/file-format-schema.json"

STRETCHES_AT_ONCE = 1 << 16
"""Stretches whose events are written at once."""


def export(run: Run, path: Path, wanted: ExportRequest) -> None:
    """Writes the threads of some ranks, in a window."""
    by = cast(By, wanted.by or "nesting")
    tree = FrameTree()
    walk = LaneWalk(run, tree, by)
    head = json.dumps({"$schema": SCHEMA, "exporter": "LaneScope", "name": run.title})
    with path.open("w", encoding="utf-8") as sink:
        sink.write(f'{head[:-1]},"profiles":[')
        between = ""
        for part in parts_of(run, window_within(run, wanted.window), wanted.ranks):
            between = _profile(run, walk, part, tree, sink, between)
        if why := missing_frames(run, by, tree.frames) or ("" if between else "Nothing ran here."):
            raise RunError(why)
        frames = json.dumps([_frame(tree, number) for number in range(len(tree.frames))])
        sink.write(f'\n],"shared":{{"frames":{frames}}}}}\n')


def _profile(
    run: Run, walk: LaneWalk, part: ThreadWindow, tree: FrameTree, sink: TextIO, between: str
) -> str:
    """Writes the profile of a thread; none where nothing is open. Returns what separates others."""
    thread, (low, high) = part
    about = {
        "type": "evented",
        "name": f"rank {thread.rank} · {thread.name} ({thread.thread})",
        "unit": "nanoseconds",
        "startValue": low,
        "endValue": high,
    }
    begin = f'{between}\n{json.dumps(about)[:-1]},"events":['
    for text in _events(run, walk, part, tree):
        sink.write(begin + text)
        begin = between = ","
    if begin == ",":
        sink.write("]}")
    return between


def _events(run: Run, walk: LaneWalk, part: ThreadWindow, tree: FrameTree) -> Iterator[str]:
    """Yields events as JSON, separated by commas; the last ones close all open frames."""
    last = ROOT
    for piece in walked(run, walk, part):
        before = np.append(last, piece.node[:-1])
        for at in range(0, len(piece.node), STRETCHES_AT_ONCE):
            cut = slice(at, at + STRETCHES_AT_ONCE)
            yield from _changes(
                tree, before[cut], piece.node[cut], piece.kept[cut], piece.edges[:-1][cut]
            )
        last = int(piece.node[-1])
    end = np.array([part[1][1]])
    yield from _changes(tree, np.array([last]), np.array([ROOT]), np.array([0]), end)


def _changes(
    tree: FrameTree, before: Int64Array, node: Int64Array, kept: Int64Array, instant: Int64Array
) -> Iterator[str]:
    """Yields the events that lead from one innermost frame to the next at each instant."""
    depth = np.array(tree.depth)
    used, place = np.unique(np.append(before, node), return_inverse=True)
    above = _ancestors(tree, used, int(depth[used].max()))
    old, new = above[place[: len(before)]], above[place[len(before) :]]
    shared = np.minimum(((old == new) & (old >= 0)).sum(axis=1), kept)
    closed, opened = depth[before] - shared, depth[node] - shared
    count = closed + opened
    if not count.sum():
        return
    which = np.repeat(np.arange(len(count)), count)
    turn = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    closes = turn < closed[which]
    level = np.where(closes, depth[before][which] - 1 - turn, shared[which] + turn - closed[which])
    found = np.where(closes, old[which, level], new[which, level])
    texts = pc.binary_join_element_wise(
        pa.array(['{"type":"O","frame":', '{"type":"C","frame":']).take(
            pa.array(closes.astype(int))
        ),
        pa.array(np.array(tree.frame)[found]).cast(pa.string()),
        ',"at":',
        pa.array(instant[which]).cast(pa.string()),
        "}",
        "",
    )
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)]), texts), ",")
    yield joined[0].as_py()


def _ancestors(tree: FrameTree, nodes: Int64Array, depth: int) -> Int64Array:
    """Returns per node its ancestors and itself, outermost first; -1 where there are fewer."""
    found = np.full((len(nodes), max(depth, 1)), -1, np.int64)
    depths, parents = np.array(tree.depth), np.array(tree.parent)
    here = nodes.copy()
    for level in range(depth, 0, -1):
        deep = depths[here] == level
        found[deep, level - 1] = here[deep]
        here = np.where(deep, parents[here], here)
    return found


def _frame(tree: FrameTree, number: int) -> dict[str, Any]:
    frame = tree.frames[number]
    return {"name": frame.name} | ({"file": frame.file, "line": frame.line} if frame.line else {})
