"""Places a process's journal in its run: manifest entry, clock, ordinals of its threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ..format.schema import AxisReference, Clock, Process
from .clock_fit import UNMEASURED_DRIFT_PPB, Calibration, fit
from .reader import ProcessLog

UNCALIBRATED_NS = 1_000_000_000
"""Uncertainty assumed for hosts aligned by their wall clocks alone."""


def first_ordinal(log: ProcessLog, threads: pa.Table | None) -> int:
    """Returns the base of a journal's thread ordinals, given the rank's thread table so far.

    exec keeps the process id, and the system reuses ids: threads of an earlier program with that
    id keep their ordinals. The result is the same on every attempt.
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
    """Returns the axis that a process would choose: its reference clock, else its own."""
    calibration = process["calibration"]
    if calibration is not None:
        return {
            "clock_identity": calibration.reference,
            "wall_minus_monotonic_ns": calibration.wall_minus_monotonic_ns,
        }
    return {
        "clock_identity": process["clock_identity"],
        "wall_minus_monotonic_ns": process["wall_minus_monotonic_ns"],
    }


def process_entry(process: dict[str, Any], reference: AxisReference) -> Process:
    """Returns the manifest entry of a process; `reference` is the run's axis."""
    entry: Process = {
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
        "clock": _clock(process, reference),
        "coverage": process.get("coverage", {}),
    }
    if "worker" in process:
        entry["worker"] = process["worker"]
    if "ended_thread" in process:
        entry["ended_thread"] = process["ended_thread"]
    if process.get("gone"):
        entry["gone"] = True
    return entry


def _clock(process: dict[str, Any], reference: AxisReference) -> Clock:
    """Returns the mapping of the process's clock to the axis, by its own measurements."""
    identity = process["clock_identity"]
    calibration: Calibration | None = process["calibration"]
    if calibration is not None and calibration.reference == reference["clock_identity"] != identity:
        found = fit(calibration.points, process["start_ns"], process["end_ns"])
        return {
            "offset_ns": found.offset_ns,
            "drift_ppb": found.drift_ppb,
            "uncertainty_ns": found.uncertainty_ns,
            "calibrated": True,
            "host": identity,
        }
    offset = process["wall_minus_monotonic_ns"] - reference["wall_minus_monotonic_ns"]
    return _unmeasured(identity, reference, offset)


def _unmeasured(identity: str, reference: AxisReference, offset_ns: int) -> Clock:
    """Returns the mapping of the axis's own clock, or of one aligned by wall clock."""
    shared = identity == reference["clock_identity"]
    return {
        "offset_ns": 0 if shared else offset_ns,
        "drift_ppb": 0.0,
        "uncertainty_ns": 0 if shared else UNCALIBRATED_NS,
        "calibrated": shared,
        "host": identity,
    }


def with_process(
    axis: AxisReference | None, listed: Sequence[Process], process: dict[str, Any]
) -> tuple[AxisReference, list[Process]]:
    """Returns the run's axis and processes after adding or updating a process.

    The first process chooses the axis. If it was not measured and a later one was, all move to the
    later one's reference clock. Processes on one clock share the mapping that any of them measured.
    """
    wanted = axis_reference(process)
    axis = axis or wanted
    calibration = process["calibration"]
    here = axis["clock_identity"]
    measured = any(p["clock"]["calibrated"] and p["clock"]["host"] != here for p in listed)
    if calibration is not None and not measured and not _same(wanted, axis):
        shift = axis["wall_minus_monotonic_ns"] - wanted["wall_minus_monotonic_ns"]
        listed = [_moved(one, wanted, shift) for one in listed]
        axis = wanted
    entry = process_entry(process, axis)
    others = []
    for one in listed:
        if (one["rank"], one["pid"]) != (entry["rank"], entry["pid"]):
            others.append(one)
        else:  # an earlier entry of it, or the program before exec
            start = min(entry["start_ns"], one["start_ns"])
            process = {**process, "start_ns": start}
            entry = process_entry(process, axis)
    return axis, sorted(_sharing(entry, others), key=lambda p: (p["rank"], p["start_ns"]))


def _sharing(entry: Process, others: list[Process]) -> list[Process]:
    """Returns the entry and the others; those on its clock share one mapping."""
    host = entry["clock"]["host"]
    if entry["clock"]["calibrated"]:
        return [entry, *(_like(p, entry) if p["clock"]["host"] == host else p for p in others)]
    source = next(
        (p for p in others if p["clock"]["host"] == host and p["clock"]["calibrated"]), None
    )
    return [entry if source is None else _like(entry, source), *others]


def _like(process: Process, source: Process) -> Process:
    """Returns a process with the mapping of another one on the same clock."""
    known = source["clock"]
    if not known["uncertainty_ns"]:
        return {**process, "clock": known}
    share = known["drift_ppb"] * 1e-9
    beyond = max(
        source["start_ns"] - process["start_ns"], process["end_ns"] - source["end_ns"], 0
    )  # of the range that the uncertainty holds for
    clock: Clock = {
        **known,
        "offset_ns": known["offset_ns"] + round((process["start_ns"] - source["start_ns"]) * share),
        "uncertainty_ns": known["uncertainty_ns"] + round(beyond * UNMEASURED_DRIFT_PPB * 1e-9),
    }
    return {**process, "clock": clock}


def _moved(process: Process, axis: AxisReference, shift_ns: int) -> Process:
    clock = process["clock"]
    moved = _unmeasured(clock["host"], axis, clock["offset_ns"] + shift_ns)
    return {**process, "clock": moved}


def _same(one: AxisReference, other: AxisReference) -> bool:
    return one["clock_identity"] == other["clock_identity"]


def gathered(
    axis: AxisReference,
    listed: Sequence[Process],
    other_axis: AxisReference,
    others: Sequence[Process],
) -> list[Process]:
    """Returns the processes of two recordings of one job, on the axis of the first.

    Different axes are aligned by wall clock, except for processes that share a clock with one of
    the first recording.
    """
    found = list(others)
    if not _same(axis, other_axis):
        shift = other_axis["wall_minus_monotonic_ns"] - axis["wall_minus_monotonic_ns"]
        found = [_moved(one, axis, shift) for one in others]
    known = {p["clock"]["host"]: p for p in listed if p["clock"]["calibrated"]}
    for position, one in enumerate(found):
        source = known.get(one["clock"]["host"])
        if source is not None and not one["clock"]["calibrated"]:
            found[position] = _like(one, source)
    return sorted([*listed, *found], key=lambda p: (p["rank"], p["start_ns"]))
