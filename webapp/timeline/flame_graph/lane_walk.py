"""Which frames are open on a thread at each instant: nodes of a tree, stretch by stretch.

At an instant each row of the thread's lane has at most one span, so the spans that are open are a
path from the outermost row to the innermost one. A stretch lasts until one of them begins or ends;
stretches do not overlap, so times that are added up over them count no instant twice.

By nesting, phases and operators are frames. By stack or module, operators are: below the Python
stack, or the module path, that they were called with. An operator without one of its own belongs
to that of the operator around it, a backward node to the module of its maker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lanescope.webapp.analysis.arrow_columns import ends_ns, having, to_frame
from lanescope.webapp.analysis.forward_ops import BACKWARD, makers
from lanescope.webapp.analysis.stack_frames import frames_of
from lanescope.webapp.runs.run import Run, Thread
from lanescope.webapp.runs.types import Int64Array, Window
from lanescope.webapp.timeline.flame_graph.frame_tree import ROOT, Frame, FrameTree
from lanescope.webapp.timeline.span_nesting import sub_rows
from lanescope.webapp.timeline.styles import coded

By = Literal["stack", "module", "nesting"]

NO_STACK = Frame("no Python stack recorded", "missing")
NO_MODULE = Frame("outside of modules", "missing")

_COLUMNS = ["start_ns", "duration_ns", "name", "depth"]


class _Row(NamedTuple):
    """Spans of one row, in order and without overlap."""

    start: Int64Array
    end: Int64Array
    frame: Int64Array  # position in the tree's frames
    base: Int64Array  # node of the stack or module; -1: none of its own, or not asked for


@dataclass(frozen=True, eq=False)
class Stretches:
    """Stretch i is [edges[i], edges[i + 1]) ns from the start of the run."""

    edges: Int64Array
    node: Int64Array  # innermost frame that is open; ROOT: none
    kept: Int64Array  # outermost frames of the stretch before that are still open, the same spans


class LaneWalk:
    """Walks threads of a run through a tree, by stack, module or nesting.

    `renamed` replaces frames before they go into the tree.
    """

    def __init__(
        self, run: Run, tree: FrameTree, by: By, renamed: Callable[[Frame], Frame] = lambda f: f
    ) -> None:
        self._run, self._tree, self._by, self._renamed = run, tree, by, renamed
        self._stack_base = cache(self._base_of_stack)
        self._module_base = cache(self._base_of_module)
        self._depth = run.manifest["options"].get("stack_depth")

    def stretches(self, thread: Thread, window: Window) -> Stretches:
        """Returns the stretches of a thread within [t0, t1) ns."""
        rows = list(self._rows(thread, window))
        # Sorted here: np.unique hashes, which takes ten times as long.
        edges = np.sort(np.concatenate([window, *(e for r in rows for e in (r.start, r.end))]))
        edges = edges[np.append(True, edges[1:] > edges[:-1])]
        node = np.full(len(edges) - 1, ROOT, np.int64)
        base = np.full(len(node), -1, np.int64)
        kept = np.full(len(node), np.iinfo(np.int64).max)
        for row in rows:
            first = np.searchsorted(edges, row.start)
            counts = np.searchsorted(edges, row.end) - first
            here = _ranges(first, counts)
            parent = node[here]
            if self._by != "nesting":
                own, around = np.repeat(row.base, counts), base[here]
                moved = (own >= 0) & (own != around)
                parent = np.where(moved, own, parent)
                base[here] = np.where(moved, own, around)
                parent = np.where(parent == ROOT, self._missing, parent)
            node[here] = self._tree.children(parent, np.repeat(row.frame, counts))
            # Two calls of one operator that touch are two frames, not one that goes on.
            new = first[(first > 0) & (node[first] == node[first - 1])]
            kept[new] = np.minimum(kept[new], np.array(self._tree.depth)[node[new]] - 1)
        return Stretches(edges, node, kept)

    @cached_property
    def _missing(self) -> int:
        return self._tree.below(ROOT, [NO_STACK if self._by == "stack" else NO_MODULE])

    def _rows(self, thread: Thread, window: Window) -> Iterator[_Row]:
        lane = (thread.rank, thread.thread)
        phases = self._run.events("phase", *lane, [*_COLUMNS, "kind"], window)
        extra = {"stack": ["stack"], "module": ["module", "scope", "sequence"], "nesting": []}[
            self._by
        ]
        ops = self._run.events("op", *lane, [*_COLUMNS, *extra], window)
        if self._by == "nesting":
            yield from self._of_table(phases, window, self._phases(phases), thread)
        if ops.num_rows or phases.num_rows:
            yield from self._of_table(ops, window, self._named(ops), thread)
        elif self._by == "nesting":
            calls = self._run.events("collective", *lane, _COLUMNS[:3], window)
            yield from self._of_table(calls, window, self._named(calls), thread)

    def _of_table(
        self, rows: pa.Table, window: Window, frame: Int64Array, thread: Thread
    ) -> Iterator[_Row]:
        start = np.maximum(rows["start_ns"].to_numpy(), window[0])
        end = np.minimum(ends_ns(rows, self._run), window[1])
        depth = rows["depth"].to_numpy() if "depth" in rows.column_names else np.zeros(len(start))
        base = self._bases(rows, window, thread)
        lasting = end > start
        for level in np.sort(pd.unique(depth[lasting])):
            here = np.flatnonzero(lasting & (depth == level))
            here = here[np.lexsort((end[here], start[here]))]
            numbers = sub_rows(start[here], end[here])
            for number in range(int(numbers.max(initial=0)) + 1):
                at = here[numbers == number]
                yield _Row(start[at], end[at], frame[at], base[at])

    def _phases(self, rows: pa.Table) -> Int64Array:
        (names, texts), (kinds, words) = coded(rows["name"]), coded(rows["kind"])
        pairs = names.astype(np.int64) * max(len(words), 1) + kinds
        different, place = np.unique(pairs, return_inverse=True)
        frames = [
            self._number(Frame(texts[pair // len(words)], "phase", phase=words[pair % len(words)]))
            for pair in different.tolist()
        ]
        return _at(frames, place)

    def _named(self, rows: pa.Table) -> Int64Array:
        codes, texts = coded(rows["name"])
        return _at([self._number(Frame(text, "op")) for text in texts], codes)

    def _bases(self, rows: pa.Table, window: Window, thread: Thread) -> Int64Array:
        """Returns the node of the stack or module of each row; -1: it has none."""
        if self._by == "nesting" or "depth" not in rows.column_names:
            return np.full(rows.num_rows, -1, np.int64)
        if self._by == "stack":
            place, stacks = pd.factorize(rows["stack"].fill_null(-1).to_numpy())
            return _at([self._stack_base(thread.rank, stack) for stack in stacks.tolist()], place)
        codes, texts = coded(rows["module"])
        found = _at([self._module_base(text) for text in texts], codes)
        nodes = having(rows["scope"], BACKWARD.__eq__) & (found < 0)
        nodes &= rows["sequence"].is_valid().to_numpy()
        if nodes.any():
            modules = backward_modules(self._run, thread, window, rows.filter(pa.array(nodes)))
            found[nodes] = [self._module_base(module) for module in modules]
        return found

    def _base_of_stack(self, rank: int, stack: int) -> int:
        frames = frames_of(self._run, rank, stack)
        if not frames:
            return -1
        path = [Frame(f["function"], "python", f["file"], f["line"]) for f in reversed(frames)]
        cut = [Frame(f"outer frames beyond --stack-depth {self._depth}", "missing")]
        return self._tree.below(
            ROOT, [*(cut if len(path) == self._depth else []), *map(self._renamed, path)]
        )

    def _base_of_module(self, module: str) -> int:
        if not module:
            return -1
        paths = accumulate(module.split("."), "{}.{}".format)
        return self._tree.below(ROOT, [Frame(path, "module") for path in paths])

    def _number(self, frame: Frame) -> int:
        return self._tree.number(self._renamed(frame))


def _ranges(first: Int64Array, counts: Int64Array) -> Int64Array:
    """Returns first[0] and the next counts[0] - 1 numbers, then those of first[1], and so on."""
    before = np.cumsum(counts) - counts
    return np.repeat(first - before, counts) + np.arange(counts.sum())


def _at(values: list[int], places: NDArray[np.integer[Any]]) -> Int64Array:
    """Returns the value at each place."""
    found: Int64Array = np.array(values or [0], np.int64)[places]
    return found


_MAKER_COLUMNS = ["thread", "start_ns", "name", "scope", "module", "sequence"]


def backward_modules(run: Run, thread: Thread, window: Window, nodes: pa.Table) -> list[str]:
    """Returns the module of each of some nodes (rows of op, by start) of a window of a thread.

    Makers are looked for from the start of the step on in which the window begins. Of several
    that fit it is the latest before the node, on the node's thread if there is one. Empty: none.
    """
    earlier = (_step_begin(run, thread.rank, window), window[1])
    made = _numbered(run.events("op", thread.rank, columns=_MAKER_COLUMNS, window=earlier))
    made = made[made["module"] != ""]
    wanted = _numbered(nodes.select(["start_ns", "name", "sequence"]))
    found = makers(wanted.assign(thread=thread.thread), made)
    modules = [*made["module"], ""]
    return [modules[at] for at in found.tolist()]


def _numbered(rows: pa.Table) -> pd.DataFrame:
    """Returns the rows that have a sequence number."""
    return to_frame(rows.filter(pc.is_valid(rows["sequence"]))).astype({"sequence": "int64"})


def _step_begin(run: Run, rank: int, window: Window) -> int:
    """Returns the start of the step in which a window begins; without, as long before as it is."""
    steps = run.steps(rank)
    at = int(np.searchsorted(steps.start_ns, window[0], side="right")) - 1
    return int(steps.start_ns[at]) if at >= 0 else max(2 * window[0] - window[1], 0)
