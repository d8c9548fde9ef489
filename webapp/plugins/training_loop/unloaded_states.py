"""Finds states that load_state_dict(strict=False) does not load, as all names have a prefix, and
trainings that are resumed without the state of their optimizer.

The file has it, the model was loaded from that file and is trained on by an optimizer of the same
settings, which begins with nothing.
"""

from __future__ import annotations

import re

import pandas as pd

from lanescope.collector.format.loop_names import FRESH_OPTIMIZER, OTHER_NAMES, SAVED_FILE
from lanescope.webapp.analysis.fault_series import finding_of_series, found_per_series, series
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import at_place, timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_backward, need_steps
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_DIGITS = re.compile(r"\d+")
"""Of epochs, in names of files."""


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


@found_per_series(FRESH_OPTIMIZER, need_steps)
def fresh_optimizers(run: Run, name: str, rows: pd.DataFrame) -> Finding | None:
    """Returns findings of kind `not_loaded`, one per line. Raises NotApplicable.

    A file that this training writes, before or later, holds a training to resume; another one may
    be what a model is fine-tuned from.
    """
    where, kind, path = name.split("/", 2)
    saved = {_numberless(one.partition("/")[2]) for one, _ in series(run, SAVED_FILE)}
    if _numberless("/" + path) not in saved:
        return None
    return finding_of_series(
        run,
        rows,
        kind="not_loaded",
        confidence="likely",
        title=f"The training is resumed without the state of its optimizer: the file that "
        f"torch.load(){at_place(where)} reads has it, the model is as it was saved there, and "
        f"{kind} begins with nothing, so its moments are lost. Call optimizer.load_state_dict() "
        "with it after the model's.",
        where=where,
        evidence={"cause": "fresh_optimizer", "file": path.rpartition("/")[2]},
    )


def _numberless(path: str) -> str:
    return _DIGITS.sub("#", path)
