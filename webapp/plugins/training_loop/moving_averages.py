"""Finds moving averages of a model that average nothing.

- of itself: `shadow = {n: p.data for n, p in model.named_parameters()}` holds the parameters, not
  copies: `shadow.mul_(0.99).add_(p, alpha=0.01)` then averages each with itself, which leaves it as
  it is. Outside of optimizers and backward, an operator reads and writes nothing but one parameter,
  though it gets two tensors: lerp_, or add_ right after mul_.
- the wrong way round: `shadow.mul_(0.999).add_(p, alpha=0.001)` keeps the past. With the two
  numbers exchanged the shadow is the model of now, and a target network follows at once. An
  operator reads a parameter that an optimizer changes, with the same weight of 0.81 to 1 at all
  steps: `lerp_()`, or one of two operators whose weights add up to 1, and the other one reads a
  tensor that no optimizer changes.
- rounded away: `shadow.lerp_(p, 0.001)` of a shadow in bfloat16 adds less than half of the distance
  to the next number, so the shadow stays as it is.
- into the model: `p.copy_(0.01 * p + 0.99 * t)` writes what `t`, a parameter of a target network,
  was to get. The target never changes, and each step of the optimizer is taken back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format.loop_names import BLEND_FACTOR
from lanescope.webapp.analysis.arrow_columns import having, to_frame
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import and_more, at_place
from lanescope.webapp.analysis.nothing_to_check import need_accesses, need_steps
from lanescope.webapp.analysis.op_inputs import tensor_shapes
from lanescope.webapp.analysis.parameter_history import gradient_rows, logged
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray

_MIN_OF_ITSELF, _MIN_STEPS = 5, 4  # steps
_MIN_PARAMETERS = 2
_STEPS = 4
"""Of optimizers of one class that are looked at: there may be several of them."""

_SCALES = "aten::mul_"
_ADDS, _BLENDS = "aten::add_", "aten::lerp_"
_LEAST = 0.81
"""Weight of the newest parameters. Optimizers that look ahead take 0.8; a decay that its warm-up of
(1 + n) / (10 + n) overwrites leaves 9/11."""
_ROUNDING = 1e-6
_LOST = {"bfloat16": 2.0**-9, "float16": 2.0**-12}
"""Share of a number that rounding loses everywhere, by dtype."""
_NEVER = np.iinfo(np.int64).max
_LERP = re.compile(r"aten::(_foreach_)?lerp_?")
_STEP = re.compile(r".*\.step")
"""Names of phases of optimizers."""
_OTHERS = re.compile(rf"backward|{_STEP.pattern}")

_PLACE = ["thread", "start_ns", "depth"]


def self_average(run: Run) -> list[Finding]:
    """Returns findings of kind `shared_parameter`, one per line and rank. Raises NotApplicable."""
    return by_line(run, _onto_itself, _of_itself)


def by_line(
    run: Run,
    averages: Callable[[Run, int], pd.DataFrame],
    says: Callable[[str, pd.DataFrame], dict[str, Any] | None],
) -> list[Finding]:
    """Returns what is wrong with the averages of each rank and line. `says` gets " at file.py:12"
    or nothing; None: there is nothing wrong."""
    need_steps(run)
    need_accesses(run)
    found = []
    for rank in run.ranks:
        for stack, own in averages(run, rank).groupby("stack", sort=False):
            where = own_place(run, rank, int(str(stack)))
            facts = says(at_place(where), own)
            if facts is not None:
                found.append(finding_at(run, rank, own.iloc[0], where=where, **facts))
    return found


def _onto_itself(run: Run, rank: int) -> pd.DataFrame:
    """Averages of a parameter with itself: step, stack, start_ns, thread, name_of."""
    columns = [*_PLACE, "name", "step", "phase", "stack", "shapes"]
    table = run.events("op", rank, columns=columns)
    wanted = having(table["name"], {_SCALES, _ADDS, _BLENDS}.__contains__)
    ops = to_frame(table.filter(pa.array(wanted & ~having(table["phase"], _OTHERS.fullmatch))))
    ops = ops[ops["stack"] >= 0]
    ops["two"] = ops["shapes"].astype("str").map(_same_twice).astype(bool)
    if not ops.loc[ops["name"] != _SCALES, "two"].any():
        return ops.assign(name_of="")[:0]
    names = run.events("storage", rank, columns=["pid", "storage", "name"]).to_pandas()
    names = names.rename(columns={"name": "name_of"}).drop_duplicates("storage")
    if ops.empty or names.empty:
        return ops.assign(name_of="")[:0]
    ops["name"] = ops["name"].astype("str")
    columns = [*_PLACE, "storage", "offset", "bytes", "write"]
    rows = _accesses_of(run, rank, ops, columns)
    rows["thread"] = rows["thread"].astype("str")
    ops["thread"] = ops["thread"].astype("str")
    groups = rows.merge(ops[_PLACE], on=_PLACE).groupby(_PLACE)
    ranges = groups[["storage", "offset", "bytes"]].nunique().max(axis=1)
    touched = groups.agg(storage=("storage", "first"), write=("write", "any"))
    touched = touched.assign(ranges=ranges)
    ops = ops.merge(touched.reset_index(), on=_PLACE)
    ops = ops[(ops["ranges"] == 1) & ops["write"]].merge(names, on="storage")
    ops = ops.sort_values(["thread", "start_ns"])
    before = ops.shift()
    scaled = (before["name"] == _SCALES) & (before["storage"] == ops["storage"])
    averages = (ops["name"] == _BLENDS) | ((ops["name"] == _ADDS) & scaled)
    return ops[averages & ops["two"]]


def _accesses_of(run: Run, rank: int, ops: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """The accesses that began as operators did."""
    accesses = run.events("access", rank, columns=columns)
    return to_frame(accesses.filter(pc.is_in(accesses["start_ns"], pa.array(ops["start_ns"]))))


def _same_twice(shapes: str) -> bool:
    """Whether an operator got two tensors of one shape: "[32, 16] [32, 16]"."""
    first, second = (*tensor_shapes(shapes), None, None)[:2]
    return first is not None and first == second


def _of_itself(at: str, own: pd.DataFrame) -> dict[str, Any] | None:
    names = list(own["name_of"].drop_duplicates())
    steps = own["step"].nunique()
    if steps < _MIN_OF_ITSELF or len(names) < _MIN_PARAMETERS:
        return None
    return {
        "kind": "shared_parameter",
        "title": f"The average{at} is of a parameter with itself, {names[0]}"
        f"{and_more(len(names), 'parameter')}, in {units.count(steps)} steps: what should hold the "
        "average is the memory of the model. Begin with copies: p.detach().clone(), "
        "copy.deepcopy(model) or torch.optim.swa_utils.AveragedModel.",
        "evidence": {"cause": "self_average", "parameters": names[:20]},
    }


def rounded_average(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_average`, one per line and rank. Raises NotApplicable."""
    return by_line(run, _in_place, _rounded_away)


