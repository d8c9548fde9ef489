"""Finds dropout that is on in evaluation: F.dropout(x, p) without training=self.training.

eval() switches off modules of dropout; a function does not know the mode. What a module of torch.nn
drops out there was switched on by the program (Monte Carlo dropout).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.names import EVALUATION_MODE
from lanescope.webapp.analysis.arrow_columns import having, to_frame
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.data.random_numbers import DROPOUT_DRAWS
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_CALLS, _LOOKED_AT = 3, 200
DROPOUT = ("aten::dropout", "aten::native_dropout", "aten::feature_dropout")
_EVALUATION = schema.PhaseKind.evaluation.name


def evaluated_dropout(run: Run) -> list[Finding]:
    """Returns findings of kind `evaluation_mode`, one per rank. Raises NotApplicable."""
    modes = logged(run, None, prefix=EVALUATION_MODE)
    if modes.empty:
        raise NotApplicable("record an evaluation without gradients, with --level access")
    found = []
    for key, own in modes.groupby("rank", sort=True):
        rank = int(str(key))
        if own["value"].any():  # a model is evaluated in training mode, as some are on purpose
            continue
        ops = _dropped_out(run, rank)
        if len(ops) >= _MIN_CALLS:
            found.append(_finding(run, rank, ops))
    return found


def dropout_ops(run: Run, rank: int, columns: list[str]) -> pd.DataFrame:
    """Returns the operators of dropout, and those that draw its numbers; `columns` with `name`."""
    table = run.events("op", rank, columns=columns)
    return to_frame(table.filter(having(table["name"], {*DROPOUT, *DROPOUT_DRAWS}.__contains__)))


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


def _finding(run: Run, rank: int, ops: pd.DataFrame) -> Finding:
    first = ops.iloc[0]
    stacks = ops["stack"].dropna().unique()
    where = next(filter(None, (own_place(run, rank, int(one)) for one in stacks)), None)
    return finding_at(
        run,
        rank,
        first,
        kind="evaluation_mode",
        confidence="likely",
        title=f"Dropout{f' at {where}' if where else ''} is on while the model is in evaluation "
        f"mode, in {units.count(len(ops))} calls: a function of dropout does not follow eval(), "
        "so results of the evaluation are random. Pass training=self.training (for attention "
        "dropout_p=p if self.training else 0.0), or use torch.nn.Dropout.",
        where=where,
        evidence={"cause": "evaluated_dropout", "calls": len(ops)},
    )
