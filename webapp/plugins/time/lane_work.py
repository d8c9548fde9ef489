"""What a thread does in a window: at each instant its innermost operator and phase, or neither."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import pyarrow as pa

from lanescope.webapp.analysis.arrow_columns import ends_ns
from lanescope.webapp.analysis.stack_frames import where_of
from lanescope.webapp.plugins.collectives.slow_places import (
    MIN_GAP_NS,
    line_between,
    lines_around,
    sampled_line,
)
from lanescope.webapp.plugins.time.breakdown import (
    PHASE_CATEGORIES,
    autograd_threads,
    between_operators,
    phases_of,
    training_thread,
)
from lanescope.webapp.runs.intervals import Intervals, enclosing
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array

Row = tuple[int, str, int, int, str, str, str, str]
"""rank, thread, start and end (ns from the start of the run), category, name, module, where."""

About = tuple[str, tuple[str, ...], str]
"""Category, names of the operators around a piece, module."""

_CATEGORY: Mapping[str, str] = {"data": "data_loading"}
_KINDS = ("data", *PHASE_CATEGORIES)
_STEPS_NEAR = 5
"""Steps before and after whose samples say at which line a gap between two operators is."""

_OPS = ["start_ns", "duration_ns", "name", "module", "stack", "depth"]


class LaneWork:
    """The work of a thread of a rank in a window [start, end), ns from the start of the run."""

    def __init__(self, run: Run, lane: tuple[int, str], window: tuple[int, int]) -> None:
        self._run, self._lane = run, lane
        first, last = window
        # From a step before: a gap at the start of this one has its line from the last operator.
        early = 2 * first - last
        self._near = first - _STEPS_NEAR * (last - first), last + _STEPS_NEAR * (last - first)
        ops = run.events("op", *lane, _OPS, window=(early, last))
        self._start = ops["start_ns"].to_numpy()
        self._end = end = ends_ns(ops, run)
        depth = ops["depth"].to_numpy()
        self._names = ops["name"].cast(pa.string()).to_pylist()
        self._modules = ops["module"].cast(pa.string()).to_pylist()
        self._stacks = ops["stack"].fill_null(-1).to_numpy()
        self._where: dict[int, str] = {}
        thread = next(one for one in run.threads if (one.rank, one.thread) == lane)
        kinds = {name: span for name, span in phases_of(run, thread).items() if name in _KINDS}
        self._fetches = kinds.get("data", Intervals.of([], []))
        training = training_thread(run, thread.rank)
        self._autograd = thread in autograd_threads(run, training) and "backward" not in kinds
        if self._autograd and "backward" in phases_of(run, training):
            kinds["backward"] = phases_of(run, training)["backward"]
        self._between = between_operators(run, thread.rank)
        edges = [self._start, end, *(e for s in kinds.values() for e in (s.start, s.end))]
        inside = np.concatenate([*edges, [first, last]])
        inside = inside[(inside >= first) & (inside <= last)]
        self._edges = np.unique(inside)
        begins = self._edges[:-1]
        self._op = np.full(len(begins), -1)
        self._levels: list[Int64Array] = []
        for level in np.unique(depth):
            rows = np.flatnonzero(depth == level)
            found = enclosing(self._start[rows], end[rows], begins)
            self._levels.append(np.where(found >= 0, rows[found], -1))
            self._op = np.where(found >= 0, rows[found], self._op)
        self._phase = np.full(len(begins), "", dtype=object)
        for name, span in kinds.items():
            self._phase[enclosing(span.start, span.end, begins) >= 0] = name

    def rows(self, start: int, end: int) -> list[Row]:
        """Returns the work of [start, end), cut where the innermost operator or the phase
        changes."""
        low = int(np.searchsorted(self._edges, start, side="right")) - 1
        high = int(np.searchsorted(self._edges, end, side="left"))
        found: list[Row] = []
        for i in range(low, high):
            begin, until = max(int(self._edges[i]), start), min(int(self._edges[i + 1]), end)
            category, name, module, where = self._about(i, until - begin)
            found.append((*self._lane, begin, until, category, name, module, where))
        return found

    def pieces(self, start: int, end: int, cuts: Int64Array) -> list[tuple[int, int, About]]:
        """Returns the work of [start, end), cut where `rows` cuts it and at `cuts` (ascending):
        begin and length, ns, and what it is about. The outermost operator comes first; without any
        it is what the thread does instead."""
        inside = [
            instants[instants.searchsorted(start, "right") : instants.searchsorted(end)]
            for instants in (self._edges, cuts)
        ]
        edges = np.unique(np.concatenate([[start, end], *inside]))
        own, at = np.unique(
            np.searchsorted(self._edges, edges[:-1], side="right") - 1, return_inverse=True
        )
        around = np.stack([np.full(len(self._op), -1), *self._levels], axis=1)[own].tolist()
        about = []
        for i, levels in zip(own.tolist(), around, strict=True):
            category, name, module = self._kind(i)
            names = tuple(self._names[op] for op in levels if op >= 0)
            about.append((category, names or (name,), module))
        lengths = np.diff(edges).tolist()
        return [
            (begin, length, about[k])
            for begin, length, k in zip(edges[:-1].tolist(), lengths, at.tolist(), strict=True)
        ]

    def _about(self, i: int, length: int) -> tuple[str, str, str, str]:
        """category, name, module and place of one piece."""
        kind, op = self._kind(i), int(self._op[i])
        if op >= 0 and self._stacks[op] >= 0:
            return (*kind, self._line(int(self._stacks[op])))
        if op < 0 and kind[0] == "data_loading":
            return (*kind, self._fetch_line)
        found = (op >= 0 or kind[0] == "python") and length >= MIN_GAP_NS
        return (*kind, self._around(i) if found else "")

    def _kind(self, i: int) -> tuple[str, str, str]:
        """category, name and module of one piece."""
        op, phase = int(self._op[i]), str(self._phase[i])
        if op >= 0:
            return _CATEGORY.get(phase, phase or "other"), self._names[op], self._modules[op] or ""
        if phase == "data":
            return "data_loading", "fetching a batch", ""
        if self._autograd and phase == "backward":
            return "backward", "autograd engine", ""
        return ("idle", "idle", "") if self._between == "idle" else ("python", "Python", "")

    def _around(self, i: int) -> str:
        """The line of the program at which most of such gaps are, or where they begin."""
        rows, latest = self._placed
        place = int(np.searchsorted(self._start[rows], self._edges[i]))
        if place in (0, len(rows)):
            return ""
        sites = [
            (int(self._stacks[op]), self._names[op], self._modules[op] or "")
            for op in (latest[place - 1], rows[place])
        ]
        around = lines_around(self._run, self._lane[0], sites[0], sites[1])
        line = line_between(self._run, *self._lane, self._near, around)
        return line or ("" if around[0].startswith("operator ") else around[0])

    @cached_property
    def _placed(self) -> tuple[Int64Array, Int64Array]:
        """Operators with a stack, by their start; of those up to each the one that ends last."""
        rows = np.flatnonzero(self._stacks >= 0)
        ends = self._end[rows]
        is_last = ends == np.maximum.accumulate(ends)
        return rows, rows[np.maximum.accumulate(np.where(is_last, np.arange(len(rows)), 0))]

    @cached_property
    def _fetch_line(self) -> str:
        """The line of the program that most often waits for a batch."""
        return sampled_line(self._run, *self._lane, self._fetches) or ""

    def _line(self, stack: int) -> str:
        if stack not in self._where:
            self._where[stack] = where_of(self._run, self._lane[0], stack) or ""
        return self._where[stack]
