"""Finds operators that change a tensor in place which backward still needs.

Autograd notices only when backward comes to the tensor, and says which version it found. The node
that raised was made by a forward operator; of the storages that this one read or made, the culprit
is the first later write that found the version which backward expected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format.marks import BackwardRaised
from lanescope.webapp.analysis.access_site import MemoryAccess, storage_names
from lanescope.webapp.analysis.arrow_columns import having
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.forward_ops import BACKWARD, maker
from lanescope.webapp.analysis.links import at_place, thread_lane, timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_backward
from lanescope.webapp.analysis.stack_frames import frame_texts, short_place
from lanescope.webapp.runs.run import Run

_SAID = re.compile(
    r"modified by an inplace operation: \[(?P<tensor>[^\]]*\]?)\](?:, which is (?P<source>[^,]*),)?"
    r" is at version (?P<version>\d+); expected version (?P<expected>\d+)"
)
_OPS = [
    "start_ns",
    "duration_ns",
    "depth",
    "name",
    "scope",
    "sequence",
    "module",
    "phase",
    "step",
    "stack",
    "thread",
]
_ACCESSES = ["start_ns", "duration_ns", "depth", "storage", "version", "write", "birth", "thread"]


@dataclass(frozen=True)
class _Raised:
    rank: int
    thread: str
    step: int
    time_ns: int
    tensor: str  # torch.FloatTensor [4, 4]
    version: int
    expected: int
    where: str | None  # of the call to backward


@dataclass(frozen=True)
class _Change:
    storage: int
    saved: MemoryAccess  # the forward operator whose node raised
    culprit: MemoryAccess
    writes: int  # to the storage, from the culprit's on


def inplace_modifications(run: Run) -> list[Finding]:
    """Returns findings of kind `inplace_modification`, one per tensor and pair of lines. Raises
    NotApplicable."""
    found: dict[tuple[object, ...], Finding] = {}
    for raised in _raised(run):
        finding = _finding(run, raised, _change(run, raised))
        culprit = finding.evidence["modified_by"]
        known = culprit and (culprit["where"], culprit["op"])
        found.setdefault((raised.rank, raised.where, raised.tensor, known), finding)
    if not found:
        need_backward(run)
    return list(found.values())


def _raised(run: Run) -> Iterator[_Raised]:
    columns = ["start_ns", "name", "kind", "step", "rank", "thread"]
    rows = run.events("phase", columns=columns)
    names = pc.unique(rows["name"].cast(pa.string())).to_pylist()
    said = [n for n in names if n.startswith(BackwardRaised.PREFIX) and _SAID.search(n)]
    meant = pc.is_in(rows["name"].cast(pa.string()), pa.array(said, pa.string()))
    for row in rows.filter(meant).to_pylist():
        words, mark = _SAID.search(row["name"]), BackwardRaised.parse(row["name"])
        assert words is not None  # chosen for it
        yield _Raised(
            row["rank"],
            row["thread"],
            row["step"],
            row["start_ns"],
            words["tensor"],
            int(words["version"]),
            int(words["expected"]),
            short_place(mark.caller) if mark and mark.caller else None,
        )


def _change(run: Run, raised: _Raised) -> _Change | None:
    """Returns the change that backward met; None if the access table does not show it."""
    node = _node(run, raised)
    if node is None or node["sequence"] is None or not run.counts["access"]:
        return None
    alike = ("sequence", node["sequence"])
    rows = run.events("op", raised.rank, columns=_OPS, equal=alike).to_pylist()
    position = maker(node, rows)
    if position is None:
        return None
    saved = rows[position]
    end = saved["start_ns"] + (saved["duration_ns"] or 0)
    touched = run.events(
        "access",
        raised.rank,
        saved["thread"],
        ["start_ns", "storage"],
        window=(saved["start_ns"], end + 1),
    )
    own = touched.filter(pc.less_equal(touched["start_ns"], end))
    own = own.filter(pc.greater_equal(own["start_ns"], saved["start_ns"]))
    window = (end, raised.time_ns + 1)
    later = run.events("access", raised.rank, columns=_ACCESSES, window=window)
    later = later.filter(pc.is_in(later["storage"], pc.unique(own["storage"])))
    later = later.filter(pc.greater_equal(later["start_ns"], end))
    process = saved["thread"].partition("-")[0]
    writes = [
        row
        for row in sorted(later.to_pylist(), key=lambda row: (row["start_ns"], row["depth"]))
        if (row["write"] or row["birth"]) and row["thread"].partition("-")[0] == process
    ]
    alive: dict[int, list[dict[str, Any]]] = {}
    for row in writes:
        alive.setdefault(row["storage"], []).append(row)
    candidates = []
    for storage, mine in alive.items():
        born = next((k for k, row in enumerate(mine) if row["birth"]), len(mine))
        kept = [row for row in mine[:born] if row["version"] >= raised.expected]
        first = next((row for row in kept if row["version"] == raised.expected), None)
        if first is not None:
            starts = {(row["thread"], row["start_ns"]) for row in kept}
            candidates.append((first["start_ns"], storage, first, len(starts)))
    if not candidates:
        return None
    _, storage, first, count = min(candidates, key=lambda one: one[:2])
    stacks = frame_texts(run, raised.rank)
    op = _op_of(run, raised.rank, first)
    if op is None:
        return None
    return _Change(storage, _touch(saved, stacks, False), _touch(op, stacks, True), count)


def _node(run: Run, raised: _Raised) -> dict[str, Any] | None:
    """The node that raised: the last one on the thread that had begun by then."""
    last: dict[str, Any] | None = None
    for ops in run.pieces("op", raised.rank, raised.thread, _OPS):
        begun = pc.less_equal(ops["start_ns"], raised.time_ns)
        nodes = ops.filter(pc.and_(pa.array(having(ops["scope"], BACKWARD.__eq__)), begun))
        newest = nodes.filter(pc.equal(nodes["start_ns"], pc.max(nodes["start_ns"])))
        for row in newest.to_pylist():
            last = row if last is None else max(last, row, key=itemgetter("start_ns", "depth"))
    return last


def _op_of(run: Run, rank: int, access: dict[str, Any]) -> dict[str, Any] | None:
    start = access["start_ns"]
    ops = run.events("op", rank, access["thread"], _OPS, window=(start, start + 1))
    same = (ops["start_ns"], start), (ops["depth"], access["depth"])
    rows = ops.filter(pc.and_(*(pc.equal(column, value) for column, value in same))).to_pylist()
    return rows[0] if rows else None


def _touch(op: dict[str, Any], stacks: dict[int, list[str]], write: bool) -> MemoryAccess:
    return MemoryAccess(
        thread=op["thread"],
        op=op["name"],
        module=op["module"],
        phase=op["phase"],
        start_ns=op["start_ns"],
        end_ns=op["start_ns"] + (op["duration_ns"] or 0),
        write=write,
        step=op["step"],
        stack=tuple(stacks.get(op["stack"], ())),
    )


_ADVICE = "Let the change make a new tensor, or move it behind backward."

_OF_STEP = (
    "The optimizer steps in between: step after the last backward that needs the old values, or "
    "compute the loss again after the step. Where backward goes on into an earlier step, as along "
    "the state of a recurrent layer, detach() that at the begin of each step."
)


def _finding(run: Run, raised: _Raised, change: _Change | None) -> Finding:
    names = {t.thread: t.name for t in run.threads_of(raised.rank)}
    at = at_place(raised.where)
    steps = change is not None and change.culprit.phase.endswith(".step")
    advice = _OF_STEP if steps else _ADVICE
    evidence: dict[str, Any] = {
        "tensor": raised.tensor,
        "version": raised.version,
        "expected": raised.expected,
        "raised": {"thread": raised.thread, "where": raised.where, "time_ns": raised.time_ns},
        "modified_by": None,
        "saved_by": None,
        "advice": advice,
    }
    title = f"Backward{at} found that {raised.tensor} was changed in place since it was saved"
    place, where = (raised.thread, raised.time_ns, raised.time_ns + 1), raised.where
    if change is not None:
        saved, culprit = change.saved, change.culprit
        name = storage_names(run, raised.rank).get(change.storage) or raised.tensor
        evidence |= {
            "tensor": name,
            "modified_by": culprit.to_json(),
            "saved_by": saved.to_json(),
            "writes": change.writes,
        }
        title = (
            f"{names[culprit.thread]} changes {name} in place ({culprit.op}) at {culprit.place} "
            f"before backward{at} needs it: {saved.op} at {saved.place} saved it"
        )
        place, where = (culprit.thread, culprit.start_ns, culprit.end_ns), culprit.where
    thread, start, end = place
    selected = (thread_lane(raised.rank, thread), start) if change is not None else None
    return Finding(
        kind="inplace_modification",
        severity="error",
        title=f"{title}. {advice}",
        rank=raised.rank,
        thread=thread,
        step=raised.step if change is None else change.culprit.step,
        time_ns=start,
        where=where,
        evidence=evidence,
        link=timeline_address(start, end, run.duration_ns, selected),
    )
