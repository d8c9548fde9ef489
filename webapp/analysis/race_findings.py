"""Races as findings: which tensor, which two lines, and what is missing between them."""

from __future__ import annotations

from typing import Any

import pandas as pd

from lanescope.webapp.analysis.findings import Finding, Unanswered
from lanescope.webapp.analysis.links import thread_lane, timeline_address
from lanescope.webapp.analysis.races import Race, Touch, find_races
from lanescope.webapp.run import Run


def race_findings(run: Run) -> list[Finding]:
    """Findings of kind `race`. Raises Unanswered where accesses were not recorded."""
    if not run.counts["access"]:
        raise Unanswered("reads and writes of tensors were not recorded (level access, native)")
    return [_finding(run, race) for race in find_races(run)]


def races(run: Run) -> pd.DataFrame:
    """Races as a data frame, a row per pair of places, by instant of the first access.

    rank; tensor (the first of `tensors`), tensors (how many); for each of the two accesses op,
    thread, where ("file.py:12", None where no stack was captured), time_ns (from the start of the
    run) and access (read or write), prefixed first_ and second_; overlapped (both were under way
    at an instant); pairs (of unordered segments of the two threads, at these places).
    """
    rows = []
    for race in find_races(run):
        row: dict[str, Any] = {
            "rank": race.rank, "tensor": race.tensors[0], "tensors": len(race.tensors),
        }  # fmt: skip
        for side, touch in (("first", race.first), ("second", race.second)):
            told = _touch(touch)
            row |= {f"{side}_{name}": told[name] for name in _TOLD}
        rows.append(row | {"overlapped": race.overlapped, "pairs": race.pairs})
    sides = [f"{side}_{name}" for side in ("first", "second") for name in _TOLD]
    columns = ["rank", "tensor", "tensors", *sides, "overlapped", "pairs"]
    return pd.DataFrame(rows, columns=columns)


_TOLD = ("op", "thread", "where", "time_ns", "access")


def _finding(run: Run, race: Race) -> Finding:
    first, second = race.first, race.second
    names = {t.thread: t.name for t in run.threads if t.rank == race.rank}
    verbs = [f"{names[t.thread]} {_verb(t)} at {_short(t)}" for t in (first, second)]
    how = "at the same time" if race.overlapped else "in no fixed order"
    more = len(race.tensors) - 1
    tensor = race.tensors[0] + (f" and {more} more" if more else "")
    start = min(first.start_ns, second.start_ns)
    end = max(first.end_ns, second.end_ns)
    return Finding(
        kind="race",
        severity="error",
        title=f"{tensor}: {verbs[0]}, {verbs[1]}, {how}",
        rank=race.rank,
        ranks=(race.rank,),
        thread=first.thread,
        step=first.step,
        time_ns=first.start_ns,
        where=_base(first.where),
        evidence={
            "tensor": race.tensors[0],
            "tensors": list(race.tensors),
            "first": _touch(first),
            "second": _touch(second),
            "overlapped": race.overlapped,
            "pairs": race.pairs,
            "bytes": [race.low, race.high],
            "advice": "let one wait for the other (join, a lock around both, a queue or an event "
            "between them), or give each thread a tensor of its own",
        },
        link=timeline_address(
            start, end, run.duration_ns, at=(thread_lane(race.rank, first.thread), first.start_ns)
        ),
    )


def _verb(touch: Touch) -> str:
    return f"{'writes' if touch.write else 'reads'} it ({touch.op})"


def _short(touch: Touch) -> str:
    return _base(touch.where) or (f"module {touch.module}" if touch.module else "an unknown place")


def _base(where: str | None) -> str | None:
    return where.rpartition("/")[2] if where else None


def _touch(touch: Touch) -> dict[str, Any]:
    return {
        "op": touch.op,
        "thread": touch.thread,
        "where": _base(touch.where),
        "time_ns": touch.start_ns,
        "access": "write" if touch.write else "read",
        "module": touch.module,
        "phase": touch.phase,
        "stack": list(touch.stack),
    }
