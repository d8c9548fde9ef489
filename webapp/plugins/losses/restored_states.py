"""Finds states of models that are loaded and restore nothing: `best = model.state_dict()`.

A state holds the parameters themselves. Where it was kept over steps of training and then loaded
into the same model, every value is written onto itself.
"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format.loop_names import KEPT_STATE
from lanescope.webapp.analysis.fault_series import finding_of_series, found_per_series
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_steps
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run


@found_per_series(KEPT_STATE, need_steps)
def restored_in_vain(run: Run, name: str, rows: pd.DataFrame) -> Finding:
    """Returns findings of kind `shared_parameter`, one per pair of lines. Raises NotApplicable."""
    taken_at, loaded_at, kind = name.split("/")
    first = rows.iloc[0]
    taken, step, time = int(first["value"]), int(first["step"]), int(first["time_ns"])
    passed = units.counted(step - taken, "step")
    return finding_of_series(
        run,
        rows,
        kind="shared_parameter",
        severity="error",
        title=f"load_state_dict() at {loaded_at} restores nothing: the state of {kind} that was "
        f"taken at {taken_at} in step {taken} shares the memory of the parameters, so it has "
        f"changed with them for {passed} of training. Keep a copy: "
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
