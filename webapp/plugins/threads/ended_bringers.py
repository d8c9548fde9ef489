"""Which thread brought what another one waits for, and has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.runs.run import Run

_BRINGS = pa.array([kind.name for kind in {*schema.PUBLISHING, schema.SyncKind.queue_room}])
"""Kinds of events that wake a thread which waits for the same object."""

_TAKES = schema.SyncKind.queue_get.name


def ended_bringer(run: Run, rank: int, row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Says which thread brought what a thread waits for, and has ended; empty where one that
    brought it before may still be there, or none did. `row`: of the thread, at rest."""
    columns = ["thread", "kind", "object", "duration_ns", "stack"]
    rows = run.events("sync", rank, columns=columns)
    threads, kinds = (rows[name].cast(pa.string()) for name in ("thread", "kind"))
    mine = rows.filter(pc.equal(threads, row["thread"]))
    waited = mine.filter(pc.is_null(mine["duration_ns"])).to_pylist()
    # Ctrl-C leaves no event of the wait that it ended, but some of the same line before.
    taken = mine.filter(pc.equal(mine["kind"].cast(pa.string()), _TAKES)).to_pylist()[-1:]
    place = own_place(run, rank, row["stack"])
    waited = waited or [one for one in taken if own_place(run, rank, one["stack"]) == place]
    if not waited or waited[-1]["object"] is None:
        return ""
    same = pc.and_(pc.equal(rows["object"], waited[-1]["object"]), pc.is_in(kinds, _BRINGS))
    brought = threads.filter(pc.and_(same, pc.not_equal(threads, row["thread"]))).to_pylist()
    ended = threads.filter(pc.equal(kinds, schema.SyncKind.thread_end.name)).to_pylist()
    if not brought or not {*brought} <= {*ended}:
        return ""
    return f"; {names.get(brought[-1], brought[-1])}, which brought it before, has ended"
