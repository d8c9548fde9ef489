"""Finds models that train on in evaluation mode after an evaluation.

A model with dropout or batch normalisation trained in training mode, was put into evaluation mode,
and stayed in it to the end, for _MIN_STEPS steps or more in which its own parameters were trained.
A teacher that is trained first, and called with gradients enabled afterwards, is right to be in it.
"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.names import TRAINING_MODE
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.parameter_history import gradient_rows, logged
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 3

_DIFFER = ("Dropout", "BatchNorm", "InstanceNorm")
"""Classes of torch.nn that do something else in evaluation mode begin or end so."""


def left_in_evaluation(run: Run) -> list[Finding]:
    """Returns findings of kind `evaluation_mode`, one per model and rank. Raises NotApplicable."""
    modes = logged(run, None, prefix=TRAINING_MODE)
    if modes.empty:
        raise NotApplicable("record a training step with --level access: no model was called")
    found = []
    for (rank, model), own in modes.groupby(["rank", "name"], sort=False):
        own = own.sort_values("time_ns")
        last = own.iloc[-1]
        if last["value"] or not len(own) > 1:
            continue
        others = {str(one) for one in modes.loc[modes["rank"] == rank, "name"]} - {str(model)}
        rows = gradient_rows(run)
        rows = rows[(rows["rank"] == rank) & _held_by(str(model), others, rows["parameter"])]
        since, steps = int(last["step"]), _trained(run, rows, int(rank), int(last["time_ns"]))
        layer = _layer(run, int(rank))
        if layer and len(steps) >= _MIN_STEPS:
            found.append(_finding(run, int(rank), str(model), since, steps, layer))
    return found


def _held_by(model: str, others: set[str], parameters: pd.Series) -> pd.Series:
    """Which parameters are a model's, by their names: those of the first one do not begin with its
    own."""
    names = parameters.astype("str")
    own = names.str.startswith(f"{model}.")
    return own if own.any() else ~names.str.startswith(tuple(f"{one}." for one in others))


def _trained(run: Run, stepped: pd.DataFrame, rank: int, since: int) -> pd.Index:
    """Steps after an instant in which a backward ran and some of the rows' parameters stepped that
    had stepped before."""
    phases = to_frame(run.events("phase", rank, columns=["start_ns", "kind", "step"]))
    back = phases["kind"].astype("str") == schema.PhaseKind.backward.name
    stepped = stepped[~stepped["missing"]]
    before = set(stepped.loc[stepped["time_ns"] <= since, "parameter"])
    again = (stepped["time_ns"] > since) & stepped["parameter"].isin(before)
    stepped = stepped.loc[again, "step"]
    steps = phases.loc[back & (phases["start_ns"] > since), "step"].unique()
    return pd.Index(steps).intersection(pd.Index(stepped.unique())).sort_values()


def _layer(run: Run, rank: int) -> str:
    """The first layer of a rank that does something else in evaluation mode."""
    rows = run.events("module", rank, columns=["path", "class"]).to_pylist()
    return next((str(row["path"]) for row in rows if _differs(str(row["class"]))), "")


def _differs(name: str) -> bool:
    own = name.rpartition(".")[2]
    return name.startswith("torch.nn.modules.") and any(one in own for one in _DIFFER)


def _finding(run: Run, rank: int, model: str, since: int, steps: pd.Index, layer: str) -> Finding:
    return finding_at(
        run,
        rank,
        int(steps[0]),
        kind="evaluation_mode",
        confidence="likely",
        title=f"{model} trains in evaluation mode since step {int(steps[0])}, for the last "
        f"{units.count(len(steps))} steps: eval() was called and train() was not called after it, "
        f"so dropout is off and batch normalisation does not follow the data ({layer}). Call "
        "model.train() before the training goes on.",
        evidence={"model": model, "since_step": since, "steps": len(steps), "layer": layer},
    )
