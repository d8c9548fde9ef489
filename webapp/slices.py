"""From a run's tables to the slices of one lane: rows, extents, names, colours.

The rows of a thread are its phases by depth, then its ops by depth. Slices of a row that overlap
without nesting go to rows of their own right below (`packing.sub_rows`); nothing is dropped. What
had not ended when the recording stopped lasts to the end of the run and is marked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector import schema
from lanescope.webapp.errors import RunError
from lanescope.webapp.packing import enclosing, sub_rows
from lanescope.webapp.run import Run, Thread
from lanescope.webapp.tiles import STYLE_UNFINISHED

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

SOURCES = ("phase", "op", "collective")
"""Tables that slices come from; a row of a lane holds slices of one of them."""

BESIDE = (
    "identical", "within tolerance", "different", "added", "removed", "slower", "faster",
)  # fmt: skip
"""Styles of ops that are shown beside a baseline."""

STYLES = (
    "other", "forward", "backward", "optimizer", "collective", "data", "evaluation", "user", "mark",
    *BESIDE,
)  # fmt: skip
"""What a slice is coloured by; its style is the position here."""

AXIS_END = 1 << 53
"""104 days: the page counts ns in float64, exact up to here."""

MAX_ROWS = 1 << 16
"""Rows of a lane; tiles number them with 16 bits."""

FEW_DEPTHS = 16
"""Depths up to which a pass for each is quicker than sorting by depth."""

_STYLE = {name: position for position, name in enumerate(STYLES)}
_COMMUNICATION = ("c10d::", "gloo:", "nccl:", "record_param_comms", "ncclDevKernel", "ncclKernel")
_COPIES = ("Memcpy", "Memset")


@dataclass(frozen=True, eq=False)
class LaneSlices:
    """The slices of a lane, row after row, each row in order of time and free of overlap."""

    start: I64
    end: I64
    name: npt.NDArray[np.uint32]  # see `Names`
    style: U8  # position in STYLES, with STYLE_UNFINISHED
    source: npt.NDArray[np.uint32]  # position in the table the row's slices come from
    row_at: I64  # row r is row_at[r]:row_at[r + 1]
    row_table: U8  # position in SOURCES, per row

    @property
    def phase_rows(self) -> int:
        """Number of leading rows that hold phases."""
        return int(np.count_nonzero(self.row_table == SOURCES.index("phase")))


class Names:
    """Numbers for the names of slices, over the whole run."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    @property
    def texts(self) -> list[str]:
        """All names so far, in the order of their numbers."""
        return list(self._ids)

    def of(self, column: pa.ChunkedArray) -> npt.NDArray[np.uint32]:
        """The number of each text of a dictionary column."""
        codes, texts = coded(column)
        return self.numbers(texts)[codes]

    def numbers(self, texts: Sequence[str]) -> npt.NDArray[np.uint32]:
        """The number of each of some texts."""
        ids = [self._ids.setdefault(text, len(self._ids)) for text in texts]
        return np.array(ids, np.uint32)


