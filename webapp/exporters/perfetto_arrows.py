"""Arrows of a run in a Chrome trace: launches, backward nodes, hand-overs between threads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import pandas as pd
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.forward_ops import BACKWARD, makers
from lanescope.webapp.exporters.perfetto_places import Places, rows, us
from lanescope.webapp.runs.run import Run, Thread
from lanescope.webapp.runs.typed_json import json_members

_BEGIN, _END = 0, 1

ARROW = {
    "future_set": (_BEGIN, "object"),
    "future_get": (_END, "object"),
    "queue_put": (_BEGIN, "object"),
    "queue_get": (_END, "object"),
    "callback_post": (_BEGIN, "object"),
    "callback_run": (_END, "object"),
    "thread_start": (_BEGIN, "peer"),
    "thread_begin": (_END, "thread"),
}
"""Kinds that are one end of an arrow -> which end it is, and what both ends have in common:
the object, or the thread that is started."""

_CALLED = {"future_set": "future", "future_get": "future"}
_LAUNCH = ["start_ns", "launch_ns", "launch_thread"]
SYNC_COLUMNS = ["start_ns", "duration_ns", "kind", "peer", "object", "args"]


def launch_arrows(run: Run, thread: Thread, places: Places, pid: int, tid: int) -> Iterator[str]:
    """Yields the arrows from calls to what they launched on a stream."""
    if thread.kind != schema.ThreadKind.stream.name:
        return
    for number, row in enumerate(rows(run, "op", thread, _LAUNCH)):
        source = places.of(run, thread.rank, row["launch_thread"] or "")
        if row["launch_ns"] is None or source is None:
            continue
        common = f'"cat":"launch","name":"launch","id":{_arrow_id("launch", thread.key, number)}'
        yield (
            f'{{"ph":"s",{common},"pid":{source[0]},"tid":{source[1]},"ts":{us(row["launch_ns"])}}}'
        )
        yield (f'{{"ph":"f","bp":"e",{common},"pid":{pid},"tid":{tid},"ts":{us(row["start_ns"])}}}')


def handovers(run: Run, rank: int, places: Places) -> Iterator[str]:
    """Yields the arrows between threads of a rank.

    Leaves out an end whose begin was not recorded, which viewers count as an error. The arrows of
    an imported file keep their numbers.
    """
    files = run.manifest["options"].get("imported")
    alone = isinstance(files, list) and len(files) == 1
    begun: dict[Any, Any] = {}  # what both ends have in common -> number of the last begin
    for at, phase, row in sorted(_ends(run, rank), key=lambda one: one[:2]):
        about = json_members(row["args"])
        called = about.get("cat") or _CALLED.get(row["kind"], "handover")
        shared = called, about.get("id", row[ARROW[row["kind"]][1]])
        place = places.of(run, rank, row["thread"])
        if phase == _BEGIN:
            begun[shared] = shared[1] if alone else _arrow_id("handover", rank, *shared, at)
        elif shared not in begun:
            continue
        event = {
            "ph": "s" if phase == _BEGIN else "f",
            "cat": called,
            "name": about.get("name") or called,
            "id": begun[shared],
            "pid": place[0] if place else 0,
            "tid": place[1] if place else 0,
            "args": about.get("args", {}),
        }
        bound = ',"bp":"e"' if phase == _END else ""
        yield f'{json.dumps(event)[:-1]},"ts":{us(at)}{bound}}}'


def _ends(run: Run, rank: int) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yields instant, phase and row of each end of an arrow."""
    for row in run.events("sync", rank, columns=[*SYNC_COLUMNS, "thread"]).to_pylist():
        phase, shared = ARROW.get(row["kind"], (_END, ""))
        if shared and row["duration_ns"] is not None and (row["args"] or row[shared] is not None):
            # The end of a wait is behind the begin that the thread waits for.
            wait = max(row["duration_ns"] - 1, 0) if phase == _END else 0
            yield row["start_ns"] + wait, phase, row


def _arrow_id(*parts: Any) -> int:
    """Returns a number for an arrow: Perfetto draws none that is numbered by a text."""
    written = "\t".join(map(str, parts)).encode("utf-8", "replace")
    return int.from_bytes(blake2b(written, digest_size=6).digest(), "big")


def backward_arrows(run: Run, rank: int, places: Places) -> Iterator[str]:
    """Yields the arrows from forward operators to the backward nodes that they made."""
    columns = ["start_ns", "name", "scope", "thread", "sequence"]
    numbered = (
        piece.filter(pc.is_valid(piece["sequence"]))
        for piece in run.pieces("op", rank, columns=columns)
    )
    pieces = [to_frame(piece) for piece in numbered if piece.num_rows]
    if not pieces:
        return
    ops = pd.concat(pieces).sort_values("start_ns", kind="stable", ignore_index=True)
    nodes = ops[ops["scope"] == BACKWARD]
    found = makers(nodes, ops)
    ends = ["start_ns", "thread", "sequence"]
    made_by = ops.iloc[found[found >= 0]][ends].itertuples(index=False, name=None)
    made = nodes[found >= 0][ends].itertuples(index=False, name=None)
    for source, node in zip(made_by, made, strict=True):
        number = _arrow_id("fwdbwd", rank, *node)
        common = f'"cat":"fwdbwd","name":"fwdbwd","id":{number}'
        for phase, (start, thread, _) in (("s", source), ("f", node)):
            place = places.of(run, rank, thread)
            if place is not None:
                yield (
                    f'{{"ph":"{phase}","bp":"e",{common},"pid":{place[0]},"tid":{place[1]},'
                    f'"ts":{us(start)}}}'
                )
