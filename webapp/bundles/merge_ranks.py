"""One run of several that hold different ranks of the same job, as hosts without a shared disk
record them."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from lanescope.collector.compaction.catalogue import write_catalogue
from lanescope.collector.compaction.clock_refine import narrow
from lanescope.collector.compaction.process_placement import gathered
from lanescope.collector.format import schema
from lanescope.webapp.bundles.selection import Contents
from lanescope.webapp.runs import notes, units
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run, open_run

_PIECE = 1 << 20


def merge(runs: Sequence[Run], target: Path) -> None:
    """Writes a run directory that holds the ranks of all runs.

    Clocks: where the runs have the same axis (their ranks measured themselves against rank 0's
    clock) all stay where they are, but for the refinement by their collectives; else the axis is
    that of the run with the lowest rank, and the others are placed by wall clock, which the run
    then says.

    Raises RunError where the runs are not parts of one job, where a rank is in two of them with
    different events, and where the target is there or cannot be written.
    """
    if not runs:
        raise RunError("nothing to merge: expected two runs or more")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError(f"{target}: exists already, expected a directory to be made; choose another")
    ordered = sorted(runs, key=lambda run: run.ranks[0])
    chosen = _ranks(ordered)
    try:
        target.absolute().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".lanescope-", dir=target.absolute().parent
        ) as folder:
            made = Path(folder) / "run"
            _write(ordered, chosen, made)
            if target.exists():
                target.rmdir()
            made.replace(target)
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror or error})") from None


def _ranks(runs: Sequence[Run]) -> list[list[int]]:
    """The ranks to take of each run: ranks that are equal in two runs are taken once."""
    first = runs[0]
    holders: dict[int, Run] = {}
    groups: dict[str, tuple[list[int], Run]] = {}
    chosen = []
    for run in runs:
        if run.world_size != first.world_size:
            raise RunError(
                f"{first.title} is of a job of {units.counted(first.world_size, 'rank')} and "
                f"{run.title} of one of {run.world_size}; expected parts of one job"
            )
        for name, group in run.manifest["groups"].items():
            known, holder = groups.setdefault(name, (group["ranks"], run))
            if known != group["ranks"]:
                raise RunError(
                    f"process group {name!r} has other ranks in {holder.title} than in "
                    f"{run.title}; expected parts of one job"
                )
        own = []
        for rank in run.ranks:
            if rank not in holders:
                holders[rank] = run
                own.append(rank)
            elif _files(holders[rank], rank) != _files(run, rank):
                raise RunError(
                    f"rank {rank} is in {holders[rank].title} and, with other events, in "
                    f"{run.title}; leave one of them out, with `lanescope pack --ranks`"
                )
        chosen.append(own)
    return chosen


def _files(run: Run, rank: int) -> dict[str, schema.File]:
    folder = f"{schema.rank_folder(rank)}/"
    return {n: f for n, f in run.manifest["files"].items() if n.startswith(folder)}


def _write(runs: Sequence[Run], chosen: list[list[int]], folder: Path) -> None:
    def put(name: str, data: BinaryIO, _: int) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            shutil.copyfileobj(data, file, _PIECE)

    folder.mkdir()
    files: dict[str, schema.File] = {}
    for run, ranks in zip(runs, chosen, strict=True):
        files |= Contents(run, ranks).write(put)
    manifest: Any = _manifest(runs, chosen, files)
    narrow(folder, manifest)
    (folder / schema.MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    write_catalogue(folder, manifest)
    made = open_run(folder)
    kept: Any = {"format": notes.FORMAT, "notes": [], "views": []}
    for run in runs:
        by = run.origin_ns + _shift(manifest["axis"], run) - made.origin_ns
        own = notes.moved(notes.Notes(run.files).read()[0], by, made.duration_ns, False)
        for what in ("notes", "views"):
            kept[what] += [one for one in own[what] if one not in kept[what]]
    if kept["notes"] or kept["views"]:
        (folder / notes.NOTES_FILE).write_bytes(notes.encoded(kept))


def _manifest(
    runs: Sequence[Run], chosen: list[list[int]], files: dict[str, schema.File]
) -> schema.Manifest:
    first = runs[0].manifest
    axis = next((run.manifest["axis"] for run in runs if run.manifest["axis"]), None)
    processes: list[schema.Process] = []
    for run, ranks in zip(runs, chosen, strict=True):
        own = [one for one in run.manifest["processes"] if one["rank"] in ranks]
        theirs = run.manifest["axis"] or axis
        processes = gathered(axis, processes, theirs, own) if axis and theirs else processes + own
    present = {one["rank"] for one in processes if one["role"] == "rank"}
    closed = all(one["closed"] for one in processes if one["role"] == "rank")
    statuses = [run.manifest["exit_status"] for run in runs]
    said = [text for run in runs for text in run.manifest["notes"]]
    return {
        **first,
        "format": max(run.manifest["format"] for run in runs),
        "created": min(run.manifest["created"] for run in runs),
        "complete": closed and present >= set(range(first["world_size"])),
        "exit_status": next((status for status in statuses if status), statuses[0]),
        "notes": list(dict.fromkeys(said)),
        "axis": axis,
        "processes": processes,
        "groups": {name: group for run in runs for name, group in run.manifest["groups"].items()},
        "files": files,
    }


def _shift(axis: schema.AxisReference | None, run: Run) -> int:
    """What to add to instants on the run's own axis."""
    theirs = run.manifest["axis"]
    if axis is None or theirs is None or axis["clock_identity"] == theirs["clock_identity"]:
        return 0
    return theirs["wall_minus_monotonic_ns"] - axis["wall_minus_monotonic_ns"]
