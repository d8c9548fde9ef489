"""Finds trainings that are resumed without the state of their optimizer.

The file has it, the model was loaded from that file and is trained on by an optimizer of the same
settings, which begins with nothing. A file that this training writes, before or later, holds a
training to resume; another one may be what a model is fine-tuned from.
"""

from __future__ import annotations

import re

from lanescope.collector.format.loop_names import FRESH_OPTIMIZER, SAVED_FILE
from lanescope.webapp.analysis.fault_series import finding_of_series, series
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_steps
from lanescope.webapp.runs.run import Run

_DIGITS = re.compile(r"\d+")
"""Of epochs, in names of files."""


def fresh_optimizers(run: Run) -> list[Finding]:
    """Returns findings of kind `not_loaded`, one per line. Raises NotApplicable."""
    need_steps(run)
    found = []
    saved = {_numberless(name.partition("/")[2]) for name, _ in series(run, SAVED_FILE)}
    for name, own in series(run, FRESH_OPTIMIZER):
        where, kind, path = name.split("/", 2)
        if _numberless("/" + path) in saved:
            found.append(
                finding_of_series(
                    run,
                    own,
                    kind="not_loaded",
                    confidence="likely",
                    title=f"The training is resumed without the state of its optimizer: the file "
                    f"that torch.load(){at_place(where)} reads has it, the model "
                    f"is as it was saved there, and {kind} begins with nothing, so its moments are "
                    "lost. Call optimizer.load_state_dict() with it after the model's.",
                    where=where,
                    evidence={"cause": "fresh_optimizer", "file": path.rpartition("/")[2]},
                )
            )
    return found


def _numberless(path: str) -> str:
    return _DIGITS.sub("#", path)
