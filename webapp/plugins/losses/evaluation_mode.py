"""Finds models that train in evaluation mode after an evaluation, during that of a thread, or from
the first step on.

A model with dropout or batch normalisation trained in training mode, was put into evaluation mode,
and stayed in it to the end, for _MIN_STEPS steps or more in which its own parameters were trained.
A teacher that is trained first, and called with gradients enabled afterwards, is right to be in it.

One that is in evaluation mode in its first call with gradients and in all others trains without the
dropout that it has, or with batch normalisation that never sees a batch.

One that nothing trains, as a teacher, is called without gradients in training mode while another
one is trained: what it returns is noisy. An average of a model changes with each step.

Modes are the module's, not the thread's. Where another thread evaluates a model, and each time that
the training goes on in evaluation mode is one of its evaluations, it was this thread that set it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.loop_names import RESTING_LAYER, UNSETTLED_MODEL
from lanescope.collector.format.names import EVALUATION_MODE, TRAINING_MODE
from lanescope.webapp.analysis.arrow_columns import phases_of_kind, to_frame
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.forward_ops import DROPOUT_DRAWS, dropout_ops
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_evaluations, need_models
from lanescope.webapp.analysis.parameter_history import (
    UNNAMED,
    gradient_rows,
    logged,
)
from lanescope.webapp.analysis.stack_frames import first_place, phase_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_STEPS, _TURN = 3, 8

_MIN_TIMES, _MOST_OTHERS = 2, 0.1
"""Times that a thread changes the mode, and what part of the changes may have other causes."""

_FORWARD, _BACKWARD = schema.PhaseKind.forward, schema.PhaseKind.backward
_EVALUATION = schema.PhaseKind.evaluation

_DIFFER = ("Dropout", "BatchNorm", "InstanceNorm")
"""Classes of torch.nn that do something else in evaluation mode begin or end so."""


def left_in_evaluation(run: Run) -> list[Finding]:
    """Returns findings of kind `evaluation_mode`, one per model and rank. Raises NotApplicable."""
    modes = need_models(run)
    found = []
    for (rank, model), own in modes.groupby(["rank", "name"], sort=False):
        own = own.sort_values("time_ns")
        last = own.iloc[-1]
        if last["value"] or not len(own) > 1:
            continue
        rows = _own_rows(run, modes, int(rank), str(model))
        since, steps = int(last["step"]), _trained(run, rows, int(rank), int(last["time_ns"]))
        layer = _layer(run, int(rank)) or _function(run, int(rank), int(last["time_ns"]))
        if layer and len(steps) >= _MIN_STEPS and not _by_threads(run, int(rank), str(model), own):
            found.append(_finding(run, int(rank), str(model), since, steps, layer))
    return found


def never_in_training(run: Run) -> list[Finding]:
    """Returns findings of kind `evaluation_mode`, one per model and rank. Raises NotApplicable."""
    modes = need_models(run)
    found = []
    for row in logged(run, None, prefix=RESTING_LAYER).itertuples():
        rank, (model, layer, kind) = int(row.rank), str(row.name).split("/")
        own = modes[(modes["rank"] == rank) & (modes["name"] == model)]
        rows = _own_rows(run, modes, rank, model)
        trained = rows[~rows["missing"]]
        if not layer:  # called on its own, beside a model
            names = trained["parameter"].astype("str").str.removeprefix(f"{model}.")
            trained = trained[names.isin(["weight", "bias"])]
        if own["value"].any() or trained["call"].nunique() < _MIN_STEPS:
            continue
        off = f"its dropout of {row.value:g} is off"
        if kind.startswith(("BatchNorm", "SyncBatchNorm")):
            off = "its batch normalisation never sees a batch: it has the mean 0 and variance 1"
        title = (
            f"{model} is in evaluation mode in all {units.count(trained['call'].nunique())} steps "
            f"that train it, and {off} ({layer}, {kind}). Models that from_pretrained() returns "
            "are in this mode. Call model.train() before the training."
        )
        evidence = {"model": model, "layer": layer, "cause": "never_in_training"}
        found.append(
            finding_at(
                run,
                rank,
                int(trained["step"].iloc[0]),
                kind="evaluation_mode",
                confidence="likely",
                title=title,
                evidence=evidence,
            )
        )
    return found


def teachers_in_training(run: Run) -> list[Finding]:
    """Returns findings of kind `evaluation_mode`, one per rank. Raises NotApplicable."""
    need_evaluations(run)
    rows = logged(run, None, prefix=UNSETTLED_MODEL)
    found: dict[int, Finding] = {}
    for (key, name), own in rows.groupby(["rank", "name"], sort=True, observed=True):
        rank, (model, layer, kind) = int(str(key)), str(name).rsplit("/", 2)
        if rank not in found and _is_long(own["step"]) and own["value"].nunique() == 1:
            found[rank] = _teacher(run, rank, own, model, f"{layer}, {kind}")
    return list(found.values())


def _is_long(steps: pd.Series) -> bool:
    """Whether sampled steps are longer than another model trains in turn."""
    return steps.nunique() >= _MIN_STEPS and int(steps.max() - steps.min()) >= _TURN


def _teacher(run: Run, rank: int, calls: pd.DataFrame, model: str, layer: str) -> Finding:
    first, second = map(int, calls["time_ns"].iloc[:2])
    where = phase_place(run, rank, _EVALUATION.name, (first, second))
    return finding_at(
        run,
        rank,
        calls.iloc[0],
        kind="evaluation_mode",
        confidence="likely",
        title=f"{model} is in training mode, and nothing trains it: its parameters stay the same "
        f"while it is called without gradients{at_place(where)} in "
        f"{units.count(calls['step'].nunique())} sampled steps. What it returns depends on dropout "
        f"or on the other samples of the batch ({layer}). Call eval() on it, also after a train() "
        "of the model that holds it.",
        where=where,
        evidence={"cause": "teacher_in_training", "model": model, "layer": layer},
    )


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
    every = phases_of_kind(run, _EVALUATION, rank, columns=["thread", "start_ns"])
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
            own & (kinds == _FORWARD.name),
            own & (kinds == _EVALUATION.name),
            phases["thread"].isin(others) & (kinds == _EVALUATION.name),
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
    back = phases[own & (kinds == _BACKWARD.name)]
    place = np.searchsorted(begins, back["start_ns"].to_numpy(), "right") - 1
    inside = (place >= 0) & (back["start_ns"].to_numpy() < ends[place])
    return back[inside & switched[place]] if inside.any() else None


def _own_rows(run: Run, modes: pd.DataFrame, rank: int, model: str) -> pd.DataFrame:
    """Rows of gradients of the parameters of a model of a rank."""
    others = {str(one) for one in modes.loc[modes["rank"] == rank, "name"]} - {model}
    rows = gradient_rows(run)
    # Optimizers may hold inputs as well.
    rows = rows[(rows["rank"] == rank) & ~rows["parameter"].str.fullmatch(UNNAMED.pattern)]
    names = rows["parameter"].astype("str")
    own = names.str.startswith(f"{model}.")
    layers = run.events("module", rank, columns=["path"])["path"].to_pylist()
    # Names of the first model, and of another wrapper of it, do not begin with the model's.
    if not own.any() and model in layers and not any(one.startswith(f"{model}.") for one in layers):
        own = ~names.str.startswith(tuple(f"{one}." for one in others))
    return rows[own]


def _trained(run: Run, stepped: pd.DataFrame, rank: int, since: int) -> pd.Index:
    """Steps after an instant in which a backward ran and some of the rows' parameters stepped that
    had stepped before."""
    passes = phases_of_kind(run, _BACKWARD, rank, columns=["start_ns", "step"])
    stepped = stepped[~stepped["missing"]]
    before = set(stepped.loc[stepped["time_ns"] <= since, "parameter"])
    again = (stepped["time_ns"] > since) & stepped["parameter"].isin(before)
    stepped = stepped.loc[again, "step"]
    steps = passes.loc[passes["start_ns"] > since, "step"].unique()
    return pd.Index(steps).intersection(pd.Index(stepped.unique())).sort_values()


def _layer(run: Run, rank: int) -> str:
    """The first layer of a rank that does something else in evaluation mode."""
    rows = run.events("module", rank, columns=["path", "class"]).to_pylist()
    return next((str(row["path"]) for row in rows if _differs(str(row["class"]))), "")


def _function(run: Run, rank: int, since: int) -> str:
    """The function of dropout that drew numbers in forward before an instant and none after it, as
    those that are called with training=self.training; empty without one."""
    ops = dropout_ops(run, rank, ["name", "phase", "stack", "start_ns"])
    ops = ops[ops["phase"].astype("str") == _FORWARD.name]
    draws, after = ops["name"].isin(DROPOUT_DRAWS), ops["start_ns"] > since
    stacks = ops.loc[after, "stack"].dropna().unique()
    if not len(stacks) or not (draws & ~after).any() or (draws & after).any():
        return ""
    return f"dropout{at_place(first_place(run, rank, stacks))}"


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
    stacks = ops.loc[ops["phase"].astype("str") == _EVALUATION.name, "stack"].dropna().unique()
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