def coded(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Codes and texts of a dictionary column; null is the empty text."""
    array = column.unify_dictionaries().combine_chunks()
    texts = ["" if text is None else str(text) for text in array.dictionary.to_pylist()]
    codes = array.indices
    if codes.null_count:
        texts.append("")
        codes = codes.fill_null(len(texts) - 1)
    return codes.to_numpy(zero_copy_only=False), texts


def phase_styles(run: Run, rank: int) -> dict[str, int]:
    """The style of each phase name of a rank, for ops that know their phase by name alone.

    Autograd's own threads have no phases; their ops carry the name of the one they work for. A
    name used with several kinds counts as the first kind that is not `user`.
    """
    phases = run.events("phase", rank, columns=["name", "kind"]).group_by(["name", "kind"])
    pairs = phases.aggregate([]).cast(pa.schema([("name", pa.string()), ("kind", pa.string())]))
    found: dict[str, int] = {}
    for row in pairs.to_pylist():
        style = _STYLE.get(row["kind"], 0)
        if found.get(row["name"], _STYLE["user"]) == _STYLE["user"]:
            found[row["name"]] = style
    return found


def thread_slices(
    run: Run, thread: Thread, names: Names, by_name: Mapping[str, int]
) -> LaneSlices | None:
    """Phases and ops of a thread; its collectives where it has neither; None where it has none."""
    phases = _phases(run, thread, names)
    ops = _ops(run, thread, names, phases, by_name)
    if not phases.sizes and not ops.sizes:
        calls = run.events("collective", thread.rank, thread.thread, _CALL_COLUMNS)
        return _joined(_calls(calls, _end(calls), run.duration_ns, names, "collective"))
    return _joined(phases, ops)


def collective_slices(run: Run, rank: int, names: Names) -> dict[tuple[str, int], LaneSlices]:
    """Per process group (name, size) the collectives of a rank, from call to completion.

    One whose completion was not seen ends where its call returned.
    """
    rows = run.events("collective", rank, columns=[*_CALL_COLUMNS, *_GROUP_COLUMNS])
    codes, texts = coded(rows["group"])
    found = {}
    for code in np.unique(codes).tolist():
        chosen = np.flatnonzero(codes == code)
        mine = rows.take(pa.array(chosen))
        end = pc.coalesce(mine["complete_ns"], _end(mine))
        piece = _calls(mine, end, run.duration_ns, names, "collective", chosen)
        slices = _joined(piece)
        if slices is not None:
            found[texts[code], int(mine["group_size"][0].as_py() or 0)] = slices
    return found


_CALL_COLUMNS = ["start_ns", "duration_ns", "name"]
_GROUP_COLUMNS = ["complete_ns", "group", "group_size"]


@dataclass(frozen=True, eq=False)
class _Piece:
    """Consecutive rows of a lane whose slices come from one table.

    Columns are stretches that follow one another: they are put together once, with the lane's.
    """

    table: str
    start: list[I64]
    end: list[I64]
    name: list[npt.NDArray[np.uint32]]
    style: list[U8]
    source: list[I64]
    sizes: list[int]  # slices per row


def _phases(run: Run, thread: Thread, names: Names) -> _Piece:
    columns = [*_CALL_COLUMNS, "kind", "depth"]
    rows = run.events("phase", thread.rank, thread.thread, columns)
    start, end, unfinished = _extent(rows, _end(rows), run.duration_ns)
    style = _matching(rows["kind"], _STYLE) | unfinished
    return _piece("phase", start, end, names.of(rows["name"]), style, _depth(rows))


def _ops(
    run: Run, thread: Thread, names: Names, phases: _Piece, by_name: Mapping[str, int]
) -> _Piece:
    rows = run.events("op", thread.rank, thread.thread, [*_CALL_COLUMNS, "scope", "depth"])
    start, end, unfinished = _extent(rows, _end(rows), run.duration_ns)
    depth = _depth(rows)
    codes, texts = coded(rows["name"])
    if thread.kind == schema.ThreadKind.stream.name:
        style = _stream_styles(run, thread, names, by_name) | unfinished
    else:
        style = _painted(start, phases)
        if not style.all():
            phase = run.events("op", thread.rank, thread.thread, ["phase"])["phase"]
            style = np.where(style == 0, _matching(phase, by_name), style)
        talks = np.array([text.startswith(_COMMUNICATION) for text in texts] or [False])
        own = np.where(talks, np.uint8(_STYLE["collective"]), np.uint8(0))[codes]
        style = _op_styles(rows, start, end, depth, style, own) | unfinished
    return _piece("op", start, end, names.numbers(texts)[codes], style, depth)


def _calls(
    rows: pa.Table,
    until: pa.ChunkedArray,
    run_end: int,
    names: Names,
    table: str,
    source: I64 | None = None,
) -> _Piece:
    start, end, unfinished = _extent(rows, until, run_end)
    style = np.uint8(_STYLE["collective"]) | unfinished
    depth = np.zeros(len(start), np.int16)
    return _piece(table, start, end, names.of(rows["name"]), style, depth, source)


def _piece(
    table: str,
    start: I64,
    end: I64,
    name: npt.NDArray[np.uint32],
    style: U8,
    depth: npt.NDArray[np.int16],
    source: I64 | None = None,
) -> _Piece:
    """One row per depth that occurs, the outermost first, each followed by its sub-rows."""
    piece = _Piece(table, [], [], [], [], [], [])
    for part in _by_depth(depth):
        low, high = start.take(part), end.take(part)
        if (high[:-1] <= low[1:]).all():  # hence sorted, and one row
            piece.sizes.append(len(part))
        else:
            part, sizes = _stack(part, low, high)
            low, high = start.take(part), end.take(part)
            piece.sizes.extend(sizes)
        piece.start.append(low)
        piece.end.append(high)
        piece.name.append(name.take(part))
        piece.style.append(style.take(part))
        piece.source.append(part if source is None else source.take(part))
    return piece


def _joined(*pieces: _Piece) -> LaneSlices | None:
    sizes = [size for piece in pieces for size in piece.sizes]
    if not sizes:
        return None
    if len(sizes) > MAX_ROWS:
        raise RunError(
            f"a lane would have {len(sizes)} rows of slices that are open at once, expected at "
            f"most {MAX_ROWS}; the run is damaged"
        )
    tables = [SOURCES.index(piece.table) for piece in pieces for _ in piece.sizes]
    source = [one for piece in pieces for one in piece.source]
    return LaneSlices(
        start=np.concatenate([one for piece in pieces for one in piece.start]),
        end=np.concatenate([one for piece in pieces for one in piece.end]),
        name=np.concatenate([one for piece in pieces for one in piece.name]),
        style=np.concatenate([one for piece in pieces for one in piece.style]),
        source=np.concatenate(source, dtype=np.uint32, casting="unsafe"),
        row_at=np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))),
        row_table=np.array(tables, np.uint8),
    )


def _end(rows: pa.Table) -> pa.ChunkedArray:
    return pc.add(rows["start_ns"], rows["duration_ns"])


def _extent(rows: pa.Table, end: pa.ChunkedArray, run_end: int) -> tuple[I64, I64, U8]:
    """Start and end of each row, and the mark of those without an end of their own.

    Within 0..AXIS_END, which the page can show; what claims to lie outside is drawn at the edge.
    """
    start = rows["start_ns"].to_numpy()
    if len(start) and (start.min() < 0 or start.max() > AXIS_END):
        start = np.clip(start, 0, AXIS_END)
    unfinished = np.zeros(len(start), np.uint8)
    if end.null_count:
        unfinished[end.is_null().to_numpy()] = STYLE_UNFINISHED
        end = end.fill_null(run_end)
    stop = end.to_numpy()
    if len(stop) and (stop.max() > AXIS_END or (stop < start).any()):
        stop = np.clip(stop, start, AXIS_END)
    return start, stop, unfinished


def _depth(rows: pa.Table) -> npt.NDArray[np.int16]:
    depth: npt.NDArray[np.int16] = rows["depth"].to_numpy()
    return depth


def _by_depth(depth: npt.NDArray[np.int16]) -> Iterator[I64]:
    """Positions of the slices of each depth that occurs, the outermost first."""
    if not len(depth):
        return
    least, most = int(depth.min()), int(depth.max())
    if most - least < FEW_DEPTHS:
        for level in range(least, most + 1):
            part = np.flatnonzero(depth == level)
            if len(part):
                yield part
    else:
        order = np.argsort(depth, kind="stable")
        yield from np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)


def _stack(part: I64, low: I64, high: I64) -> tuple[I64, list[int]]:
    """Order of the slices of one depth, sub-row by sub-row, and the slices per sub-row."""
    order = np.lexsort((high, low))
    rows = sub_rows(low[order], high[order])
    return part[order[np.argsort(rows, kind="stable")]], np.bincount(rows).tolist()


def _op_styles(
    rows: pa.Table, start: I64, end: I64, depth: npt.NDArray[np.int16], style: U8, own: U8
) -> U8:
    """Communication (`own`) and autograd nodes by what they are, others by their phase (`style`).

    Ops outside every phase take the style of the op around them.
    """
    scopes = {
        schema.OpScope.backward.name: _STYLE["backward"],
        schema.OpScope.user.name: _STYLE["user"],
    }
    scope = _matching(rows["scope"], scopes)
    style = np.where((scope == _STYLE["backward"]) | (style == 0), scope, style)
    style = np.where(own, own, style)
    if style.any() and not style.all():
        for level in range(1, int(depth.max()) + 1):
            bare = np.flatnonzero((depth == level) & (style == 0))
            around = np.flatnonzero(depth == level - 1)
            if len(bare) and len(around):
                parent = enclosing(start[around], end[around], start[bare])
                style[bare] = np.where(parent < 0, 0, style[around[parent]])
    return style


def _stream_styles(run: Run, stream: Thread, names: Names, by_name: Mapping[str, int]) -> U8:
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
        begins = np.concatenate(ops.start)
        order = np.argsort(begins, kind="stable")
        at = np.searchsorted(begins[order], launched[mine], side="right") - 1
        paints = np.concatenate(ops.style)[order[at[at >= 0]]]
        style[mine[at >= 0]] = paints & ~np.uint8(STYLE_UNFINISHED)
    codes, texts = coded(rows["name"])
    for prefixes, paint in ((_COPIES, "data"), (_COMMUNICATION, "collective")):
        named = np.array([text.startswith(prefixes) for text in texts] or [False])[codes]
        style[named] = _STYLE[paint]
    return style


def _painted(instants: I64, phases: _Piece) -> U8:
    """Style of the phase around each instant (ascending): the innermost one that is not `user`."""
    style = np.zeros(len(instants), np.uint8)
    if not phases.sizes:
        return style
    begins, ends = np.concatenate(phases.start), np.concatenate(phases.end)
    paints = np.concatenate(phases.style) & ~np.uint8(STYLE_UNFINISHED)
    at = np.concatenate(([0], np.cumsum(phases.sizes, dtype=np.int64)))
    for row in range(len(phases.sizes)):
        part = slice(at[row], at[row + 1])
        # The phases of a row do not overlap: their instants are consecutive stretches.
        first = np.searchsorted(instants, begins[part])
        stop = np.searchsorted(instants, ends[part])
        sizes = np.diff(np.stack([first, stop], 1).ravel(), prepend=0, append=len(instants))
        kinds = np.zeros(len(sizes), np.uint8)
        kinds[1::2] = paints[part]
        paint = np.repeat(kinds, sizes)
        keep = (paint == 0) | ((paint == _STYLE["user"]) & (style != 0))
        style = np.where(keep, style, paint) if row else paint
    return style


def _matching(column: pa.ChunkedArray, chosen: Mapping[str, int]) -> U8:
    """The chosen number of each text, 0 for texts without one."""
    codes, texts = coded(column)
    return np.array([chosen.get(text, 0) for text in texts] or [0], np.uint8)[codes]