def _in_place(run: Run, rank: int) -> pd.DataFrame:
    """Operators that add to a tensor of 16 bits in place, with a weight that rounding loses, and
    take as much from it."""
    ops = _weighing(run, rank, 0.0)
    share = ops["value"].where(ops["value"] < 1 - ops["value"], 1 - ops["value"])
    bound = ops["dtypes"].map(lambda one: _LOST.get(one.partition(" ")[0], 0.0))
    name = ops["name"].astype("str")
    scales, begins = name.str.endswith("mul_").shift(), ops["value"].shift() + ops["value"]
    adds = name.str.endswith("add_") & scales & ((begins - 1).abs() < _ROUNDING)
    blends = name.str.endswith("lerp_")
    return ops.assign(share=share)[(blends | adds) & (share <= bound.astype(float))]


def _rounded_away(at: str, own: pd.DataFrame) -> dict[str, Any] | None:
    if own["step"].nunique() < _MIN_STEPS or len(own) < _MIN_PARAMETERS * own["step"].nunique():
        return None
    share, dtype = float(own["share"].iloc[0]), str(own["dtypes"].iloc[0]).partition(" ")[0]
    return {
        "kind": "wrong_average",
        "confidence": "likely",
        "title": f"The moving average{at} is in {dtype} and takes {share:.3g} of the newest "
        "parameters in each step: rounding loses so small a part, and the average stays what it "
        "was. Keep it in float32, and cast a copy of it for use.",
        "evidence": {"cause": "rounded_average", "share": share},
    }


