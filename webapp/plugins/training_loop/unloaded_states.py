"""Finds states that load_state_dict(strict=False) does not load, as all names have a prefix."""

from __future__ import annotations

from lanescope.collector.format.loop_names import OTHER_NAMES
from lanescope.webapp.analysis.fault_series import finding_of_series, series
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_backward
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run


def not_loaded(run: Run) -> list[Finding]:
    """Returns findings of kind `not_loaded`, one per line. Raises NotApplicable."""
    found = []
    seen = [*series(run, OTHER_NAMES)]
    if not seen:
        need_backward(run)
    for name, own in seen:
        first = own.iloc[0]
        if not own["value"].iloc[-1]:  # another state was loaded into the module
            continue
        where, kind, of_state, of_module = name.split("/")
        said = (
            f"begin with {of_state!r} in the state"
            if of_state
            else (f"begin with {of_module!r} in the module")
        )
        time = int(first["time_ns"])
        found.append(
            finding_of_series(
                run,
                own,
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
                where=where,
                evidence={"of_state": of_state, "of_module": of_module},
                link=timeline_address(time, time, run.duration_ns),
            )
        )
    return found
