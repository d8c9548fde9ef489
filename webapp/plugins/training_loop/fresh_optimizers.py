"""Finds trainings that are resumed without the state of their optimizer.

The file has it, the model was loaded from that file and is trained on by an optimizer of the same
settings, which begins with nothing. A file that this training writes, before or later, holds a
training to resume; another one may be what a model is fine-tuned from.
"""

from __future__ import annotations

import re

from lanescope.collector.format.loop_names import FRESH_OPTIMIZER, SAVED_FILE
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.parameter_history import gradient_rows, logged
from lanescope.webapp.runs.run import Run

_DIGITS = re.compile(r"\d+")
"""Of epochs, in names of files."""


def fresh_optimizers(run: Run) -> list[Finding]:
    """Returns findings of kind `not_loaded`, one per line. Raises NotApplicable."""
    if gradient_rows(run).empty:
        raise NotApplicable("record an optimizer step: the run has no steps")
    rows = logged(run, None, prefix=FRESH_OPTIMIZER)
    if rows.empty:
        return []
    saved = {
        _numberless(name.partition("/")[2]) for name in logged(run, None, prefix=SAVED_FILE)["name"]
    }
    found = []
    for name, own in rows.groupby("name", sort=False, observed=True):
        where, kind, path = str(name).split("/", 2)
        if _numberless("/" + path) in saved:
            first = own.sort_values("time_ns").iloc[0]
            found.append(
                finding_at(
                    run,
                    int(first["rank"]),
                    first,
                    kind="not_loaded",
                    severity="warning",
                    confidence="likely",
                    title=f"The training is resumed without the state of its optimizer: the file "
                    f"that torch.load(){f' at {where}' if where else ''} reads has it, the model "
                    f"is as it was saved there, and {kind} begins with nothing, so its moments are "
                    "lost. Call optimizer.load_state_dict() with it after the model's.",
                    ranks=tuple(sorted({int(rank) for rank in own["rank"]})),
                    where=where or None,
                    evidence={"cause": "fresh_optimizer", "file": path.rpartition("/")[2]},
                )
            )
    return found


def _numberless(path: str) -> str:
    return _DIGITS.sub("#", path)
