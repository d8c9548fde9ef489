"""Narrows the clock uncertainty of a finished run by its collectives (`clock_causality`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..format.names import LEFT_TOGETHER, PAIRED
from ..format.schema import AxisReference, Clock, Process
from .clock_causality import Bounds, Contradiction, refined
from .clock_fit import Fit

_COLUMNS = ["start_ns", "complete_ns", "name", "group", "group_size", "sequence", "bytes"]


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
