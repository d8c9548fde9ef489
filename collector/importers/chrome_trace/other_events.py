"""Adds events that are no slices or arrows: marks, counters, names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import Raw

from ...format.array_types import BoolArray, Int64Array
from ...format.names import stream_name
from ...format.record_kinds import PhaseKind
from ..arguments import joined_texts
from ..events import Label, TraceEvent, decode_memory, decode_numbers, decode_plain, is_number
from ..import_limits import MAX_NAMED_THREADS
from ..spill import (
    GLOBAL,
    PHASE_KIND,
    VALUE_ROW,
    NameNumbers,
    Trace,
    is_main_thread,
    new_slices,
    unlabelled,
)
from .arrows import timed

_KINETO_THREAD = re.compile(r"thread -?\d+ \((.+)\)")

_MAX_THREAD_NAME = 1000
_MEMORY = "[memory]"
_MAX_CACHED = 1 << 16
"""Series whose names are cached."""

_DEVICES = {0: "cpu", 1: "cuda", 20: "privateuse1", 12: "xpu", 19: "mtia"}
"""c10::DeviceType."""


class OtherEvents:
    """Adds marks, counters and names to a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._threads: dict[tuple[Label, Label], str] = {}
        self._series, self._memories = _Series(trace.texts), _Memories(trace.texts)

    def marks(self, group: list[TraceEvent], start: Int64Array, bad: BoolArray) -> None:
        """Adds instants; torch's memory events become values."""
        memory = [event.name == _MEMORY for event in group]
        if any(memory):
            chosen = np.array(memory)
            self._memory(
                [e for e, m in zip(group, memory, strict=True) if m], start[chosen], bad[chosen]
            )
            group = [e for e, m in zip(group, memory, strict=True) if not m]
            start, bad = start[~chosen], bad[~chosen]
        trace = self._trace
        group, start = timed(group, start, bad)
        rows = new_slices(len(group))
        rows["start"] = start
        rows["name"] = [trace.texts[event.name] for event in group]
        rows["lane"] = [
            trace.lanes[(GLOBAL, 0, False) if event.s == "g" else (event.pid, event.tid, False)]
            for event in group
        ]
        rows["kind"] = PHASE_KIND + PhaseKind.mark
        trace.arguments.add(rows, joined_texts([event.args for event in group]))
        trace.slices.add(rows)
        trace.counts["imported_marks"] += len(group)

    def counters(self, group: list[TraceEvent], start: Int64Array, bad: BoolArray) -> None:
        """Adds counters: one series for each number among the arguments."""
        group, start = timed(group, start, bad)
        every = decode_numbers([event.args for event in group])
        lengths = [len(numbers) for numbers in every]
        series = [
            number
            for event, numbers in zip(group, every, strict=True)
            for number in (self._series[str(event.name), tuple(numbers)] if numbers else ())
        ]
        # Values that are not numbers stay in the arguments.
        kept = [
            b"" if len(numbers) == len(decode_plain(event.args)) else event.args
            for event, numbers in zip(group, every, strict=True)
        ]
        values = [v for one in every for v in one.values()]
        self._add_values(group, start, lengths, series, values, kept)

    def metadata(self, group: list[TraceEvent]) -> None:
        """Keeps names of processes and threads; counts what else is said of them."""
        for event in group:
            if event.name not in ("process_name", "thread_name"):
                self._trace.counts["unused_metadata"] += 1
                continue
            self._trace.counts["imported_metadata"] += 1
            if max(len(self._threads), len(self._trace.process_names)) >= MAX_NAMED_THREADS:
                self._trace.counts["unread_names"] += 1
                continue
            named = decode_plain(bytes(event.args))
            text = str(named.get("name", ""))[:_MAX_THREAD_NAME].encode("utf-8", "replace").decode()
            if event.name == "process_name":
                self._trace.process_names[event.pid] = text
            elif event.name == "thread_name":
                self._threads[event.pid, event.tid] = text.strip()

    def append(self, other: OtherEvents) -> None:
        """Takes the names of threads of the next part of the file."""
        self._threads.update(other._threads)

    def name_lanes(self) -> None:
        """Names the lanes, after all events were taken.

        A thread should have the same name in another run, so Kineto's `thread 3448 (python3)`
        becomes `python3`, and the first thread of a process `MainThread`.
        """
        trace = self._trace
        seen: Counter[tuple[Label, str]] = Counter()
        for lane in trace.lanes.lanes:
            name = self._threads.get((lane.pid, lane.tid), "")
            if lane.stream:
                lane.device = f"{trace.platform}:{unlabelled(lane.pid)}"[:40]
                lane.name = stream_name(lane.device, "?" if lane.tid is None else str(lane.tid))
            elif (kernel_name := _KINETO_THREAD.fullmatch(name)) is not None:
                is_main = is_main_thread(lane)
                lane.name = "MainThread" if is_main else kernel_name[1]
                seen[lane.pid, lane.name] += 1
                if seen[lane.pid, lane.name] > 1:
                    lane.name += f" {seen[lane.pid, lane.name]}"
            else:
                tid = lane.tid if isinstance(lane.tid, str) and lane.tid else f"thread {lane.tid}"
                lane.name = name or tid
            lane.name = lane.name[:_MAX_THREAD_NAME].encode("utf-8", "replace").decode()

    def _memory(self, group: list[TraceEvent], start: Int64Array, bad: BoolArray) -> None:
        group, start = timed(group, start, bad)
        lengths: list[int] = []
        series: list[int] = []
        values: list[float] = []
        for one in decode_memory([event.args for event in group]):
            known = len(values)
            names = self._memories[_integer(one.device), _integer(one.index)]
            if is_number(one.allocated):
                series.append(names.allocated)
                values.append(float(one.allocated))
            if is_number(one.reserved) and (one.reserved or names.reserves):
                series.append(names.reserved)
                values.append(float(one.reserved))
            lengths.append(len(values) - known)
        args = [event.args for event in group]
        self._add_values(group, start, lengths, series, values, args)

    def _add_values(
        self,
        group: list[TraceEvent],
        start: Int64Array,
        lengths: list[int],
        series: list[int],
        values: list[float],
        args: Sequence[bytes | Raw],
    ) -> None:
        """Adds values: `lengths[i]` of event i, in order; `series` numbers the name of each.

        The first value of an event gets its `args`.
        """
        lanes, counts = self._trace.lanes, self._trace.counts
        filled = [(e, count) for e, count in zip(group, lengths, strict=True) if count]
        counts["imported_counters"] += len(filled)
        counts["dropped_no_value"] += len(group) - len(filled)
        rows = np.zeros(len(values), VALUE_ROW)
        firsts = np.cumsum([0, *lengths])[:-1][np.array(lengths, np.int64) > 0]
        described = rows[firsts]
        self._trace.arguments.add(
            described, joined_texts([a for a, n in zip(args, lengths, strict=True) if n])
        )
        rows[firsts] = described
        rows["start"] = np.repeat(start, lengths)
        rows["name"], rows["value"] = series, values
        places = [lanes[event.pid, event.tid, False] for event, _ in filled]
        rows["lane"] = np.repeat(np.array(places, np.uint32), [count for _, count in filled])
        self._trace.values.add(rows)


