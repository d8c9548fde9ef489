"""Finds inputs of the wrong scale: in evaluation another one than in training, or scaled twice.

Images are divided by 255 or normalised in the transform of one dataset and not in that of the
other. Each call in evaluation mode that is compared with targets, in two steps or more, gets
numbers whose root mean square is `_TIMES` that of all sampled calls in training, or a part of it.
Or the transform divides bytes by 255, and the training loop does so again, or nothing does; nothing
scales features of thousands, or data vary by less than a hundredth of their mean; or whole numbers
of 8 bits go past the last one and begin again at the first.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from lanescope.collector.format.loop_names import (
    DIVIDED_TWICE,
    EVALUATED_SCALE,
    INPUT_SCALE,
    LARGE_FEATURES,
    NARROW_DATA,
    UNSCALED_BYTES,
    WRAPPED_BYTES,
)
from lanescope.webapp.analysis.arrow_columns import ops_named
from lanescope.webapp.analysis.fault_series import found_in_rows
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_at_access
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import first_place, own_place
from lanescope.webapp.plugins.losses.loss_graph import (
    LossFact,
    each_rank_of_graphs,
    loss_facts,
)
from lanescope.webapp.plugins.training_loop.evaluations import COMPARES
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_TIMES = 30.0
_SCALES = frozenset(f"aten::{name}" for name in ("div", "div_", "mul", "mul_"))
_MIN_GRAPHS = 3
_LARGE = 1e3  # root mean square of a column of features
_NARROW = 0.01  # standard deviation over mean

_BATCH = r"\[\d+, ?\d+"
"""Shapes of an operator whose first input has two dimensions or more."""

_MIN_TRAINED, _MIN_EVALUATED, _MIN_STEPS = 4, 4, 2  # calls, and steps of evaluations


def input_scales(run: Run) -> list[Finding]:
    """Returns findings of kind `evaluation_mode`, at most one per rank. Raises NotApplicable."""
    evaluated = logged(run, None, prefix=EVALUATED_SCALE)
    need_at_access(run, evaluated, "no model is evaluated with inputs of floating point")
    trained = logged(run, None, prefix=INPUT_SCALE)
    found: dict[int, Finding] = {}
    for (key, name), own in evaluated.groupby(["rank", "name"], sort=True, observed=True):
        rank = int(str(key))
        ours = trained[(trained["rank"] == rank) & (trained["name"] == name)]["value"]
        if rank in found or len(ours) < _MIN_TRAINED or ours.min() <= 0:
            continue
        larger = own["value"].min() >= _TIMES * ours.max()
        smaller = own["value"].min() > 0 and own["value"].max() <= ours.min() / _TIMES
        if larger or smaller:
            stacks = _compared(run, rank, own)
            if stacks is not None:
                found[rank] = _finding(run, rank, own, ours, stacks)
    return list(found.values())


def _divided_twice(run: Run) -> pd.DataFrame:
    need_at_access(
        run, logged(run, None, prefix=INPUT_SCALE), "no model has inputs of floating point"
    )
    return logged(run, None, prefix=DIVIDED_TWICE)


@found_in_rows(_divided_twice)
def divided_twice(run: Run, rank: int, rows: pd.DataFrame) -> Finding | None:
    """Returns findings of kind `wrong_scale`, at most one per rank. Raises NotApplicable."""
    if len(rows) < _MIN_TRAINED:
        return None
    first = rows.iloc[0]
    where = _divided(run, rank, first)
    model = str(first["name"]).rpartition("/")[0]
    return finding_at(
        run,
        rank,
        first,
        kind="wrong_scale",
        title=f"The inputs of {model}{at_place(where)} are divided by 255 twice: they are whole "
        "multiples of 1/65025, 0.0039 at most, as bytes are that ToTensor() has scaled to 0 to 1 "
        "before. The model hardly sees them, and learns slowly. Leave the second division out.",
        where=where,
        evidence={"cause": "divided_twice", "calls": len(rows)},
    )


def unfit_bytes(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_scale`, at most three per rank. Raises NotApplicable."""
    return (
        unscaled_bytes(run)
        + large_features(run)
        + (wrapped_bytes(run) if run.counts["access"] else [])
    )


