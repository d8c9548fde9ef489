"""Finds models that train in evaluation mode after an evaluation, or during that of a thread.

A model with dropout or batch normalisation trained in training mode, was put into evaluation mode,
and stayed in it to the end, for _MIN_STEPS steps or more in which its own parameters were trained.
A teacher that is trained first, and called with gradients enabled afterwards, is right to be in it.

Modes are the module's, not the thread's. Where another thread evaluates a model, and each time that
the training goes on in evaluation mode is one of its evaluations, it was this thread that set it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.names import EVALUATION_MODE, TRAINING_MODE
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_evaluations, need_rows
from lanescope.webapp.analysis.parameter_history import gradient_rows, logged
from lanescope.webapp.analysis.stack_frames import first_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 3

_MIN_TIMES, _MOST_OTHERS = 2, 0.1
"""Times that a thread changes the mode, and what part of the changes may have other causes."""

_FORWARD, _BACKWARD = schema.PhaseKind.forward.name, schema.PhaseKind.backward.name
_EVALUATION = schema.PhaseKind.evaluation.name

_DIFFER = ("Dropout", "BatchNorm", "InstanceNorm")
"""Classes of torch.nn that do something else in evaluation mode begin or end so."""


def left_in_evaluation(run: Run) -> list[Finding]:
    """Returns findings of kind `evaluation_mode`, one per model and rank. Raises NotApplicable."""
    modes = need_rows(
        logged(run, None, prefix=TRAINING_MODE),
        "record a training step with --level access: no model was called",
    )
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
        if layer and len(steps) >= _MIN_STEPS and not _by_threads(run, int(rank), str(model), own):
            found.append(_finding(run, int(rank), str(model), since, steps, layer))
    return found


def switched_by_threads(run: Run) -> list[Finding]:
    """Returns findings of kind `evaluation_mode`, one per model and rank. Raises NotApplicable."""
    need_evaluations(run)
    found = []
    for (rank, model), own in logged(run, None, prefix=TRAINING_MODE).groupby(["rank", "name"]):
        layer = _layer(run, int(rank))
        switch = _by_threads(run, int(rank), str(model), own) if layer else None
        if switch is not None:
            found.append(_switch(run, int(rank), str(model), *switch, layer))
    return found


def _by_threads(
    run: Run, rank: int, model: str, own: pd.DataFrame
) -> tuple[list[str], pd.DataFrame] | None:
    """Threads that evaluate a model whose modes are `own`, and the backward phases of `_switched`;
    None: others do not set its mode."""
    evaluated = logged(run, rank, prefix=EVALUATION_MODE)
    threads, trains = set(evaluated.loc[evaluated["name"] == model, "thread"]), set(own["thread"])
    if not threads - trains or len(trains) != 1 or own["value"].all():
        return None
    # A mode is written as it changes, so not by each thread that finds it.
    phases = to_frame(run.events("phase", rank, columns=["thread", "kind", "start_ns"]))
    every = phases.loc[phases["kind"].astype("str") == _EVALUATION].sort_values("start_ns")
    others = [one for one in dict.fromkeys(every["thread"]) if one not in trains]
    steps = _switched(run, rank, own.sort_values("time_ns"), {*others})
    return None if steps is None else (others, steps)


def _switched(run: Run, rank: int, modes: pd.DataFrame, others: set[str]) -> pd.DataFrame | None:
    """Backward phases of a thread that the evaluations of others found; None: they are not the
    cause of nearly all of its calls in evaluation mode."""
    columns = ["thread", "start_ns", "kind", "step"]
    phases = to_frame(run.events("phase", rank, columns=columns)).sort_values("start_ns")
    kinds, own = phases["kind"].astype("str"), phases["thread"] == modes["thread"].iloc[0]
    forwards, evaluations, theirs = (
        phases.loc[which, "start_ns"].to_numpy()
        for which in (
            own & (kinds == _FORWARD),
            own & (kinds == _EVALUATION),
            phases["thread"].isin(others) & (kinds == _EVALUATION),
        )
    )
    times = modes["time_ns"].to_numpy()
    ends = np.append(times[1:], np.iinfo(np.int64).max)
    off = modes["value"].to_numpy() == 0
    begins, ends = times[off], ends[off]
    before = np.concatenate(([0], forwards))[np.searchsorted(forwards, begins)]
    switched = np.searchsorted(theirs, ends) > np.searchsorted(theirs, before)
    switched &= np.searchsorted(evaluations, begins) == np.searchsorted(evaluations, before)
    if switched.sum() < max(_MIN_TIMES, (1 - _MOST_OTHERS) * len(switched)):
        return None
    back = phases[own & (kinds == _BACKWARD)]
    place = np.searchsorted(begins, back["start_ns"].to_numpy(), "right") - 1
    inside = (place >= 0) & (back["start_ns"].to_numpy() < ends[place])
    return back[inside & switched[place]] if inside.any() else None


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
    back = phases["kind"].astype("str") == _BACKWARD
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


def _switch(
    run: Run, rank: int, model: str, others: list[str], steps: pd.DataFrame, layer: str
) -> Finding:
    names = {one.thread: one.name for one in run.threads_of(rank)}
    first, count = steps.iloc[0], steps["step"].nunique()
    ops = to_frame(run.events("op", rank, others[0], columns=["stack", "phase"]))
    stacks = ops.loc[ops["phase"].astype("str") == _EVALUATION, "stack"].dropna().unique()
    where = first_place(run, rank, stacks)
    return finding_at(
        run,
        rank,
        first,
        kind="evaluation_mode",
        confidence="likely",
        title=f"{names[str(first['thread'])]} trains {model} in evaluation mode in "
        f"{units.count(count)} steps, while {names[others[0]]} evaluates it"
        + at_place(where)
        + ": eval() is for the module, not for the thread that calls it, so dropout is off in "
        f"these steps and batch normalisation does not follow the data ({layer}). Evaluate a copy "
        "there (copy.deepcopy(model)), or hold one lock around the evaluation and each step.",
        where=where,
        evidence={"model": model, "steps": count, "layer": layer, "thread": others[0]},
    )
