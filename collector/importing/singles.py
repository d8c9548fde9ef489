"""Events that are no slices: marks, counters, arrows, names."""

from __future__ import annotations

import math
import re
from collections import Counter
from hashlib import blake2b
from typing import Any

import numpy as np

from ..activities import stream_name
from ..kinds import PhaseKind
from .events import Event, Label, decode_plain
from .exported import LAUNCH
from .instants import I64, Flags
from .rows import ARROW, PHASE, VALUE, Trace, new_slices

GLOBAL = "all processes"
"""Process of marks that are about everything: they stand on the rank's main thread."""

_STREAM = re.compile(r"stream \S+ \(([a-z]+:\d+)\)")
"""What the recorder itself calls a stream."""

_KINETO_THREAD = re.compile(r"thread -?\d+ \((.+)\)")

_MEMORY = "[memory]"
_TOTALS = {"Total Allocated": "allocated", "Total Reserved": "reserved"}
TOLD_ELSEWHERE = frozenset({"fwdbwd", "ac2g", "async_cpu_to_gpu", "async_gpu", "forward_backward"})
"""Arrows of Kineto: sequence numbers and correlations say the same."""

_DEVICES = {0: "cpu", 1: "cuda", 20: "privateuse1", 12: "xpu", 19: "mtia"}
"""c10::DeviceType."""


class Singles:
    """Takes such events into a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._threads: dict[tuple[Label, Label], str] = {}

    def marks(self, group: list[Event], start: I64, bad: Flags) -> None:
        """Instants. Those by which torch tells of memory are values."""
        memory = [event.name == _MEMORY for event in group]
        if any(memory):
            chosen = np.array(memory)
            self._memory([e for e, m in zip(group, memory, strict=True) if m], start[chosen],
                         bad[chosen])  # fmt: skip
            group = [e for e, m in zip(group, memory, strict=True) if not m]
            start, bad = start[~chosen], bad[~chosen]
        trace = self._trace
        rows = new_slices(len(group))
        rows["start"] = start
        rows["name"] = [trace.texts[event.name] for event in group]
        rows["lane"] = [
            trace.lanes[(GLOBAL, 0, False) if event.s == "g" else (event.pid, event.tid, False)]
            for event in group
        ]
        rows["kind"] = PHASE + PhaseKind.mark
        trace.slices.add(rows[~bad])
        trace.counts["imported_marks"] += int((~bad).sum())

    def counters(self, group: list[Event], start: I64, bad: Flags) -> None:
        """Counters: one series for each number among the arguments."""
        found: list[tuple[int, str, int, float]] = []
        for event, at, wrong in zip(group, start.tolist(), bad.tolist(), strict=True):
            if wrong:
                continue
            numbers = _numbers(decode_plain(bytes(event.args)))
            if not numbers:
                self._trace.counts["dropped_no_value"] += 1
                continue
            lane = self._trace.lanes[event.pid, event.tid, False]
            name = str(event.name)
            for key, value in numbers.items():
                single = len(numbers) == 1 and key in ("value", name)
                found.append((at, name if single else f"{name} {key}".strip(), lane, value))
            self._trace.counts["imported_counters"] += 1
        self._values(found)

    def arrows(self, group: list[Event], start: I64, bad: Flags) -> None:
        """Flow events: what hands on to what."""
        self._trace.counts["imported_arrows"] += int((~bad).sum())
        rows: list[tuple[int, int, bool, int]] = []
        launches: list[tuple[int, int, bool, int]] = []
        for event, at, wrong in zip(group, start.tolist(), bad.tolist(), strict=True):
            if wrong:
                continue
            key = f"{event.cat}\t{event.id if event.id2 is None else event.id2}".encode()
            number = -1 - int.from_bytes(blake2b(key, digest_size=7).digest())
            if event.cat == LAUNCH and event.ph in "sf":
                begins = event.ph == "s"
                lane = self._trace.lanes[event.pid, event.tid, not begins]
                launches.append((at, lane, begins, number))
                continue
            lane = self._trace.lanes[event.pid, event.tid, False]
            if event.ph != "s":
                rows.append((at, lane, False, number))
            if event.ph != "f":
                rows.append((at, lane, True, number))
        self._trace.arrows.add(np.array(rows, ARROW))
        self._trace.launches.add(np.array(launches, ARROW))

    def metadata(self, group: list[Event]) -> None:
        """Names of processes and threads."""
        for event in group:
            if event.name not in ("process_name", "thread_name", "lanescope_rank"):
                continue
            named = decode_plain(bytes(event.args))
            text = str(named.get("name", ""))[:200].encode("utf-8", "replace").decode()
            if event.name == "process_name":
                self._trace.process_names[event.pid] = text
            elif event.name == "thread_name":
                self._threads[event.pid, event.tid] = text.strip()

    def name_lanes(self) -> None:
        """Gives the lanes their names, now that all are known.

        The same thread of another run should have the same name: Kineto's `thread 3448 (python3)`
        is told by what is in parentheses, the first of a process by what Python calls it.
        """
        trace = self._trace
        seen: Counter[tuple[Label, str]] = Counter()
        for lane in trace.lanes.lanes:
            name = self._threads.get((lane.pid, lane.tid), "")
            own = _STREAM.fullmatch(name)
            if lane.stream and own:
                lane.name, lane.device = name, own[1]
            elif lane.stream:
                lane.device = f"{trace.platform}:{lane.pid}"[:40]
                lane.name = stream_name(lane.device, "?" if lane.tid is None else str(lane.tid))
            elif (kernel_name := _KINETO_THREAD.fullmatch(name)) is not None:
                is_main = type(lane.tid) is int and lane.tid == lane.pid
                lane.name = "MainThread" if is_main else kernel_name[1]
                seen[lane.pid, lane.name] += 1
                if seen[lane.pid, lane.name] > 1:
                    lane.name += f" {seen[lane.pid, lane.name]}"
            else:
                tid = lane.tid if isinstance(lane.tid, str) and lane.tid else f"thread {lane.tid}"
                lane.name = name or tid
            lane.name = lane.name[:200].encode("utf-8", "replace").decode()

    def _memory(self, group: list[Event], start: I64, bad: Flags) -> None:
        found: list[tuple[int, str, int, float]] = []
        for event, at, wrong in zip(group, start.tolist(), bad.tolist(), strict=True):
            if wrong:
                continue
            args = decode_plain(bytes(event.args))
            device = _DEVICES.get(_integer(args.get("Device Type")), "device")
            index = _integer(args.get("Device Id"))
            where = device if index < 0 else f"{device}:{index}"
            lane = self._trace.lanes[event.pid, event.tid, False]
            numbers = _numbers({key: args.get(key) for key in _TOTALS})
            told = {k: v for k, v in numbers.items() if v or device != "cpu" or "All" in k}
            found += [(at, f"memory {_TOTALS[k]} ({where})", lane, v) for k, v in told.items()]
            self._trace.counts["imported_counters" if told else "dropped_no_value"] += 1
        self._values(found)

    def _values(self, found: list[tuple[int, str, int, float]]) -> None:
        names = self._trace.texts
        rows = [(at, names[name], lane, value) for at, name, lane, value in found]
        self._trace.values.add(np.array(rows, VALUE))


def _numbers(args: dict[str, Any]) -> dict[str, float]:
    found = {}
    for key, value in args.items():
        if isinstance(value, (int, float)) and abs(value) < 1e300 and math.isfinite(value):
            found[key] = float(value)
    return found


def _integer(value: Any) -> int:
    return value if isinstance(value, int) and abs(value) < 1 << 31 else -1