@each_rank_of_graphs
def unscaled_bytes(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_scale`, at most one per rank. Raises NotApplicable."""
    for fact in _first_layers(run, rank, UNSCALED_BYTES, 1):
        node, graphs = fact.node, len(fact.values)
        return fact.finding(
            run,
            rank,
            kind="wrong_scale",
            title=f"The first layer{node.at} gets bytes that nothing scales: its inputs are whole "
            f"numbers of 0 to {fact.values.max():.0f} in all {units.count(graphs)} graphs that "
            "were looked at. Outputs and gradients are about a hundred times larger than the "
            "initialisation and usual learning rates are made for, so training diverges, or units "
            "die. Divide by 255 and normalise, as ToTensor() and Normalize() do.",
            evidence={"cause": "unscaled_bytes", "largest": float(fact.values.max())},
        )
    return None


@each_rank_of_graphs
def large_features(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_scale`, at most one per rank. Raises NotApplicable."""
    for fact in _first_layers(run, rank, LARGE_FEATURES, _LARGE):
        graphs, size = units.count(len(fact.values)), units.number(fact.values.median())
        return fact.finding(
            run,
            rank,
            kind="wrong_scale",
            title=f"The first layer{fact.node.at} gets features that nothing scales: the root mean "
            f"square of a column is {size} in {graphs} graphs that were looked at. That column "
            "drowns the others, and outputs and gradients are as much larger than the "
            "initialisation and usual learning rates are made for. Standardise each column: "
            "(x - mean) / std of the training data.",
            evidence={"cause": "large_features", "size": float(fact.values.median())},
        )
    for fact in _first_layers(run, rank, NARROW_DATA, 0):
        if fact.values.max() < _NARROW:
            spread = float(fact.values.median())
            return fact.finding(
                run,
                rank,
                kind="wrong_scale",
                title=f"The data of the first layer{fact.node.at} hardly vary: their standard "
                f"deviation is {units.share(spread)} of their mean in "
                f"{units.count(len(fact.values))} graphs that were looked at, so all samples look "
                "alike to it. Check what they are divided by (255 twice?) before the mean is "
                "subtracted, and normalise by their own mean and standard deviation.",
                evidence={"cause": "narrow_data", "spread": spread},
            )
    return None


def _first_layers(run: Run, rank: int, prefix: str, least: float) -> Iterator[LossFact]:
    """Facts of layers whose data are so large in all graphs, and that no normalisation follows."""
    for fact in loss_facts(run, rank, prefix):
        reads = (one for one in fact.graph.nodes.values() if fact.node.number in one.next)
        large = len(fact.values) >= _MIN_GRAPHS and fact.values.min() >= least
        if large and not any("Norm" in one.name for one in reads):
            yield fact


_MIN_WRAPPED = 3  # calls of a line
_CAST = "aten::_to_copy"
_WRAPS = {_CAST, *(f"aten::{name}{end}" for name in ("add", "mul", "sub") for end in ("", "_"))}
_INSTEAD = "Compute in int16 or float, clamp to the range, and cast then."


@found_in_rows(lambda run: logged(run, None, WRAPPED_BYTES))
def wrapped_bytes(run: Run, rank: int, rows: pd.DataFrame) -> Finding | None:
    """Returns findings of kind `wrong_scale`, at most one per rank. Raises NotApplicable."""
    columns = ["start_ns", "name", "stack", "dtypes", "step"]
    for thread, own in rows.groupby("thread", sort=False, observed=True):
        ops = ops_named(run, rank, str(thread), columns, _WRAPS.__contains__)
        calls = ops.merge(
            own[["thread", "time_ns", "value"]], left_on="start_ns", right_on="time_ns"
        )
        for stack, same in calls.groupby("stack", sort=False):
            where = own_place(run, rank, int(str(stack)))
            if len(same) < _MIN_WRAPPED or where is None:
                continue
            first = same.iloc[0]
            called = "a cast" if first["name"] == _CAST else first["name"].removeprefix("aten::")
            return finding_at(
                run,
                rank,
                first,
                kind="wrong_scale",
                confidence="likely",
                title=f"{units.share(float(same['value'].mean()))} of the results of {called}"
                f"{at_place(where)} do not fit into 8 bits and begin again at the other end, in "
                f"{units.count(len(same))} calls: 200 + 100 is 44 there. {_INSTEAD}",
                where=where,
                evidence={"cause": "wrapped_bytes", "calls": len(same)},
            )
    return None


def _divided(run: Run, rank: int, call: pd.Series) -> str | None:
    """The last line before a call, in its step, that scales a tensor outside of modules."""
    columns = ["start_ns", "name", "step", "stack", "module", "shapes"]
    ops = ops_named(run, rank, str(call["thread"]), columns, _SCALES.__contains__)
    batch = ops["shapes"].astype("str").str.match(_BATCH)
    before = ops[(ops["start_ns"] < call["time_ns"]) & (ops["step"] == call["step"]) & batch]
    before = before[before["module"].astype("str") == ""].sort_values("start_ns")
    return None if before.empty else own_place(run, rank, int(before["stack"].iloc[-1]))


def _compared(run: Run, rank: int, calls: pd.DataFrame) -> list[int] | None:
    """Stacks of what the evaluations are compared at; None if some are not, or if there are few."""
    if len(calls) < _MIN_EVALUATED or calls["step"].nunique() < _MIN_STEPS:
        return None
    threads = calls["thread"].astype("str").unique()
    if len(threads) > 1:
        return None
    columns = ["start_ns", "name", "sequence", "stack"]
    ops = ops_named(run, rank, threads[0], columns, COMPARES.__contains__)
    ops = ops[ops["sequence"].isna()].sort_values("start_ns")
    begins = calls["time_ns"].sort_values()
    after = pd.Series(ops["start_ns"].searchsorted(begins))
    alone = after.duplicated(keep="last")  # another call begins before the next comparison
    if alone.any() or (after >= len(ops)).any():
        return None
    return [int(one) for one in ops["stack"].iloc[after].dropna()]


def _finding(
    run: Run, rank: int, own: pd.DataFrame, trained: pd.Series, stacks: list[int]
) -> Finding:
    where = first_place(run, rank, stacks)
    usual, other = float(trained.median()), float(own["value"].median())
    return finding_at(
        run,
        rank,
        own.iloc[0],
        kind="evaluation_mode",
        confidence="likely",
        title=f"The inputs of evaluation are on another scale than those of training"
        f"{at_place(where)}: their root mean square is {units.number(other)} in "
        f"{units.count(len(own))} calls, and {units.number(usual)} in training. Normalise both "
        "alike: pass the same transform to both datasets.",
        where=where,
        evidence={"cause": "input_scale", "evaluated": other, "trained": usual},
    )
