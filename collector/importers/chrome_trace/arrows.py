"""Adds arrows between slices: flow events, and flow version 2 (`bind_id`)."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np

from ...format.array_types import BoolArray, Int64Array
from ..arguments import joined_texts
from ..events import TraceEvent
from ..spill import ARROW_ROW, Trace

REDUNDANT_ARROWS = frozenset(
    {"fwdbwd", "ac2g", "async_cpu_to_gpu", "async_gpu", "forward_backward"}
)
"""Categories of Kineto's arrows that repeat sequence numbers and correlations."""


def add_arrows(trace: Trace, group: list[TraceEvent], start: Int64Array, bad: BoolArray) -> None:
    """Adds flow events; `start` in ns, `bad`: has no time."""
    group, start = timed(group, start, bad)
    trace.counts["imported_arrows"] += len(group)
    phase = np.frombuffer("".join([e.ph for e in group]).encode(), np.uint8)
    begins, ends = phase != ord("f"), phase != ord("s")
    step = begins & ends
    keys = [f"{e.cat}\t{_id(e)}" for e in group]
    # Most arrows begin and end among the same few thousand events.
    known = {key: _object(key) for key in set(keys)}
    rows = np.zeros(len(group), ARROW_ROW)
    rows["start"], rows["begins"] = start, begins
    rows["lane"] = [trace.lanes[e.pid, e.tid, False] for e in group]
    rows["object"] = [known[key] for key in keys]
    trace.arguments.add(rows, joined_texts([_about(event) for event in group]))
    # A step of an arrow becomes an end and a begin.
    both = np.repeat(rows, 1 + step)
    firsts = np.flatnonzero(step) + np.arange(int(step.sum()))
    both["begins"][firsts] = False
    trace.arrows.add(both)


def add_bound_arrows(
    trace: Trace, group: list[TraceEvent], start: Int64Array, lanes: Sequence[int]
) -> None:
    """Adds the arrows of flow version 2: a slice with `bind_id` ends one, begins one, or both."""
    found = []
    for event, at, lane in zip(group, start.tolist(), lanes, strict=True):
        if event.bind_id is None:
            continue
        text = msgspec.json.encode({"cat": event.cat, "name": event.name, "id": event.bind_id})
        for begins, wanted in ((False, event.flow_in), (True, event.flow_out)):
            if wanted in (True, 1, "true"):
                found.append((at, lane, begins, _object(f"bind\t{event.bind_id}"), text))
    rows = np.zeros(len(found), ARROW_ROW)
    for position, name in enumerate(("start", "lane", "begins", "object")):
        rows[name] = [one[position] for one in found]
    trace.arguments.add(rows, joined_texts([one[4] for one in found]))
    trace.arrows.add(rows)


def _id(event: TraceEvent) -> Any:
    return event.id if event.id2 is None else event.id2


def _about(event: TraceEvent) -> bytes:
    """Returns what the sync table has no columns for, as JSON."""
    about = {"cat": event.cat, "name": event.name, "id": _id(event)}
    args = {} if bytes(event.args) in (b"", b"{}") else {"args": event.args}
    return msgspec.json.encode({**about, **args})


def _object(key: str) -> int:
    """Returns a negative number for an arrow's id, which cannot equal an address."""
    written = key.encode("utf-8", "surrogatepass")
    return -1 - int.from_bytes(blake2b(written, digest_size=7).digest(), "big")


def timed(
    group: list[TraceEvent], start: Int64Array, bad: BoolArray
) -> tuple[list[TraceEvent], Int64Array]:
    """Returns the events that have a time."""
    if not bad.any():
        return group, start
    return [group[i] for i in np.flatnonzero(~bad).tolist()], start[~bad]
