"""From a run's tables to the slices of one lane: rows, extents, names, colours.

The rows of a thread are its phases by depth, then its ops by depth. Slices of a row that overlap
without nesting go to rows of their own right below (`span_nesting.sub_rows`); nothing is dropped.
What had not ended when the recording stopped lasts to the end of the run and is marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run, Thread
from lanescope.webapp.runs.table_reader import column_array, in_span_order
from lanescope.webapp.runs.types import Int64Array, UInt8Array, UInt32Array
from lanescope.webapp.timeline.span_nesting import Depths, Piece, SpanColumns, styled
from lanescope.webapp.timeline.styles import (
    COPIES,
    STYLE,
    ByName,
    OpStyles,
    coded,
    communicates,
    matching,
)
from lanescope.webapp.timeline.tile_columns import STYLE_UNFINISHED

SPAN_TABLES = ("phase", "op", "collective")
"""Tables that slices come from; a row of a lane holds slices of one of them."""

SAMPLES = 0xFF
"""`row_table` of a row of samples; others are positions in SOURCES."""

STRETCH = 1 << 16
"""Ops that are looked at in one go, or a row group: what the processor's cache holds."""

AXIS_END = 1 << 53
"""104 days: the page counts ns in float64, exact up to here."""

MAX_LANE_ROWS = 1 << 16
"""Rows of a lane; tiles number them with 16 bits."""


@dataclass(frozen=True, eq=False)
class LaneSlices:
    """The slices of a lane, row after row, each row in order of time and free of overlap."""

    start: Int64Array
    end: Int64Array
    name: UInt32Array  # see `SpanNames`
    style: UInt8Array  # position in STYLES, with STYLE_UNFINISHED
    source: UInt32Array  # position in the table the row's slices come from
    row_at: Int64Array  # row r is row_at[r]:row_at[r + 1]
    row_table: UInt8Array  # position in SOURCES, per row

    @property
    def phase_rows(self) -> int:
        """Number of leading rows that hold phases."""
        return int(np.count_nonzero(self.row_table == SPAN_TABLES.index("phase")))


_DIRECTORIES = re.compile(r"(?<!\S)/(?:[^\s/]+/)+(?=[^\s/]+:\d+\b)")
"""Of a file that a line of the program is named by, as marks have it."""


