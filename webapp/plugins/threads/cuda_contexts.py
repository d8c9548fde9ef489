"""Finds threads on the wrong CUDA device, and CUDA in forked processes.

A process's own device is the one that its main thread chose first; where it chose none, that of its
LOCAL_RANK, if there are so many. A program may use several devices, so another one is wrong only
where it is the own device of another rank that uses it. Devices are distinguished by what
CUDA_VISIBLE_DEVICES makes of their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.marks import (
    CUDA_PREFIX,
    CudaBegun,
    CudaBlock,
    CudaChosen,
    CudaRejected,
)
from lanescope.webapp.analysis.arrow_columns import having, marks, texts_of
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, NotApplicable, Severity
from lanescope.webapp.analysis.links import at_place, thread_lane, timeline_address
from lanescope.webapp.analysis.stack_frames import short_place, where_of
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_PIN = "Choose the device in each thread (torch.cuda.set_device, ls.pin) before anything uses CUDA."


@dataclass(frozen=True)
class Use:
    """A thread's first operator on a device."""

    thread: str
    start_ns: int
    where: str | None
    op: str


@dataclass
class _Process:
    """What one process did with devices; numbers of devices are its own."""

    rank: int
    pid: int
    host: str
    main: str = ""
    count: int = 0
    visible: tuple[str, ...] = ()
    local_rank: int | None = None
    chosen: list[tuple[int, str, int, str]] = field(default_factory=list)  # ns, thread, device, at
    within: set[str] = field(default_factory=set)  # threads that chose one, or had a block of one
    uses: dict[int, list[Use]] = field(default_factory=dict)  # device -> by thread
    refused: list[tuple[int, str, str, str]] = field(default_factory=list)  # ns, thread, at, forked

    @property
    def own(self) -> int | None:
        """Its own device; None: not known."""
        first = next((d for _, thread, d, _ in sorted(self.chosen) if thread == self.main), None)
        if first is None and self.local_rank is not None and 1 < self.count > self.local_rank:
            return self.local_rank
        return first

    def card(self, device: int) -> tuple[str, str]:
        """Returns host and physical device of a device number."""
        named = device < len(self.visible)
        return self.host, self.visible[device] if named else str(device)


def cuda_contexts(run: Run) -> list[Finding]:
    """Returns findings of kind `cuda_context`: another rank's device, a thread's, use after a
    fork.

    Raises NotApplicable where no CUDA device was used.
    """
    processes = list(_processes(run))
    if not processes:
        raise NotApplicable("the program uses no GPU")
    owners: dict[tuple[str, str], _Process] = {}
    for one in processes:
        if one.own is not None and one.own in one.uses:
            owners.setdefault(one.card(one.own), one)
    found = []
    for one in processes:
        found += [_refused(run, one, *refused) for refused in one.refused]
        for device in sorted(one.uses):
            if one.own is None or device == one.own:
                continue
            owner = owners.get(one.card(device))
            if owner is not None and owner.rank != one.rank:
                found.append(_foreign(run, one, device, owner))
            else:
                found += [_stray(run, one, device, use) for use in _strays(run, one, device)]
    return found


def _processes(run: Run) -> Iterator[_Process]:
    by = {
        (p["rank"], p["pid"]): _Process(p["rank"], p["pid"], p["host"])
        for p in run.manifest["processes"]
    }
    of = {}
    for thread in run.threads:
        process = of[thread.rank, thread.thread] = by[thread.rank, thread.pid]
        if thread.kind == schema.ThreadKind.main.name:
            process.main = thread.thread
    for row in marks(run, CUDA_PREFIX):
        _note(of[row["rank"], row["thread"]], row["thread"], row["start_ns"], row["name"])
    for rank in run.ranks:
        for device, use in _first_uses(run, rank):
            of[rank, use.thread].uses.setdefault(device, []).append(use)
    for process in by.values():
        for uses in process.uses.values():
            uses.sort(key=lambda use: use.start_ns)
        if process.uses or process.refused:
            yield process


def _note(process: _Process, thread: str, start: int, name: str) -> None:
    if begun := CudaBegun.parse(name):
        # Not yet a use of that device: to set another one begins with CUDA too.
        process.count = begun.count
        process.local_rank = int(begun.local_rank) if begun.local_rank else None
        process.visible = tuple(begun.visible.split(",")) if begun.visible else ()
    elif chosen := CudaChosen.parse(name):
        process.chosen.append((start, thread, chosen.device, short_place(chosen.place)))
        process.within.add(thread)
    elif CudaBlock.parse(name):
        process.within.add(thread)
    elif rejected := CudaRejected.parse(name):
        at, forked_at = short_place(rejected.place), short_place(rejected.forked_at)
        process.refused.append((start, thread, at, forked_at))


