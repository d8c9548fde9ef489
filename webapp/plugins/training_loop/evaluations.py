"""Finds evaluation in training mode, where eval() is missing, and dropout that is on in evaluation.

In training mode dropout and batch normalisation are on. Monte Carlo dropout, momentum encoders and
the update of running statistics do the same on purpose. An evaluation calls the model for one batch
after the other, nothing is trained between, and the result of each call is compared with its
targets. One call is an evaluation of a whole set, where it gets another number of rows than any
batch of the training, at two steps or more.

eval() switches off modules of dropout; a function does not know the mode: F.dropout(x, p) without
training=self.training. What a module of torch.nn drops out there was switched on by the program
(Monte Carlo dropout).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import ops_named, to_frame
from lanescope.webapp.analysis.fault_series import found_in_rows
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.forward_ops import DROPOUT, DROPOUT_DRAWS, dropout_ops
from lanescope.webapp.analysis.links import at_place, step_link
from lanescope.webapp.analysis.nothing_to_check import need_evaluations
from lanescope.webapp.analysis.stack_frames import first_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_CALLS, _IN_A_ROW = 3, 2
_MIN_SETS = 2  # evaluations of a whole set in one call
_LENGTH = r"^\[+(\d+)"
_COUNTS = "aten::add_"
"""By which batch normalisation counts its batches in training mode."""

COMPARES = (
    "aten::eq",
    "aten::nll_loss",
    "aten::mse_loss",
    "aten::l1_loss",
    "aten::smooth_l1_loss",
)
"""Operators by which results are compared with targets."""

_EVALUATION, _DATA = schema.PhaseKind.evaluation.name, schema.PhaseKind.data.name


@found_in_rows(need_evaluations)
def evaluated_in_training(run: Run, rank: int, rows: pd.DataFrame) -> Finding | None:
    """Returns findings of kind `evaluation_mode`, one per rank. Raises NotApplicable."""
    for thread in run.threads_of(rank) if rows["value"].all() else ():
        calls = _evaluations(run, rank, thread.thread)
        if len(calls):
            return _finding(run, rank, calls)
    return None


def _evaluations(run: Run, rank: int, thread: str) -> pd.DataFrame:
    """Evaluations, `_IN_A_ROW` or more one after the other and `_MIN_CALLS` or more in all, where
    each counts a batch or draws numbers, and is compared: start_ns, step, stack, normalises."""
    columns = ["start_ns", "duration_ns", "kind", "step"]
    phases = to_frame(run.events("phase", rank, thread, columns))
    phases = phases[phases["kind"].astype("str") != _DATA].sort_values("start_ns")
    calls = phases["kind"].astype("str") == _EVALUATION
    if calls.sum() < _MIN_SETS:
        return phases[:0]
    ops = _operators(run, rank, thread)
    phases, ops = _without_losses(phases.assign(evaluation=calls), ops)
    ops = _numbered(phases, ops)
    inside = ops["phase"] == _EVALUATION
    compared = ops[~inside & ops["name"].isin(COMPARES) & ops["sequence"].isna()]
    phases = phases.reset_index(drop=True)
    normalises = phases.index.isin(ops.loc[inside & (ops["name"] == _COUNTS), "number"])
    drops = phases.index.isin(ops.loc[inside & ops["name"].isin(DROPOUT_DRAWS), "number"])
    stacks = compared.dropna(subset="stack").drop_duplicates("number").set_index("number")["stack"]
    phases = phases.assign(normalises=normalises, stack=stacks)
    wrong = phases["evaluation"] & (normalises | drops) & phases.index.isin(compared["number"])
    rows = phases[wrong]
    in_a_row = rows.groupby((~wrong).cumsum()[wrong])["start_ns"].transform("size")
    trained = set(_rows(ops[ops["name"].isin(COMPARES) & ops["sequence"].notna()]))
    sets = set(compared.loc[~_rows(compared).isin({*trained, 0}), "number"]) if trained else set()
    repeated = phases["evaluation"].shift(fill_value=False)  # as results that are averaged
    whole = rows.index.isin(sets) & ~repeated[wrong]
    found = rows[(in_a_row >= _IN_A_ROW) | whole]
    enough = len(found) >= _MIN_CALLS or found.loc[whole, "step"].nunique() >= _MIN_SETS
    return found if enough else phases[:0]


def _rows(ops: pd.DataFrame) -> pd.Series:
    """Lengths of the first inputs of operators; 0: not known."""
    lengths = ops["shapes"].astype("str").str.extract(_LENGTH)[0]
    return lengths.fillna("0").astype("int64")


def _numbered(phases: pd.DataFrame, ops: pd.DataFrame) -> pd.DataFrame:
    """The operators with the number of the phase in or after which each begins."""
    number = phases["start_ns"].searchsorted(ops["start_ns"], side="right") - 1
    return ops.assign(number=number)[number >= 0]


def _without_losses(phases: pd.DataFrame, ops: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Takes calls of modules that are losses for what they are: comparisons after a call."""
    ops = _numbered(phases, ops)
    inside, compares = ops["phase"] == _EVALUATION, ops["name"].isin(COMPARES)
    losses = set(ops.loc[inside & compares, "number"]) - set(ops.loc[inside & ~compares, "number"])
    of_losses = ops["number"].isin(losses)
    kept = ~pd.RangeIndex(len(phases)).isin(losses)
    return phases[kept], ops.assign(phase=ops["phase"].mask(of_losses, ""))


