"""Pairs begin and end events into slices."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np

from .events import TraceEvent
from .limits import ImportRejected
from .spill import UNFINISHED, USER, Trace, new_slices
from .timestamps import BoolArray, Int64Array

_MAX_OPEN = 1 << 20
_MAX_ID_CHARS = 100


def _short(label: object) -> str | bytes:
    """Returns an id as text, or its digest where it is long: a trace may hold many."""
    text = str(label)
    return text if len(text) <= _MAX_ID_CHARS else blake2b(text.encode("utf-8", "replace")).digest()


class BeginEndPairing:
    """Pairs begins with ends: per thread the latest first, asynchronous ones by id."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._open: dict[Any, list[tuple[int, int, int]]] = {}
        self._waiting = 0

    def threads(self, group: list[TraceEvent], start: Int64Array, bad: BoolArray) -> None:
        """Takes events B and E, in the order of the file; `start` in ns, `bad`: has no time."""
        lanes = self._trace.lanes
        keys = [lanes[event.pid, event.tid, False] for event in group]
        self._pair(group, start, bad, keys, keys, "E")

    def asynchronous(self, group: list[TraceEvent], start: Int64Array, bad: BoolArray) -> None:
        """Takes events b and e, or S and F, as `threads`; each category gets its own lane."""
        lanes = self._trace.lanes
        keys = [
            (event.pid, str(event.cat), _short(event.id if event.id2 is None else event.id2))
            for event in group
        ]
        own = [lanes[pid, f"{category} (asynchronous)", False] for pid, category, _ in keys]
        self._pair(group, start, bad, keys, own, "eF")

    def finish(self) -> None:
        """Adds the slices that never ended."""
        found = [one for waiting in self._open.values() for one in waiting]
        self._add([(start, UNFINISHED, name, lane) for start, name, lane in found])
        self._open.clear()

    def _pair(
        self,
        group: list[TraceEvent],
        start: Int64Array,
        bad: BoolArray,
        keys: list[Any],
        lanes: list[int],
        ends: str,
    ) -> None:
        names, counts, waits = self._trace.texts, self._trace.counts, self._open
        done: list[tuple[int, int, int, int]] = []
        for event, at, wrong, key, lane in zip(
            group, start.tolist(), bad.tolist(), keys, lanes, strict=True
        ):
            if wrong:
                continue
            waiting = waits.get(key)
            if event.ph not in ends:
                begun = at, names[event.name], lane
                self._waiting += 1
                if waiting is None:
                    waits[key] = [begun]
                else:
                    waiting.append(begun)
            elif waiting is not None and waiting[-1][0] <= at:
                begin, name, where = waiting.pop()
                done.append((begin, at - begin, name, where))
                if not waiting:  # ids are as many as slices
                    del waits[key]
            else:
                counts["dropped_unmatched_ends"] += 1
        counts["imported_ends"] += len(done)
        self._waiting -= len(done)
        if self._waiting > _MAX_OPEN:
            raise ImportRejected(
                f"{self._trace.path}: more than {_MAX_OPEN} slices begin and do not end, expected "
                "a trace"
            )
        self._add(done)

    def _add(self, slices: list[tuple[int, int, int, int]]) -> None:
        rows = new_slices(len(slices))
        if slices:
            rows["start"], rows["duration"], rows["name"], rows["lane"] = np.array(slices).T
        rows["kind"] = USER
        self._trace.slices.add(rows)
        self._trace.counts["imported_slices"] += len(slices)
