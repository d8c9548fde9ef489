"""A run as a Chrome trace (JSON), which Perfetto, chrome://tracing and `lanescope import` open.

The format: "Trace Event Format", Google 2016. Its times are microseconds; they are written as
decimal numbers with three digits behind the point, so every nanosecond is there.

- A rank's process is a process of the trace, a thread a thread. Slices that overlap without
  nesting, which a thread of a trace cannot hold, go to a further lane of the thread, `name (2)`.
- An operator has category cpu_op and Kineto's arguments (sequence number, input dims and types);
  kernels are of category kernel, with an arrow from the call that launched them.
- A collective is an asynchronous event from its call to its completion, as collectives overlap.
- An arrow from the forward operator to its backward node, from the start of a thread to its begin,
  and from a value that a thread publishes to the thread that takes it; viewers draw arrows between
  slices, so both ends are slices of category sync. The arrows of an imported trace keep category,
  name and number.
- The arguments of an imported event are beside those that LaneScope writes.
- A counter for every series of values, and for the norm of the gradient.
- What had not ended begins and does not end.
- Metadata events hold the run's tables, which `lanescope import` reads instead (`run_tables`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from lanescope.collector.format import schema
from lanescope.webapp.exporters.base import ExportRequest
from lanescope.webapp.exporters.perfetto_arrows import (
    ARROW,
    SYNC_COLUMNS,
    backward_arrows,
    handovers,
    launch_arrows,
)
from lanescope.webapp.exporters.perfetto_places import FIRST_LANE, Places, rows, us
from lanescope.webapp.exporters.run_tables import table_events
from lanescope.webapp.runs.run import Run, Thread
from lanescope.webapp.runs.typed_json import json_members
from lanescope.webapp.timeline.lanes import GRADIENT_NORM, gradient_norm_samples, has_counter

_OP = [
    "start_ns",
    "duration_ns",
    "name",
    "scope",
    "depth",
    "step",
    "phase",
    "module",
    "sequence",
    "shapes",
    "dtypes",
    "launch_ns",
    "launch_thread",
    "args",
]
_CATEGORY = {
    schema.OpScope.user.name: "user_annotation",
    schema.OpScope.kernel.name: "kernel",
}
_OWN = {"step", "phase", "module", "kind"}
_NEVER_NS = 1 << 62


def write_trace(run: Run, sink: TextIO, ranks: Sequence[int] | None = None) -> None:
    """Writes the ops, phases, marks, collectives and values of a run. Raises OSError."""
    about = {
        "recorded by": "LaneScope",
        "run": run.manifest["id"],
        "origin_ns": str(run.origin_ns),
    }
    sink.write('{"displayTimeUnit":"ns","otherData":' + json.dumps(about) + ',"traceEvents":[\n')
    sink.write(json.dumps({"ph": "M", "name": "trace_config", "pid": 0, "args": {}}))
    chosen = run.ranks if ranks is None else ranks
    for event in chain(table_events(run, chosen), _events(run, chosen)):
        sink.write(",\n" + event)
    sink.write("\n]}\n")


def _events(run: Run, ranks: Sequence[int]) -> Iterator[str]:
    places = Places(run)
    for rank in ranks:
        threads = run.threads_of(rank)
        for pid in dict.fromkeys(thread.pid for thread in threads):
            first = next(thread for thread in threads if thread.pid == pid)
            name = f"rank {rank}" + ("" if first.role == "rank" else f" (child {pid})")
            yield _named("process_name", places.pid(rank, pid), 0, {"name": name})
            yield _named("process_sort_index", places.pid(rank, pid), 0, {"sort_index": rank})
        for thread in threads:
            yield from _thread(run, thread, places)
        yield from handovers(run, rank, places)
        yield from backward_arrows(run, rank, places)
        yield from _collectives(run, rank, places)
        yield from _counters(run, rank, places)


def _thread(run: Run, thread: Thread, places: Places) -> Iterator[str]:
    pid, tid = places.pid(thread.rank, thread.pid), places.tid(thread)
    yield _named("thread_name", pid, tid, {"name": thread.name})
    yield _named("thread_sort_index", pid, tid, {"sort_index": thread.ordinal})
    slices = [*_phases(run, thread), *_ops(run, thread), *_syncs(run, thread)]
    slices.sort(key=lambda one: (one[0], -one[1], one[2]))
    open_until: list[list[int]] = []  # of each lane the ends of the slices it is within
    for start, end, _, event in slices:
        lane = 0
        while lane < len(open_until) and not _fits(open_until[lane], start, end):
            lane += 1
        if lane == len(open_until):
            open_until.append([])
            if lane:
                name = {"name": f"{thread.name} ({lane + 1})"}
                yield _named("thread_name", pid, FIRST_LANE + tid + lane, name)
        open_until[lane].append(end)
        at = tid if not lane else FIRST_LANE + tid + lane
        yield f'{event},"pid":{pid},"tid":{at},"ts":{us(start)}' + (
            f',"dur":{us(end - start)}}}' if end < _NEVER_NS else "}"
        )
    yield from launch_arrows(run, thread, places, pid, tid)


def _fits(ends: list[int], start: int, end: int) -> bool:
    """True if a slice is within the innermost one that is open, or after all of them."""
    while ends and ends[-1] <= start:
        ends.pop()
    return not ends or end <= ends[-1]


_Slice = tuple[int, int, int, str]  # start, end, order among equals, the event's beginning


def _phases(run: Run, thread: Thread) -> Iterator[_Slice]:
    columns = ["start_ns", "duration_ns", "name", "kind", "depth", "step", "args"]
    for row in rows(run, "phase", thread, columns):
        args = _args(row["args"], step=row["step"], kind=row["kind"])
        if row["kind"] == schema.PhaseKind.mark.name:
            begin = f'{{"ph":"i","s":"t","cat":"mark","name":{_text(row["name"])},"args":{args}'
            yield row["start_ns"], row["start_ns"], 2000, begin
            continue
        yield _slice(row, "phase", args, row["depth"])


def _ops(run: Run, thread: Thread) -> Iterator[_Slice]:
    for row in rows(run, "op", thread, _OP):
        shapes = row["shapes"]
        args = _args(
            row["args"],
            **{
                "step": row["step"],
                "phase": row["phase"],
                "module": row["module"],
                "Sequence number": row["sequence"],
                "Input Dims": _dims(shapes) if shapes else None,
                "Input type": row["dtypes"].split() if row["dtypes"] else None,
            },
        )
        category = _CATEGORY.get(row["scope"], "cpu_op")
        yield _slice(row, category, args, 1000 + row["depth"])


def _slice(row: dict[str, Any], category: str, args: str, order: int) -> _Slice:
    start, length = row["start_ns"], row["duration_ns"]
    kind = "X" if length is not None else "B"
    begin = f'{{"ph":"{kind}","cat":"{category}","name":{_text(row["name"])},"args":{args}'
    return start, start + length if length is not None else _NEVER_NS, order, begin


def _syncs(run: Run, thread: Thread) -> Iterator[_Slice]:
    """Slices of a recording's events that arrows begin or end at: viewers draw arrows to slices.

    A wait gets one more at its end: Perfetto takes the slice that starts first for the source.
    """
    for row in rows(run, "sync", thread, SYNC_COLUMNS):
        if row["kind"] in ARROW and row["args"] is None and row["duration_ns"] is not None:
            begin = f'{{"ph":"X","cat":"sync","name":{_text(row["kind"])},"args":{{}}'
            end = row["start_ns"] + max(row["duration_ns"], 1)
            for start in {row["start_ns"], end - 1}:
                yield start, end, 1 << 20, begin


def _collectives(run: Run, rank: int, places: Places) -> Iterator[str]:
    pid = places.main(rank)
    calls = run.events("collective", rank).to_pylist()
    for number, row in enumerate(calls):
        end = row["complete_ns"]
        if end is None and row["duration_ns"] is not None:
            end = row["start_ns"] + row["duration_ns"]
        args = _args(
            None,
            **{
                "group": row["group"],
                "group size": row["group_size"],
                "sequence": row["sequence"],
                "bytes": row["bytes"],
                "step": row["step"],
                "shapes": row["shapes"],
                "dtypes": row["dtypes"],
                "peer": row["peer"],
                "reduce op": row["reduce_op"],
                "call ns": row["duration_ns"],
                "complete": row["complete_ns"] is not None,
            },
        )
        common = (
            f'"cat":"collective","name":{_text(row["name"])},"id":"{rank}/{number}","pid":{pid}'
        )
        yield f'{{"ph":"b",{common},"tid":{pid},"ts":{us(row["start_ns"])},"args":{args}}}'
        if end is not None:
            yield f'{{"ph":"e",{common},"tid":{pid},"ts":{us(max(end, row["start_ns"]))}}}'


def _counters(run: Run, rank: int, places: Places) -> Iterator[str]:
    columns = ["time_ns", "name", "value", "thread", "args"]
    values = run.events("value", rank, columns=columns).to_pylist()
    pids = {t.thread: t.pid for t in run.threads_of(rank)}
    found = [
        (r["time_ns"], r["name"], r["value"], r["args"], pids.get(r["thread"]))
        for r in values
        if has_counter(r["name"])
    ]
    norms = gradient_norm_samples(run, rank)
    main = places.main(rank)
    pairs = zip(norms.time, norms.value, strict=True)
    found += [(int(time), GRADIENT_NORM, float(value), None, None) for time, value in pairs]
    for time, name, value, args, own in found:
        pid = main if own is None else places.pid(rank, own)
        where = f'"pid":{pid},"tid":{pid},"ts":{us(time)}'
        if value is not None and math.isfinite(value):
            more = f',"arguments":{json.dumps(args)}' if args else ""
            yield f'{{"ph":"C","name":{_text(name)},{where},"args":{{"value":{value!r}{more}}}}}'
        else:  # JSON has no such number
            yield f'{{"ph":"i","s":"p","cat":"value","name":{_text(f"{name} is {value}")},{where}}}'


def _named(what: str, pid: int, tid: int, args: dict[str, Any]) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})


def _args(imported: str | None, /, **values: Any) -> str:
    """Own arguments and imported ones, which keep their names but for `step` and the like."""
    own = {key: value for key, value in values.items() if value not in (None, "")}
    others = json_members(imported)
    for key in _OWN & set(others) & set(own):
        value = others.pop(key)
        if value != own[key]:
            others[f"imported {key}"] = value
    return json.dumps({**own, **others})


@lru_cache(maxsize=65536)
def _text(text: str) -> str:
    return json.dumps(text)


@lru_cache(maxsize=65536)
def _dims(shapes: str) -> list[list[int]] | str:
    """`[4, 8] [8]` as Kineto has it: [[4, 8], [8]]."""
    try:
        dims: list[list[int]] = json.loads(f"[{shapes.replace('] [', '], [')}]")
    except ValueError:
        return shapes
    return dims


def export(run: Run, path: Path, wanted: ExportRequest) -> None:
    """Writes the trace of some ranks."""
    with path.open("w", encoding="utf-8") as sink:
        write_trace(run, sink, wanted.ranks)