class _Series(dict[tuple[str, tuple[str, ...]], tuple[int, ...]]):
    """Numbers of the names of a counter's series, by its name and keys."""

    def __init__(self, texts: NameNumbers) -> None:
        super().__init__()
        self._texts = texts

    def __missing__(self, key: tuple[str, tuple[str, ...]]) -> tuple[int, ...]:
        name, keys = key
        if len(self) == _MAX_CACHED:
            self.clear()
        single = len(keys) == 1 and keys[0] in ("value", name)
        names = (name,) if single else tuple(f"{name} {one}".strip() for one in keys)
        self[key] = found = tuple(self._texts[one] for one in names)
        return found


@dataclass(frozen=True)
class _Memory:
    """Numbers of the names of a device's series; `reserves`: a reserve of 0 is a value."""

    allocated: int
    reserved: int
    reserves: bool


class _Memories(dict[tuple[int, int], _Memory]):
    """Numbers of the names of memory series, by device type and index."""

    def __init__(self, texts: NameNumbers) -> None:
        super().__init__()
        self._texts = texts

    def __missing__(self, key: tuple[int, int]) -> _Memory:
        kind, index = key
        if len(self) == _MAX_CACHED:
            self.clear()
        device = _DEVICES.get(kind, "device")
        where = device if index < 0 else f"{device}:{index}"
        allocated = self._texts[f"memory allocated ({where})"]
        reserved = self._texts[f"memory reserved ({where})"]
        self[key] = found = _Memory(allocated, reserved, device != "cpu")
        return found


def _integer(value: Any) -> int:
    return value if isinstance(value, int) and abs(value) < 1 << 31 else -1
