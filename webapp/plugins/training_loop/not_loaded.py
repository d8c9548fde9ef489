"""Finds states that load_state_dict(strict=False) does not load, as all names have a prefix."""

from __future__ import annotations

from lanescope.collector.format.names import OTHER_NAMES
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_backward
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run


def not_loaded(run: Run) -> list[Finding]:
    """Returns findings of kind `not_loaded`, one per line. Raises NotApplicable."""
    found = []
    rows = logged(run, None, prefix=OTHER_NAMES)
    if rows.empty:
        need_backward(run)
    for name, own in rows.groupby("name", sort=False, observed=True):
        first, last = (own.sort_values("time_ns").iloc[place] for place in (0, -1))
        if not last["value"]:  # another state was loaded into the module
            continue
        where, kind, of_state, of_module = str(name).split("/")
        said = (
            f"begin with {of_state!r} in the state"
            if of_state
            else (f"begin with {of_module!r} in the module")
        )
        time = int(first["time_ns"])
        found.append(
            Finding(
                kind="not_loaded",
                severity="error",
                title=f"load_state_dict(strict=False) at {where} loads nothing: the names of all "
                f"{units.count(int(first['value']))} parameters of {kind} {said} and not in the "
                f"{'module' if of_state else 'state'}, so the module stays as it is. "
                + (
                    f"Remove {of_state!r} from the names of the state"
                    if of_state
                    else f"Load it into the module behind {of_module.rstrip('.')!r}"
                )
                + ", and load with strict=True.",
                rank=int(first["rank"]),
                ranks=tuple(sorted({int(rank) for rank in own["rank"]})),
                thread=str(first["thread"]),
                step=int(first["step"]),
                time_ns=time,
                where=where or None,
                evidence={"of_state": of_state, "of_module": of_module},
                link=timeline_address(time, time, run.duration_ns),
            )
        )
    return found