def _operators(run: Run, rank: int, thread: str) -> pd.DataFrame:
    """Operators of dropout and comparison, and those in which batch normalisation counts."""
    modules = run.events("module", rank, columns=["path", "class"]).to_pylist()
    normal = {str(one["path"]) for one in modules if ".batchnorm." in str(one["class"])}
    columns = ["start_ns", "name", "phase", "module", "sequence", "stack", "shapes"]
    wanted = {_COUNTS, *DROPOUT_DRAWS, *COMPARES}
    ops = ops_named(run, rank, thread, columns, wanted.__contains__)
    ops = ops.assign(**{one: ops[one].astype("str") for one in ("phase", "module")})
    counts = (ops["name"] != _COUNTS) | ops["module"].isin(normal)
    return ops[counts].reset_index(drop=True)


def _finding(run: Run, rank: int, calls: pd.DataFrame) -> Finding:
    first = calls.iloc[0]
    where = first_place(run, rank, calls["stack"].dropna())
    step = int(first["step"])
    on = "dropout leaves numbers out"
    if first["normalises"]:
        on = "batch normalisation takes these batches into its running statistics"
    return Finding(
        kind="evaluation_mode",
        severity="warning",
        confidence="likely",
        title=f"The model is evaluated in training mode{at_place(where)}, in "
        f"{units.count(len(calls))} calls without gradients: {on}. Call "
        "model.eval() before the evaluation, and model.train() after it.",
        rank=rank,
        step=step,
        time_ns=int(first["start_ns"]),
        where=where,
        evidence={"cause": "evaluated_in_training", "calls": len(calls)},
        link=step_link(run, rank, step),
    )


_MIN_DROPPED, _LOOKED_AT = 3, 200


@found_in_rows(need_evaluations)
def evaluated_dropout(run: Run, rank: int, rows: pd.DataFrame) -> Finding | None:
    """Returns findings of kind `evaluation_mode`, one per rank. Raises NotApplicable."""
    if rows["value"].any():  # a model is evaluated in training mode, as some are on purpose
        return None
    ops = _dropped_out(run, rank)
    if len(ops) < _MIN_DROPPED:
        return None
    first = ops.iloc[0]
    where = first_place(run, rank, ops["stack"].dropna().unique())
    return finding_at(
        run,
        rank,
        first,
        kind="evaluation_mode",
        confidence="likely",
        title=f"Dropout{at_place(where)} is on while the model is in evaluation "
        f"mode, in {units.count(len(ops))} calls: a function of dropout does not follow eval(), "
        "so results of the evaluation are random. Pass training=self.training (for attention "
        "dropout_p=p if self.training else 0.0), or use torch.nn.Dropout.",
        where=where,
        evidence={"cause": "evaluated_dropout", "calls": len(ops)},
    )


def _dropped_out(run: Run, rank: int) -> pd.DataFrame:
    """Dropout outside of modules of torch.nn in evaluation, where numbers were drawn."""
    columns = ["name", "step", "stack", "phase", "module", "start_ns", "duration_ns", "thread"]
    ops = dropout_ops(run, rank, columns)
    ops = ops[ops["phase"].astype("str") == _EVALUATION]
    names = ops["name"].astype("str")
    draws = ops.loc[names.isin(DROPOUT_DRAWS), ["thread", "start_ns"]]
    calls = ops[names.isin(DROPOUT)]
    modules = run.events("module", rank, columns=["path", "class"]).to_pylist()
    own = {str(one["path"]) for one in modules if ".dropout." in str(one["class"])}
    calls = calls[~calls["module"].astype("str").isin(own)].head(_LOOKED_AT)
    kept = [
        bool(
            (
                (draws["thread"] == one.thread)
                & (draws["start_ns"] >= one.start_ns)
                & (draws["start_ns"] <= one.start_ns + one.duration_ns)
            ).any()
        )
        for one in calls.itertuples()
    ]
    return calls[np.array(kept, bool)]
