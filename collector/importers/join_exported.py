"""Joins the runs that several traces of `lanescope export --to perfetto` hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .import_limits import ImportRejected
from .spill import Trace


def join_exported(traces: Sequence[Trace], run: Path, asked: bool) -> dict[str, Any]:
    """Moves the tables of traces of one run to the directory `run`; returns the manifest.

    `asked`: options say where ranks and steps are. Raises ImportRejected, OSError.
    """
    whole: dict[str, Any] = {}
    for trace in traces:
        if trace.exported is None or asked:
            raise ImportRejected(
                f"{trace.path}: expected "
                + ("no option beside -o" if trace.exported else "a trace that LaneScope exported")
                + ", as a trace that LaneScope exported holds its ranks and steps"
            )
        own = trace.exported.manifest()
        if trace.truncated:
            own["complete"] = False
            own["notes"].append(f"{trace.path.name} ends early: tables behind its end are missing")
        if whole and (own["id"] != whole["id"] or set(own["files"]) & set(whole["files"])):
            raise ImportRejected(
                f"{trace.path}: holds another run than {traces[0].path}, or the same ranks; import "
                "it alone"
            )
        for name in own["files"]:
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            (trace.exported.folder / name).replace(run / name)
        if whole:
            for key in ("processes", "notes"):
                own[key] = [*whole[key], *(one for one in own[key] if one not in whole[key])]
            own["files"].update(whole["files"])
        whole = own
    ranks = {one["rank"] for one in whole["processes"]}
    whole["complete"] = whole["complete"] and ranks == set(range(whole["world_size"]))
    return whole
