"""Narrows the clock uncertainty of a finished run by its collectives.

No rank leaves a collective before the last one entered it. So each call bounds the offset of two
clocks from both sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..format.array_types import Float64Array, Int64Array
from ..format.names import LEFT_TOGETHER, PAIRED
from ..format.schema import AxisReference, Clock, Process
from .clock_fit import UNMEASURED_DRIFT_PPB, Fit

_COLUMNS = ["start_ns", "complete_ns", "name", "group", "group_size", "sequence", "bytes"]


_ITERATIONS = 80
"""Of the search for the slope: (2/3)^80 of the range is far below a nanosecond a year."""

_ROUNDING_NS = 2
"""Offset, drift's share and the uncertainty itself are rounded to whole nanoseconds."""


def with_causality(
    run: Path, axis: AxisReference | None, processes: Sequence[Process], files: Sequence[str]
) -> list[Process]:
    """Returns the processes of a complete run with clocks narrowed by its collectives.

    Clocks that were not measured stay unchanged, because a wrong call could not be recognised. So
    do those of a failed job, where a failed call looks complete. `files` are the names of the
    run's part files. Repeating it changes nothing.
    """
    listed = list(processes)
    if axis is None or any(p["exception"] or not p["closed"] for p in listed):
        return listed
    hosts = {
        p["clock"]["host"]
        for p in listed
        if p["clock"]["calibrated"]
        and p["clock"]["uncertainty_ns"]
        and p["clock"]["host"] != axis["clock_identity"]
    }
    calls = _calls(run, listed, files) if hosts else None
    if calls is None:
        return listed
    for host in sorted(hosts):
        least, most = _bounds(calls, axis["clock_identity"], host)
        listed = _narrowed(listed, host, least, most)
    return listed


def _narrowed(processes: list[Process], host: str, least: Bounds, most: Bounds) -> list[Process]:
    mine = [p for p in processes if p["clock"]["host"] == host]
    first = min(mine, key=lambda p: p["start_ns"])
    known = first["clock"]
    if any(p["clock"]["drift_ppb"] != known["drift_ppb"] for p in mine):
        return processes  # not on one line, so they cannot move together
    widest = max(p["clock"]["uncertainty_ns"] for p in mine)
    end = max(p["end_ns"] for p in mine)
    before = Fit(known["offset_ns"], known["drift_ppb"], widest)
    try:
        fit = refined(before, first["start_ns"], end, least, most)
    except Contradiction:
        return processes
    if fit is before:
        return processes

    def moved(process: Process) -> Process:
        since = process["start_ns"] - first["start_ns"]
        clock: Clock = {
            **process["clock"],
            "offset_ns": fit.offset_ns + round(since * fit.drift_ppb * 1e-9),
            "drift_ppb": fit.drift_ppb,
            "uncertainty_ns": fit.uncertainty_ns,
        }
        return {**process, "clock": clock}

    return [moved(p) if p["clock"]["host"] == host else p for p in processes]


def _calls(run: Path, processes: list[Process], files: Sequence[str]) -> pa.Table | None:
    """Returns the collectives of all ranks on their own clocks, with `rank` and `host`, or None."""
    host_of = {(p["rank"], p["pid"]): p["clock"]["host"] for p in processes}
    tables = []
    for name in files:
        rank, _, rest = name.removeprefix("rank=").partition("/thread=")
        thread, _, part = rest.partition("/")
        if not part.startswith("collective-"):
            continue
        host = host_of.get((int(rank), int(thread.partition("-")[0])))
        if host is None:
            continue
        try:
            rows = pq.read_table(run / name, columns=_COLUMNS, partitioning=None)
        except (OSError, pa.ArrowException):
            return None
        texts = pa.array([host] * len(rows), pa.string())
        rows = rows.append_column("rank", pa.array([int(rank)] * len(rows), pa.int64()))
        rows = rows.append_column("host", texts)
        for text in ("name", "group"):
            place = rows.column_names.index(text)
            rows = rows.set_column(place, text, rows[text].cast(pa.string()))
        tables.append(rows.filter(pc.invert(pc.is_in(rows["name"], pa.array(PAIRED)))))
    return pa.concat_tables(tables) if tables else None


def _bounds(calls: pa.Table, axis: str, host: str) -> tuple[Bounds, Bounds]:
    """Returns lower and upper bounds of the axis at times of `host`'s clock, from shared calls."""

    def of(clock: str, column: str) -> pa.ChunkedArray:
        return pc.if_else(pc.equal(calls["host"], clock), calls[column], None)

    table = calls.select(["group", "sequence", "rank", "name", "group_size", "bytes"])
    for title, clock in (("axis", axis), ("host", host)):
        table = table.append_column(f"{title}_start", of(clock, "start_ns"))
        table = table.append_column(f"{title}_complete", of(clock, "complete_ns"))
    found = table.group_by(["group", "sequence"]).aggregate(
        [
            ("name", "count_distinct"),
            ("name", "min"),
            ("rank", "count"),
            ("group_size", "min"),
            ("group_size", "max"),
            ("bytes", "min"),
            *((f"{title}_start", "max") for title in ("axis", "host")),
            *((f"{title}_complete", "min") for title in ("axis", "host")),
        ]
    )
    good = pc.and_(
        pc.equal(found["name_count_distinct"], 1),
        pc.and_(
            pc.is_in(found["name_min"], pa.array(LEFT_TOGETHER)),
            pc.or_(pc.greater(found["bytes_min"], 0), pc.equal(found["name_min"], "barrier")),
        ),
    )
    same = pc.equal(found["group_size_min"], found["group_size_max"])
    good = pc.and_(good, pc.and_(same, pc.less_equal(found["rank_count"], found["group_size_min"])))
    good = pc.and_(good, pc.is_in(found["group"], _groups_with_all_calls(calls)))
    found = found.filter(good)

    def pairs(local: str, reference: str) -> Bounds:
        known = found.filter(pc.and_(pc.is_valid(found[local]), pc.is_valid(found[reference])))
        return Bounds(*(known[n].to_numpy().astype(np.int64) for n in (local, reference)))

    # Complete on one clock: the last rank of the other clock had entered. And vice versa.
    return pairs("host_complete_min", "axis_start_max"), pairs(
        "host_start_max", "axis_complete_min"
    )


