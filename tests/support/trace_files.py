"""Writes traces as other tools do, and imports them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lanescope.collector.importers.run_writer import import_files
from lanescope.collector.importers.workers import NO_FIELDS, Fields
from lanescope.webapp.runs.run import Run, open_run
from tests.support import ROOT

DATA = next(
    (found for one in ROOT.parents if (found := one / "shared" / "data").is_dir()), ROOT / "none"
)
"""Traces of other people's programs, where somebody has put them."""


def slice_(name: str, ts: Any, dur: Any, **fields: Any) -> dict[str, Any]:
    """A complete event."""
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "pid": 7, "tid": 7, **fields}


def kernel(name: str, ts: Any, dur: Any, stream: int, correlation: int = -1) -> dict[str, Any]:
    """A kernel on a stream of device 0, or a copy."""
    category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    args = {"device": 0, "stream": stream, "correlation": correlation}
    return slice_(name, ts, dur, cat=category, pid=0, tid=stream, args=args)


def write_trace(path: Path, events: Iterable[dict[str, Any]], **members: Any) -> Path:
    """A trace of these events; packed where the name says so."""
    data = json.dumps({"schemaVersion": 1, **members, "traceEvents": list(events)}).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def imported(
    run: Path, *files: Path, ranks: list[int] | None = None, fields: Fields = NO_FIELDS
) -> Run:
    """The run made of files."""
    import_files(files, run, ranks, fields)
    return open_run(run)


def accounted(run: Run) -> dict[str, int]:
    """What became of the events; all of them are accounted for."""
    found = {k: n for k, n in run.coverage.items() if not k.startswith("unread")}
    found.pop("unused_members", None)  # of the document: no events
    read = found.pop("read_events")
    assert sum(found.values()) == read, found
    return found


def rows(run: Run, table: str, *columns: str, **place: Any) -> list[tuple[Any, ...]]:
    """Columns of a table's rows as tuples."""
    return [tuple(row.values()) for row in run.events(table, columns=columns, **place).to_pylist()]
