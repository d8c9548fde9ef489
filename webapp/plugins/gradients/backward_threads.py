"""Measures what each thread adds to a step's gradients, where several run backward.

Gradients are measured when an optimizer uses them: by then the contributions of all threads that
share them are one sum. So the recorder measures what each backward adds before it is added, from
when a second thread runs backward. Beside it: the gradients that each thread added (autograd's
AccumulateGrad nodes), how many elements they have, how long the thread was in backward, and the
norm that an optimizer of the thread's own used.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import frame_ends_ns, phases_of_kind, to_frame
from lanescope.webapp.analysis.parameter_history import gradients, logged
from lanescope.webapp.runs.run import Run

THREAD_MEASURES = {
    "added": "norm added",
    "accumulations": "gradients added",
    "elements": "elements added",
    "backward_s": "time in backward",
    "norm": "norm at its own steps",
}
"""Columns of `backward_threads` that can be drawn, and what to call them beside an axis."""

_COLUMNS = ("rank", "thread", "step", *THREAD_MEASURES)
_KEYS = list(_COLUMNS[:3])
_ACCUMULATES = r"(^|::)AccumulateGrad$"


@lru_cache(maxsize=2)
def backward_threads(run: Run) -> pd.DataFrame:
    """Returns one row per rank, thread and step, of ranks on which more than one thread ran
    backward.

    rank, thread, step, added (L2 norm of what the thread's backward added to gradients; of several
    in a step the root of the sum of their squares; NaN where it was not measured), accumulations
    and elements (that the thread's AccumulateGrad nodes added to gradients; NaN on a rank
    without such nodes), backward_s (time in backward, nested ones once; NaN: no backward of that
    step was called there), norm (L2, of all gradients that the thread's own optimizer steps used,
    where more than one of the threads that run backward makes steps; NaN where it made none,
    or one of them was NaN). A backward counts whole for the step in which it began.
    """
    phases = _backwards(run)
    count = phases.groupby("rank")["thread"].nunique()
    ranks = [int(rank) for rank in count[count > 1].index]
    phases = phases[phases["rank"].isin(ranks)]
    parts = [_times(phases), *[_accumulated(run, rank, phases) for rank in ranks]]
    table = pd.concat(parts).groupby(_KEYS, as_index=False).sum(min_count=1)
    table = table.merge(_added(run, phases), on=_KEYS, how="left")
    return table.merge(_norms(run, phases), on=_KEYS, how="outer").reindex(columns=list(_COLUMNS))


@lru_cache(maxsize=2)
def added_by_layer(run: Run) -> pd.DataFrame:
    """Returns one row per rank, thread, step and layer of what each thread's backward added to
    gradients.

    rank, thread, step, layer (module that holds the parameters), added (L2 norm; of several
    backwards in a step the root of the sum of their squares; infinite: one was NaN or infinite).
    Steps without a row were not measured, or the thread added nothing to that layer.
    """
    rows = logged(run, None, prefix=schema.ADDED_NORM_OF).rename(columns={"name": "layer"})
    rows = _of_backward(rows, "time_ns", _backwards(run))
    rows = rows.assign(square=(rows["value"] ** 2).fillna(np.inf))
    squares = rows.groupby([*_KEYS, "layer"], sort=False)["square"].sum()
    return np.sqrt(squares).rename("added").reset_index()


def _backwards(run: Run) -> pd.DataFrame:
    """All backward phases, by start: _KEYS, start_ns, end_ns."""
    columns = [*_KEYS, "start_ns", "duration_ns"]
    phases = phases_of_kind(run, schema.PhaseKind.backward, columns=columns)
    ends = frame_ends_ns(phases, run.duration_ns)
    return phases.drop(columns="duration_ns").assign(end_ns=ends)


def _of_backward(rows: pd.DataFrame, at: str, phases: pd.DataFrame) -> pd.DataFrame:
    """The rows with the step of the outermost backward of their thread that they are in.

    Another thread than the one that trains may still be in a backward when the next step begins.
    """
    if rows.empty or phases.empty:
        return rows
    outer = phases[~(phases["start_ns"] < _ended_before(phases, _KEYS[:2]))]
    outer = outer.rename(columns={"step": "begun", "start_ns": "begun_ns"})
    found = pd.merge_asof(
        rows.sort_values(at, kind="stable"), outer, left_on=at, right_on="begun_ns", by=_KEYS[:2]
    )
    inside = found[at] <= found["end_ns"]
    return found.assign(step=found["begun"].where(inside, found["step"]).astype("int64"))


def _times(phases: pd.DataFrame) -> pd.DataFrame:
    begun = phases["start_ns"].clip(lower=_ended_before(phases, _KEYS).fillna(-1).astype("int64"))
    times = (phases["end_ns"] - begun).clip(lower=0)
    total = times.groupby([phases[key] for key in _KEYS]).sum()
    table = (total * 1e-9).rename("backward_s").reset_index()
    return table.astype({"rank": "int64", "thread": "str", "step": "int64"})


def _ended_before(phases: pd.DataFrame, keys: list[str]) -> pd.Series:
    """By row of phases in order of their start: the last end of those with equal `keys` before it;
    NaN for the first."""
    by = [phases[key] for key in keys]
    return phases["end_ns"].groupby(by).cummax().groupby(by).shift()


def _accumulated(run: Run, rank: int, phases: pd.DataFrame) -> pd.DataFrame:
    ops = run.events("op", rank, columns=[*_KEYS, "name", "shapes", "start_ns"])
    names = pc.unique(ops["name"].cast(pa.string()))
    meant = names.filter(pc.match_substring_regex(names, _ACCUMULATES))
    rows = to_frame(ops.filter(pc.is_in(ops["name"].cast(pa.string()), meant)))
    rows = _of_backward(rows, "start_ns", phases)
    sizes = {shapes: _elements(str(shapes)) for shapes in rows["shapes"].unique()}
    return rows[_KEYS].assign(accumulations=1.0, elements=rows["shapes"].map(sizes).astype(float))


def _added(run: Run, phases: pd.DataFrame) -> pd.DataFrame:
    rows = logged(run, None, schema.ADDED_NORM)
    rows = _of_backward(rows[rows["rank"].isin(phases["rank"])], "time_ns", phases)
    squares = (rows["value"] ** 2).fillna(np.inf).groupby([rows[key] for key in _KEYS]).sum()
    return np.sqrt(squares).replace(np.inf, np.nan).rename("added").reset_index()


def _elements(shapes: str) -> float:
    """Of the first tensor of an operator's shapes; NaN where it has none."""
    first = re.search(r"\[([\d, ]*)\]", shapes)
    return np.nan if first is None else float(prod(map(int, re.findall(r"\d+", first[1]))))


def _norms(run: Run, phases: pd.DataFrame) -> pd.DataFrame:
    """Returns norms by thread; empty where one thread steps for all, with the norm of the sum."""
    lanes = phases[["rank", "thread"]].drop_duplicates()
    rows = gradients(run).merge(lanes, on=["rank", "thread"])
    several = rows.groupby("rank")["thread"].transform("nunique") > 1
    rows = rows[several & ~rows["missing"]]
    rows = rows.assign(square=rows["norm"] ** 2, nan=rows["norm"].isna())
    steps = rows.groupby(_KEYS)
    norms = np.sqrt(steps["square"].sum()).where(~steps["nan"].any())
    return norms.rename("norm").reset_index()
