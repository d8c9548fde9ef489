"""Where a process's journal belongs in its run: manifest entry, clock, numbers of its threads."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from .journal_reader import ProcessLog
from .schema import AxisReference, Process

UNCALIBRATED_NS = 1_000_000_000
"""Uncertainty stated for hosts aligned by their wall clocks alone: nothing better is known."""


def first_ordinal(log: ProcessLog, threads: pa.Table | None) -> int:
    """What to count a journal's thread ordinals from, given the rank's thread table so far.

    A process id is used again after exec, and in time by the system: the threads of the earlier
    program of that id keep theirs. The same on every attempt.
    """
    if threads is None:
        return 0
    earlier = [
        int(row["thread"].partition("-")[2])
        for row in threads.select(["thread", "pid", "start_ns"]).to_pylist()
        if row["pid"] == log.process["pid"] and row["start_ns"] < log.process["start_ns"]
    ]
    return max(earlier, default=-1) + 1


def axis_reference(process: dict[str, Any]) -> AxisReference:
    """The clock of a process as the one that the run's axis is."""
    return {
        "clock_identity": process["clock_identity"],
        "wall_minus_monotonic_ns": process["wall_minus_monotonic_ns"],
    }


def process_entry(process: dict[str, Any], reference: AxisReference) -> Process:
    """A process as the manifest lists it; `reference` is the clock that the run's axis is."""
    shared = process["clock_identity"] == reference["clock_identity"]
    offset = process["wall_minus_monotonic_ns"] - reference["wall_minus_monotonic_ns"]
    return {
        "rank": process["rank"],
        "pid": process["pid"],
        "parent_pid": process["parent_pid"],
        "role": process["role"],
        "host": process["host"],
        "engine": process["engine"],
        "start_ns": process["start_ns"],
        "end_ns": process["end_ns"],
        "closed": process["closed"],
        "ended": process.get("ended", ""),
        "exception": process.get("exception", ""),
        "argv": process["argv"],
        "python": process["python"],
        "torch": process["torch"],
        "modules_root": process["modules_root"],
        "clock": {
            "offset_ns": 0 if shared else offset,
            "drift_ppb": 0.0,
            "uncertainty_ns": 0 if shared else UNCALIBRATED_NS,
            "calibrated": shared,
            "host": process["clock_identity"],
        },
        "coverage": process.get("coverage", {}),
    }