class SpanNames:
    """Numbers for the names of slices, over the whole run."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    @property
    def texts(self) -> list[str]:
        """All names so far, in the order of their numbers."""
        return list(self._ids)

    def of(self, column: pa.ChunkedArray) -> UInt32Array:
        """Returns the number of each text of a dictionary column."""
        codes, texts = coded(column)
        return self.numbers(texts)[codes]

    def of_phases(self, column: pa.ChunkedArray) -> UInt32Array:
        """Returns the same of phases and marks, in whose names places have no directories."""
        codes, texts = coded(column)
        return self.numbers([_DIRECTORIES.sub("", text) for text in texts])[codes]

    def numbers(self, texts: Sequence[str]) -> UInt32Array:
        """Returns the number of each of some texts."""
        ids = [self._ids.setdefault(text, len(self._ids)) for text in texts]
        return np.array(ids, np.uint32)


def thread_slices(run: Run, thread: Thread, names: SpanNames, by_name: ByName) -> LaneSlices | None:
    """Returns phases and ops of a thread; its collectives where it has neither; None where it has
    none."""
    phases = _phases(run, thread, names)
    ops = _ops(run, thread, names, phases, by_name)
    if not phases.sizes and not ops.sizes:
        calls = run.events("collective", thread.rank, thread.thread, _CALL_COLUMNS)
        return _joined(_flat("collective", _calls(calls, _end(calls), run.duration_ns, names)))
    return _joined(phases, ops)


def collective_slices(run: Run, rank: int, names: SpanNames) -> dict[tuple[str, int], LaneSlices]:
    """Per process group (name, size) the collectives of a rank, from call to completion.

    One whose completion was not seen ends where its call returned.
    """
    rows = run.events("collective", rank, columns=[*_CALL_COLUMNS, *_GROUP_COLUMNS])
    codes, texts = coded(rows["group"])
    sizes = rows["group_size"].fill_null(0).to_numpy()
    end = pc.coalesce(rows["complete_ns"], _end(rows))
    every = _calls(rows, end, run.duration_ns, names)
    found = {}
    for code in np.unique(codes).tolist():
        chosen = np.flatnonzero(codes == code)
        slices = _joined(_flat("collective", every.take(chosen)))
        if slices is not None:
            found[texts[code], int(sizes[chosen[0]])] = slices
    return found


_CALL_COLUMNS = ["start_ns", "duration_ns", "name"]
_GROUP_COLUMNS = ["complete_ns", "group", "group_size"]


def _phases(run: Run, thread: Thread, names: SpanNames) -> Piece:
    columns = [*_CALL_COLUMNS, "kind", "depth"]
    rows = run.events("phase", thread.rank, thread.thread, columns)
    start, end, unfinished = _extent(rows, _end(rows), run.duration_ns)
    style = matching(rows["kind"], STYLE) | unfinished
    found = SpanColumns(start, end, names.of_phases(rows["name"]), style, _positions(0, len(start)))
    return _piece("phase", found, column_array(rows["depth"]))


def _ops(run: Run, thread: Thread, names: SpanNames, phases: Piece, by_name: ByName) -> Piece:
    columns = [*_CALL_COLUMNS, "scope", "depth"]
    if not phases.sizes:
        columns.append("phase")  # nothing else says to which one an op belongs
    where = ("op", thread.rank, thread.thread)
    own: OpStyles | UInt8Array
    if thread.kind == schema.ThreadKind.stream.name:
        own = _stream_styles(run, thread, names, by_name)
    else:
        own = OpStyles(run, thread, phases, by_name)
    found = _gathered(run.pieces(*where, columns, STRETCH), run.duration_ns, names, own)
    if found is None:
        # Files that overlap in time, as those of a long recording may.
        found = _gathered([run.events(*where, columns)], run.duration_ns, names, own)
        assert found is not None
    return found.piece("op")


def _gathered(
    pieces: Iterable[pa.Table], run_end: int, names: SpanNames, styles: OpStyles | UInt8Array
) -> Depths | None:
    """The ops of these rows; None where they are not in the order of `Run.events`."""
    found = Depths()
    at, last = 0, (-1 << 63, 0)
    for rows in pieces:
        begins, depth = column_array(rows["start_ns"]), column_array(rows["depth"])
        if not len(begins):
            continue
        if (int(begins[0]), int(depth[0])) < last or not in_span_order(begins, depth):
            return None
        last = int(begins[-1]), int(depth[-1])
        start, end, unfinished = _extent(rows, _end(rows), run_end)
        codes, texts = coded(rows["name"])
        stop = at + len(start)
        if isinstance(styles, OpStyles):
            style = styles.of(rows, start, codes, texts, at)
        else:
            style = styles[at:stop]
        name = names.numbers(texts).take(codes)
        found.add(SpanColumns(start, end, name, style | unfinished, _positions(at, stop)), depth)
        at = stop
    if isinstance(styles, OpStyles):
        found.inherit()
    return found


def _calls(rows: pa.Table, until: pa.ChunkedArray, run_end: int, names: SpanNames) -> SpanColumns:
    start, end, unfinished = _extent(rows, until, run_end)
    style = np.uint8(STYLE["collective"]) | unfinished
    return SpanColumns(start, end, names.of(rows["name"]), style, _positions(0, len(start)))


def _flat(table: str, found: SpanColumns) -> Piece:
    return _piece(table, found, np.zeros(len(found.start), np.int16))


def _piece(table: str, found: SpanColumns, depth: npt.NDArray[np.int16]) -> Piece:
    depths = Depths()
    depths.add(found, depth)
    return depths.piece(table)


def _positions(low: int, high: int) -> UInt32Array:
    return np.arange(low, high, dtype=np.uint32)


def _joined(*pieces: Piece) -> LaneSlices | None:
    sizes = [size for piece in pieces for size in piece.sizes]
    if not sizes:
        return None
    if len(sizes) > MAX_LANE_ROWS:
        raise RunError(
            f"a lane would have {len(sizes)} rows of slices that are open at once, expected at "
            f"most {MAX_LANE_ROWS}; the run is damaged"
        )
    tables = [SPAN_TABLES.index(piece.table) for piece in pieces for _ in piece.sizes]
    found = SpanColumns.joined([one for piece in pieces for one in piece.stretches])
    return LaneSlices(
        *found,
        row_at=np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))),
        row_table=np.array(tables, np.uint8),
    )


def _end(rows: pa.Table) -> pa.ChunkedArray:
    return pc.add(rows["start_ns"], rows["duration_ns"])


def _extent(
    rows: pa.Table, end: pa.ChunkedArray, run_end: int
) -> tuple[Int64Array, Int64Array, UInt8Array]:
    """Start and end of each row, and the mark of those without an end of their own.

    Within 0..AXIS_END, which the page can show; spans outside are drawn at the edge.
    """
    start = column_array(rows["start_ns"])
    if len(start) and (start.min() < 0 or start.max() > AXIS_END):
        start = np.clip(start, 0, AXIS_END)
    unfinished = np.zeros(len(start), np.uint8)
    if end.null_count:
        unfinished[end.is_null().to_numpy()] = STYLE_UNFINISHED
        end = end.fill_null(run_end)
    stop = column_array(end)
    if len(stop) and (stop.max() > AXIS_END or (stop < start).any()):
        stop = np.clip(stop, start, AXIS_END)
    return start, stop, unfinished


def _stream_styles(run: Run, stream: Thread, names: SpanNames, by_name: ByName) -> UInt8Array:
    """Communication and copies by what they are, kernels like the op that launched them.

    That is the last op to begin on the launching thread before the call: it holds the call.
    """
    rows = run.events("op", stream.rank, stream.thread, ["name", "launch_ns", "launch_thread"])
    style = np.zeros(rows.num_rows, np.uint8)
    launched = rows["launch_ns"].fill_null(-1).to_numpy()
    codes, texts = coded(rows["launch_thread"])
    for thread in run.threads:
        if thread.rank != stream.rank or thread.thread not in texts:
            continue
        mine = np.flatnonzero(codes == texts.index(thread.thread))
        ops = _ops(run, thread, names, _phases(run, thread, names), by_name)
        if not ops.sizes:
            continue
        all_of_it = SpanColumns.joined(ops.stretches)
        order = np.argsort(all_of_it.start, kind="stable")
        at = np.searchsorted(all_of_it.start[order], launched[mine], side="right") - 1
        paints = styled(all_of_it.style[order[at[at >= 0]]])
        style[mine[at >= 0]] = paints
    codes, texts = coded(rows["name"])
    for chosen, paint in ((_copies, "data"), (communicates, "collective")):
        named = np.array([chosen(text) for text in texts] or [False])[codes]
        style[named] = STYLE[paint]
    return style


def _copies(name: str) -> bool:
    return name.startswith(COPIES)
