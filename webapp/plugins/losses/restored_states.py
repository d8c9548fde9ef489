"""Finds states of models that are loaded and restore nothing: `best = model.state_dict()`.

A state holds the parameters themselves. Where it was kept over steps of training and then loaded
into the same model, every value is written onto itself.
"""

from __future__ import annotations

from lanescope.collector.format.loop_names import KEPT_STATE
from lanescope.webapp.analysis.fault_series import finding_of_series, series
from lanescope.webapp.analysis.findings import Finding, NotApplicable
from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.analysis.parameter_history import gradient_rows
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run


def restored_in_vain(run: Run) -> list[Finding]:
    """Returns findings of kind `shared_parameter`, one per pair of lines. Raises NotApplicable."""
    if gradient_rows(run).empty:
        raise NotApplicable("record an optimizer step: nothing was trained")
    found = []
    for name, own in series(run, KEPT_STATE):
        taken_at, loaded_at, kind = name.split("/")
        first = own.iloc[0]
        taken, step, time = int(first["value"]), int(first["step"]), int(first["time_ns"])
        passed = f"{units.count(step - taken)} step{'s' * (step - taken != 1)}"
        found.append(
            finding_of_series(
                run,
                own,
                kind="shared_parameter",
                severity="error",
                title=f"load_state_dict() at {loaded_at} restores nothing: the state of {kind} "
                f"that was taken at {taken_at} in step {taken} shares the memory of the "
                f"parameters, so it has changed with them for {passed} of training. Keep a copy: "
                "copy.deepcopy(model.state_dict()).",
                where=taken_at or loaded_at,
                evidence={
                    "cause": "restored_in_vain",
                    "taken_at": taken_at,
                    "taken_step": taken,
                    "loaded_at": loaded_at,
                },
                link=timeline_address(time, time, run.duration_ns),
            )
        )
    return found