def _groups_with_all_calls(calls: pa.Table) -> pa.Array:
    """Returns the groups in which all ranks made the same number of calls."""
    last = calls.group_by(["group", "rank"]).aggregate([("sequence", "max")])
    ends = last.group_by(["group"]).aggregate([("sequence_max", "min"), ("sequence_max", "max")])
    whole = pc.equal(ends["sequence_max_min"], ends["sequence_max_max"])
    return ends.filter(whole)["group"].combine_chunks()


def narrow(run: Path, manifest: dict[str, Any]) -> None:
    """Applies `with_causality` to a manifest before it is written, if the run is complete."""
    options = manifest["options"]
    if manifest["complete"] and not (options.get("steps") or options.get("window")):
        manifest["processes"] = with_causality(
            run, manifest["axis"], manifest["processes"], list(manifest["files"])
        )


class Bounds(NamedTuple):
    """At `local_ns` of a clock the reference clock read at least (or at most) `reference_ns`."""

    local_ns: Int64Array
    reference_ns: Int64Array


class Contradiction(ValueError):
    """The bounds exclude each other or the measurement."""


def refined(found: Fit, start_ns: int, end_ns: int, least: Bounds, most: Bounds) -> Fit:
    """Returns `found` narrowed by the bounds, for local times from `start_ns` to `end_ns`.

    The true error of `found` is within its uncertainty at any time, within every bound at its time,
    and changes at most by UNMEASURED_DRIFT_PPB plus the fitted drift. Together these form a band.
    The result is the line through the band with the least distance to its edges, and that distance
    is the uncertainty. So the result holds if `found` and the bounds hold; a constant drift is not
    assumed. Returns `found` itself if the result is not narrower.

    Raises Contradiction if no line is within all bounds.
    """
    length = float(end_ns - start_ns)
    if length <= 0 or len(least.local_ns) + len(most.local_ns) == 0:
        return found
    slope = (UNMEASURED_DRIFT_PPB + abs(found.drift_ppb)) * 1e-9
    wide = float(found.uncertainty_ns)
    at, over = _edge(*_errors(found, start_ns, most), wide, length, slope)
    below, under = _edge(*_errors(found, start_ns, least, -1), wide, length, slope)
    under = -under
    both = np.union1d(at, below)
    if np.any(np.interp(both, below, under) > np.interp(both, at, over)):
        raise Contradiction("no offset of the clocks agrees with all calls")

    def strays(turn: float) -> tuple[float, float]:
        return float((over - turn * at).max()), float((under - turn * below).min())

    low, high = -2 * wide / length, 2 * wide / length
    for _ in range(_ITERATIONS):  # the width is convex in the slope
        first, second = low + (high - low) / 3, high - (high - low) / 3
        above, beneath = strays(first)
        if above - beneath <= np.subtract(*strays(second)):
            high = second
        else:
            low = first
    turn = (low + high) / 2
    above, beneath = strays(turn)
    uncertainty = math.ceil((above - beneath) / 2) + _ROUNDING_NS
    if uncertainty >= found.uncertainty_ns:
        return found
    middle = round((above + beneath) / 2)
    return Fit(found.offset_ns + middle, found.drift_ppb + turn * 1e9, uncertainty)


def _errors(
    found: Fit, start_ns: int, bounds: Bounds, sign: int = 1
) -> tuple[Float64Array, Float64Array]:
    """Returns times since the start, and each bound on the error of `found` at that time, ns."""
    at = (bounds.local_ns - start_ns).astype(np.float64)
    offset = bounds.reference_ns - bounds.local_ns - found.offset_ns  # whole numbers: exact
    return at, sign * (offset - at * (found.drift_ppb * 1e-9))


def _edge(
    at: Float64Array, limits: Float64Array, wide: float, length: float, slope: float
) -> tuple[Float64Array, Float64Array]:
    """Returns times and heights of the highest curve below `limits` and `wide`, with +-`slope`."""
    at = np.concatenate([at, [0.0, length]])
    limits = np.minimum(np.concatenate([limits, [wide, wide]]), wide)
    order = np.argsort(at, kind="stable")
    at, limits = at[order], limits[order]
    rising = np.minimum.accumulate(limits - slope * at) + slope * at
    falling = np.minimum.accumulate((limits + slope * at)[::-1])[::-1] - slope * at
    edge = np.minimum(rising, falling)
    # Between two corners the curve rises, may stay flat at `wide`, and falls.
    left, right = edge[:-1], edge[1:]
    up = ((right - left) / slope + np.diff(at)) / 2
    up = np.minimum(up, (wide - left) / slope)
    down = np.minimum(np.diff(at) - up, (wide - right) / slope)
    corners = np.concatenate([at, at[:-1] + up, at[1:] - down])
    heights = np.concatenate([edge, left + slope * up, right + slope * down])
    order = np.argsort(corners, kind="stable")
    return corners[order], heights[order]