@per_rank
def _first_uses(run: Run, rank: int) -> list[tuple[int, Use]]:
    """Device and first operator of each thread on each device."""
    devices = sorted(d for d in texts_of(run, "op", "device", rank) if d.startswith("cuda:"))
    threads = run.threads_of(rank) if devices else ()
    return [use for one in threads for use in _computed(run, rank, one.thread, devices)]


def _computed(
    run: Run, rank: int, thread: str, devices: Sequence[str]
) -> Iterator[tuple[int, Use]]:
    firsts: dict[str, dict[str, Any]] = {}
    columns = ["start_ns", "device", "scope", "name", "stack"]
    for rows in run.pieces("op", rank, thread, columns):
        host = ~having(rows["scope"], schema.OpScope.kernel.name.__eq__)
        for device in devices:
            mine = rows.filter(pa.array(host & having(rows["device"], device.__eq__)))
            if len(mine):
                at = int(pc.index(mine["start_ns"], pc.min(mine["start_ns"])).as_py())
                (op,) = mine.slice(at, 1).to_pylist()
                known = firsts.setdefault(device, op)
                firsts[device] = min(known, op, key=itemgetter("start_ns"))
    for device, op in firsts.items():
        place = where_of(run, rank, op["stack"])
        yield int(device.removeprefix("cuda:")), Use(thread, op["start_ns"], place, op["name"])


def _strays(run: Run, process: _Process, device: int) -> Iterator[Use]:
    """Uses of device 0 by threads that chose none, begun after the process had chosen another."""
    chosen = min(
        (start for start, thread, *_ in process.chosen if thread == process.main), default=None
    )
    for use in process.uses[device]:
        python = any(
            t.thread == use.thread and t.kind == schema.ThreadKind.python.name for t in run.threads
        )
        late = chosen is not None and use.start_ns > chosen
        if device == 0 and python and late and use.thread not in process.within:
            yield use


def _foreign(run: Run, process: _Process, device: int, owner: _Process) -> Finding:
    use = process.uses[device][0]
    title = (
        f"{units.sentence(ranks_in(run, (process.rank,)))} runs {use.op} on "
        f"cuda:{device}, the device of {ranks_in(run, (owner.rank,))}, in "
        f"{_name(run, process.rank, use.thread)}{_at(use.where)}. Its own device is "
        f"cuda:{process.own}. {_PIN}"
    )
    evidence = {"owner": owner.rank, "op": use.op, "advice": _PIN}
    return _finding(run, process, use, "warning", title, device, evidence)


def _stray(run: Run, process: _Process, device: int, use: Use) -> Finding:
    title = (
        f"Device cuda:{device} runs {use.op} of {_name(run, process.rank, use.thread)}"
        f"{_at(use.where)}: that thread chose no device, and the main thread had chosen "
        f"cuda:{process.own}. {_PIN}"
    )
    evidence = {"op": use.op, "advice": _PIN}
    return _finding(run, process, use, "info", title, device, evidence)


def _refused(
    run: Run, process: _Process, start: int, thread: str, where: str, forked: str
) -> Finding:
    advice = "Start processes with spawn or forkserver, or use CUDA only after the fork."
    title = (
        f"Process {process.pid} cannot use CUDA at {where}: it was forked at {forked} after its "
        f"parent had begun to use CUDA, and torch refuses that. {advice}"
    )
    evidence = {"forked_at": forked, "advice": advice}
    return _finding(run, process, Use(thread, start, where, ""), "error", title, None, evidence)


def _finding(
    run: Run,
    process: _Process,
    use: Use,
    severity: Severity,
    title: str,
    device: int | None,
    evidence: dict[str, Any],
) -> Finding:
    lane = thread_lane(process.rank, use.thread)
    return Finding(
        kind="cuda_context",
        severity=severity,
        title=title,
        rank=process.rank,
        thread=use.thread,
        time_ns=use.start_ns,
        where=use.where,
        evidence={"device": device, "own_device": process.own, **evidence},
        link=timeline_address(use.start_ns, use.start_ns, run.duration_ns, (lane, use.start_ns)),
    )


def _name(run: Run, rank: int, thread: str) -> str:
    return next(t.name for t in run.threads if (t.rank, t.thread) == (rank, thread))


def _at(where: str | None) -> str:
    return at_place(where)