def swapped_average(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_average`, one per line and rank. Raises NotApplicable."""
    return by_line(run, weighted_averages, _swapped)


def weighted_averages(
    run: Run, rank: int, least: float = _LEAST, most: float = 1.0
) -> pd.DataFrame:
    """Returns operators that take a share of `least` to `most` of a trained parameter, and the rest
    of another tensor: step, start_ns, thread, depth, stack, value, storage (of the parameter)."""
    ops = _weighing(run, rank, least)
    fits = ops["value"].between(least, most)
    trained = trained_storages(run, rank) if fits.any() else set()
    if not trained:
        return ops.assign(storage=0)[:0]
    columns = [*_PLACE, "storage", "birth", "write"]
    rows = _accesses_of(run, rank, ops, columns)
    rows = rows[~rows["birth"]].merge(ops[[*_PLACE, "name"]])
    starts = _is_lerp(rows) & (rows["write"] | ~rows.duplicated(_PLACE))
    theirs = rows[rows["storage"].isin(trained) & ~starts].drop_duplicates(_PLACE)
    ops = ops.merge(theirs[[*_PLACE, "storage"]], how="left", on=_PLACE)
    ops = ops.sort_values(["thread", "start_ns"], ignore_index=True)
    ops = ops[_takes(ops, least, most)]
    return ops[~_written_back(run, rank, ops, trained)]


def _written_back(run: Run, rank: int, ops: pd.DataFrame, trained: set[int]) -> BoolArray:
    """Which operators the trained parameter that they read is written after, before the next one or
    a step: it is held near to what the other tensor has."""
    table = run.events("access", rank, columns=["start_ns", "storage", "write"])
    table = table.filter(table["write"]).select(["start_ns", "storage"])
    writes = to_frame(table.filter(pc.is_in(table["storage"], pa.array([*trained]))))
    begun = _phases_of_steps(run, rank)["start_ns"].to_numpy()
    ends = np.sort(np.concatenate([ops["start_ns"].to_numpy(), begun, [_NEVER]]))
    since = ops["start_ns"].to_numpy()
    until = ends[np.searchsorted(ends, since, side="right")]
    return np.array(
        [
            (writes["storage"].eq(storage) & writes["start_ns"].between(low, high)).any()
            for storage, low, high in zip(ops["storage"], since, until, strict=True)
        ],
        dtype=bool,
    )


def _weighing(run: Run, rank: int, least: float = _LEAST) -> pd.DataFrame:
    """Operators outside of optimizers and backward that weigh a tensor, some by `least` or more:
    step, start_ns, thread, depth, name, dtypes, stack, value."""
    factors = logged(run, rank, BLEND_FACTOR).rename(columns={"time_ns": "start_ns"})
    columns = [*_PLACE, "name", "step", "phase", "stack", "dtypes"]
    if not (factors["value"] >= least).any():
        return factors.assign(depth=0, phase="", stack=-1, dtypes="")[:0]
    table = run.events("op", rank, columns=columns)
    outside = ~having(table["phase"], _OTHERS.fullmatch)
    known = pc.is_in(table["start_ns"], pa.array(factors["start_ns"].unique()))
    ops = to_frame(table.filter(pc.and_(pa.array(outside), known)))
    ops = ops[ops["stack"] >= 0].merge(factors[["thread", "start_ns", "value"]])
    return ops.sort_values(["thread", "start_ns"], ignore_index=True)


def _takes(ops: pd.DataFrame, least: float, most: float) -> pd.Series:
    """Which operators, in their order, take such a share of a trained parameter, and the rest of
    another tensor."""
    reads = ops["storage"].notna()
    other = pd.Series(False, ops.index)
    for distance in (1, -1):
        near = ops.shift(distance)
        adds_up = (near["value"] + ops["value"] - 1).abs() < _ROUNDING
        other |= adds_up & (near["thread"] == ops["thread"]) & near["storage"].isna()
    return reads & ops["value"].between(least, most) & (other | _is_lerp(ops))


def _is_lerp(ops: pd.DataFrame) -> pd.Series:
    """Which operators blend two tensors; the second has the weight, the first has the rest."""
    return ops["name"].astype("str").str.fullmatch(_LERP.pattern)


def reversed_average(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_average`, one per line and rank. Raises NotApplicable."""
    return by_line(run, _into_the_model, _reversed)


def _into_the_model(run: Run, rank: int) -> pd.DataFrame:
    """Operators that take most of a named tensor which nothing changes, where the sum is written to
    a trained parameter: step, start_ns, thread, stack, value, read, written (both names)."""
    ops = _weighing(run, rank)
    none = ops.assign(read="", written="")[:0]
    trained = trained_storages(run, rank) if (ops["value"] >= _LEAST).any() else set()
    if not trained:
        return none
    names = run.events("storage", rank, columns=["storage", "name"]).to_pandas()
    named = dict(zip(names["storage"], names["name"], strict=True))
    table = run.events("access", rank, columns=[*_PLACE, "storage", "write", "birth"])
    known = pc.is_in(table["storage"], pa.array(list(named)))
    rows = to_frame(table.filter(known)).sort_values(["thread", "start_ns"], ignore_index=True)
    after = rows["start_ns"] > ops["start_ns"].min()
    changed = set(rows.loc[rows["write"] & after, "storage"])
    found = []
    for thread, own in ops.groupby("thread", sort=False, observed=True):
        mine = rows[rows["thread"] == thread]
        times, begins = mine["start_ns"].to_numpy(), own["start_ns"].to_numpy()
        for place in (own["value"] >= _LEAST).to_numpy().nonzero()[0]:
            op, near = own.iloc[place], own.iloc[max(place - 1, 0) : place + 2]
            adds_up = (near["value"] + op["value"] - 1).abs() < _ROUNDING
            pair = near.loc[adds_up, "start_ns"].head(1)
            first, last = min([*pair, op["start_ns"]]), max([*pair, op["start_ns"]])
            later = begins[begins > last]
            until = int(later[0]) if len(later) else last + 1
            part = mine.iloc[slice(*times.searchsorted((first, until)))]
            own_reads = part.loc[part["start_ns"] == op["start_ns"], "storage"]
            blends = bool(_LERP.fullmatch(str(op["name"])))
            reads = set(own_reads.iloc[int(blends) :]) - trained - changed
            writes = set(part.loc[part["write"] & ~part["birth"], "storage"]) & trained
            if (len(pair) or blends) and len(reads) == len(writes) == 1:
                found.append((own.index[place], named[reads.pop()], named[writes.pop()]))
    if not found:
        return none
    kept = pd.DataFrame(found, columns=["place", "read", "written"]).set_index("place")
    return ops.join(kept, how="inner")


def _reversed(at: str, own: pd.DataFrame) -> dict[str, Any] | None:
    if own["step"].nunique() < _MIN_STEPS or own["written"].nunique() < _MIN_PARAMETERS:
        return None
    first = own.iloc[0]
    share = float(first["value"])
    return {
        "kind": "wrong_average",
        "confidence": "likely",
        "title": f"The soft update{at} goes the wrong way: in each step it writes {share:g} of "
        f"{first['read']}, which nothing changes, and {1 - share:.3g} of the trained parameter to "
        f"{first['written']}{and_more(own['written'].nunique(), 'parameter')}: the steps of the "
        "optimizer are taken back, and the target stays what it was. Write the sum to the target: "
        f"target.lerp_(parameter, {1 - share:.3g}).",
        "evidence": {"cause": "reversed_average", "share": share},
    }


def trained_storages(run: Run, rank: int) -> set[int]:
    """Returns storages of parameters that a step of an optimizer writes."""
    names = run.events("storage", rank, columns=["storage", "name"]).to_pandas()
    held = set(gradient_rows(run)["parameter"])
    named = set(names.loc[names["name"].isin(held), "storage"])
    steps = _phases_of_steps(run, rank)
    found: set[int] = set()
    for _, step in (
        steps.sort_values("start_ns").groupby(["thread", "name"]).head(_STEPS).iterrows()
    ):
        window = int(step["start_ns"]), int(step["start_ns"] + step["duration_ns"])
        rows = run.events("access", rank, step["thread"], ["storage", "write"], window)
        found |= set(rows.filter(rows["write"])["storage"].to_pylist())
    return found & named


def _phases_of_steps(run: Run, rank: int) -> pd.DataFrame:
    """Steps of optimizers that ended: thread, start_ns, duration_ns, name."""
    phases = run.events("phase", rank, columns=["thread", "start_ns", "duration_ns", "name"])
    return to_frame(phases.filter(pa.array(having(phases["name"], _STEP.fullmatch)))).dropna()


def steady_share(own: pd.DataFrame) -> float | None:
    """Returns the share of several parameters that averages of a line take, the same in all of
    _MIN_STEPS steps or more; None: it changes, or they are of one parameter."""
    several = own["storage"].nunique() >= _MIN_PARAMETERS and own["value"].nunique() == 1
    if own["step"].nunique() < _MIN_STEPS or not several:
        return None
    return float(own["value"].iloc[0])


def _swapped(at: str, own: pd.DataFrame) -> dict[str, Any] | None:
    share = steady_share(own)
    if share is None:
        return None
    return {
        "kind": "wrong_average",
        "confidence": "likely",
        "title": f"The moving average{at} is mixed the wrong way round: in each step it takes "
        f"{share:g} of the newest parameters and {1 - share:.3g} of what it was, so it is the "
        "model of now and averages nothing. Exchange the two numbers: "
        f"average.lerp_(parameter, {1 - share:.3g}). If the decay is meant to grow, as in "
        "min(decay, (1 + n) / (10 + n)), do not store that number in place of the decay.",
        "evidence": {"cause": "swapped_average", "share": share},
    }
