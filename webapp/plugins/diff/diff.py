"""Compares two runs and finds the first difference.

Compared are gradient norms, by rank, step and parameter, and operators: where both runs know what
was in their tensors (level numerics), each with its like on the other side by those values; else
how often each ran, by rank, thread name, step and op name. What has no partner is counted, never
guessed at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.cluster import Executor, spread
from lanescope.webapp.analysis.gradients import gradients
from lanescope.webapp.analysis.tensor_fingerprints import ARRIVES, Words
from lanescope.webapp.bundles.comparable import comparable
from lanescope.webapp.plugins.diff import world_sizes
from lanescope.webapp.plugins.diff.closeness import COARSEST, MODES, RELATIVE, SIMPLE, Mode
from lanescope.webapp.plugins.diff.first_difference import hints, resumed
from lanescope.webapp.plugins.diff.first_layer import FirstLayer, first_gradient, first_layer
from lanescope.webapp.plugins.diff.logged_values import outputs_differ, values_differ
from lanescope.webapp.plugins.diff.noise import Floor, tensor_floor
from lanescope.webapp.plugins.diff.precision import least_tolerance
from lanescope.webapp.plugins.diff.renaming import Renamed, renamed
from lanescope.webapp.plugins.diff.roles import by_role
from lanescope.webapp.plugins.diff.settings import settings_notes
from lanescope.webapp.plugins.diff.timing_differences import Timing, timing_differences
from lanescope.webapp.plugins.diff.unpaired import (
    Unpaired,
    compiled_words,
    settings_words,
    unpaired_calls,
)
from lanescope.webapp.plugins.diff.value_differences import (
    ValueDifferences,
    of_rank,
    value_differences,
)
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.typed_json import json_number
from lanescope.webapp.runs.types import BoolArray, Float64Array

Verdict = Literal["identical", "within_tolerance", "diverged"]

TABLE_COLUMNS = (
    "kind",
    "rank",
    "thread",
    "step",
    "name",
    "base",
    "run",
    "difference",
    "state",
    "phase",
    "module",
    "position",
    "thread_id",
    "time_ns",
)


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side. `diff --json` prints `to_json`; `table` has one row per pair."""

    mode: Mode
    verdict: Verdict
    norms: int  # of gradients that both runs have
    ops: int  # operators that both have; where values of none are known, calls of them
    tensors: int  # of these operators, whose values were compared
    valued: bool  # both runs know what was in the tensors of operators
    alone: tuple[Unpaired, Unpaired]  # what base has and run has not, and the other way round
    first: dict[str, Any] | None  # the first operator that differs, else the first norm
    table: pd.DataFrame = field(repr=False)
    notes: tuple[str, ...] = ()  # sentences: what could not be compared, what else to look at
    differing: int = 0  # tensors that differ in the mode; the table may hold fewer
    timing: Timing | None = field(default=None, repr=False)
    growth: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)  # see `growth_of`

    @property
    def compared(self) -> int:
        """Gradient norms and operators that both runs have."""
        return self.norms + self.ops

    @property
    def only_in_base(self) -> int:
        """Gradient norms and operators."""
        return self.alone[0].count

    @property
    def only_in_run(self) -> int:
        """Gradient norms and operators."""
        return self.alone[1].count

    def to_json(self) -> dict[str, Any]:
        """The object that `diff --json` prints."""
        return {
            "verdict": self.verdict,
            "compared": self.compared,
            "only_in_base": self.only_in_base,
            "only_in_run": self.only_in_run,
            "first": self.first,
        }


def diff(base: Run, run: Run, mode: Mode = "bitwise") -> pd.DataFrame:
    """The table of `compare`: one row per gradient norm and op count, and per tensor that differs.

    kind ("gradient", "op" or "tensor"), rank, thread (its name), step, name (parameter or op), base
    and run (norm, number of calls or mean; NaN on a side that has none), difference (run - base),
    state ("identical", "within_tolerance", "different", "only_in_base", "only_in_run"; for an op
    these two mean more calls on that side). Of a tensor also phase, module, position (as in the
    tensor table), thread_id and time_ns (start of its operator in `run`). Gradients first, then
    ops, each by step, rank and order of recording; then tensors, by step and time, without those
    that are identical.
    """
    return compare(base, run, mode).table


def compare(
    base: Run,
    run: Run,
    mode: Mode = "bitwise",
    noise: Run | None = None,
    workers: Executor | None = None,
) -> Comparison:
    """Compares two runs; the values of each rank on `workers`, where there are any.

    Norms are equal in mode bitwise if their bits are (a NaN equals itself, 0.0 is not -0.0), in
    mode tolerance if |base - run| <= RELATIVE[dtype] * max(|base|, |run|), with the coarser dtype,
    in mode simple if |base - run| <= 1e-4. NaN equals NaN in the latter two. A gradient on one
    side only is a difference in all modes. Tensors of runs at level numerics count as norms do:
    see `closeness.tensor_states`, and `tensor_fingerprints.pair_ops` for how they are paired.

    The verdict is "diverged" if a norm differs, "within_tolerance" if only bits do. Calls of one
    side alone are counted in `only_in_base` and `only_in_run` and do not decide: a logging thread
    that runs once more does not make two trainings differ. Without a common norm they do.

    `first` is the first difference by step and time. `noise`, for mode tolerance, is a second
    recording of `base`: differences between the two are allowed as well, see `noise`.
    """
    _check_mode(mode, noise)
    opened = base, run
    floors = None
    if noise is not None:
        plain, _ = comparable(*opened)
        floors = tensor_floor(plain, noise), _norm_floor(plain, noise)
    base, run, roles, names = _prepared(*opened)
    norms = _norms(base, run, mode, floors[1] if floors else None)
    values = None
    if _both_have_values(base, run):
        ask = partial(_values_of_rank, mode=mode, floor=floors[0] if floors else None)
        ranks = sorted({*base.ranks, *run.ranks})
        parts: Iterator[Any]
        if workers is None:
            parts = (ask(*opened, rank) for rank in ranks)
        else:
            parts = (part for part in spread(workers, ask, opened, ranks).values())
        values = value_differences(base, run, parts)
    calls = _calls(base, run, values.names if values else {})
    matched = int((~norms["state"].isin(["only_in_base", "only_in_run"])).sum())
    only = [int((norms["state"] == f"only_in_{side}").sum()) for side in ("base", "run")]
    states = set(norms["state"])
    if values is None:
        ops = int(calls[["base", "run"]].fillna(0).min(axis=1).sum())
        names_alone = unpaired_calls(calls)
    else:
        ops, names_alone = values.compared, (values.only_in_base, values.only_in_run)
        states |= {"different"} if values.different else set()
        states |= {"within_tolerance"} if values.within_tolerance else set()
    tensors = values.tensors if values else 0
    alone = (Unpaired(names_alone[0], only[0]), Unpaired(names_alone[1], only[1]))
    nothing = matched + ops == 0 or (matched + tensors == 0 and any(one.count for one in alone))
    wanted = "different" if "different" in states else "within_tolerance"
    shares = world_sizes.shares_differ(base, run)
    least = least_tolerance(base, run)
    near: Mode = mode if wanted == "different" else "bitwise"
    layer = None if shares else first_layer(base, run, near, least)
    first = _first_of_all(values, norms[norms["state"] == wanted], layer, wanted)
    notes = values.notes if values else [_no_values(base, run)]
    outputs = outputs_differ(base, run)
    bits = values_differ(base, run, 0.0)
    far = values_differ(base, run, 0.0 if mode == "bitwise" else max(RELATIVE["float32"], least))
    logged = far or bits
    if far or (outputs and mode == "bitwise"):
        states |= {"different"}
    elif bits or outputs:
        states |= {"within_tolerance"}
    begins = layer.words if layer is not None and layer.module else None
    own = filter(None, [begins, outputs, logged])
    notes = [*settings_notes(base, run), *own, *roles, *notes, *_floor_notes(floors)]
    notes += filter(None, [names.words()])
    if any(names_alone):
        notes += filter(None, [settings_words(base, run), compiled_words(base, run)])
    return Comparison(
        mode=mode,
        verdict="diverged" if nothing else _verdict(states),
        norms=matched,
        ops=ops,
        tensors=tensors,
        valued=values is not None,
        alone=alone,
        first=first,
        table=_all_rows(norms, calls, values.tables if values else []),
        notes=(*notes, *_explained(base, run, norms, values)),
        differing=values.different if values else 0,
        timing=timing_differences(base, run),
        growth=values.grown() if values else pd.DataFrame(),
    )


@lru_cache(maxsize=2)
def _prepared(base: Run, run: Run) -> tuple[Run, Run, list[str], Renamed]:
    """Both runs with base's ranks and modules as run has them; what to say of ranks, and names."""
    base, run = comparable(base, run)
    base, roles = by_role(base, run)
    names = renamed(base, run)
    return names.run, run, roles, names


def _values_of_rank(
    base: Run, run: Run, rank: int, mode: Mode, floor: Floor | None
) -> ValueDifferences:
    """What differs in a rank of two runs as they were opened."""
    return of_rank(*_prepared(base, run)[:2], rank, mode, floor)


def _check_mode(mode: str, noise: Run | None) -> None:
    """Raises RunError for an unknown mode, or a noise floor that the mode does not use."""
    if mode not in MODES:
        raise RunError(f"no mode {mode!r}, expected one of {', '.join(MODES)}")
    if noise is not None and mode != "tolerance":
        raise RunError(f"a noise floor is for mode tolerance, not for mode {mode}")


def _floor_notes(floors: tuple[Floor, Floor] | None) -> list[str]:
    """Returns the note on the noise floors of tensors and norms, if any."""
    if floors is None:
        return []
    sides = (f"{what}: {one.words()}" for what, one in zip(_FLOORS, floors, strict=True))
    return [f"noise floor of the two baselines at the last step, {', '.join(sides)}"]


def _verdict(states: Set[str]) -> Verdict:
    if "different" in states:
        return "diverged"
    return "within_tolerance" if "within_tolerance" in states else "identical"


def _all_rows(norms: pd.DataFrame, calls: pd.DataFrame, tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Norms, then calls, then tensors by step and time."""
    frames = [norms, calls]
    if tables:
        rows = pd.concat(tables, ignore_index=True)
        frames.append(rows.sort_values(["step", "time_ns"], kind="stable", ignore_index=True))
    return pd.concat(frames, ignore_index=True).reindex(columns=list(TABLE_COLUMNS))


def _explained(
    base: Run, run: Run, norms: pd.DataFrame, values: ValueDifferences | None
) -> list[str]:
    """Returns the known causes of the differences."""
    notes = []
    first = values.first.entry if values is not None and values.first is not None else None
    if world_sizes.shares_differ(base, run):
        shared = norms[norms["base"].notna() & norms["run"].notna()]
        ranks = base.world_size != run.world_size
        about = world_sizes.notes if ranks else world_sizes.notes_on_passes
        notes += about(base, run, shared, first, values.left_out if values else 0)
    factor = world_sizes.common_factor(base, run, norms[norms["state"] == "different"])
    notes += [] if factor is None else [factor]
    notes += resumed(base, run)
    return notes if first is None else [*notes, *hints(base, run, first)]


def _both_have_values(base: Run, run: Run) -> bool:
    return bool(base.counts["tensor"] and run.counts["tensor"])


def _no_values(base: Run, run: Run) -> str:
    without = [side for side, one in (("base", base), ("run", run)) if not one.counts["tensor"]]
    return (
        f"values of operators were not compared: {' and '.join(without)} recorded none "
        "(lanescope record --level numerics)"
    )


def _first_of_all(
    values: ValueDifferences | None, norms: pd.DataFrame, layer: FirstLayer | None, wanted: str
) -> dict[str, Any] | None:
    decides = values is not None and (wanted == "within_tolerance" or values.different)
    if values is not None and values.first is not None and decides:
        return values.first.entry
    return _first(norms, layer)


_FLOORS = ("tensors", "norms of gradients")


def _norm_floor(base: Run, noise: Run) -> Floor:
    rows = _norms(base, noise, "bitwise")
    rows = rows[~rows["state"].isin(["only_in_base", "only_in_run"])]
    low, high = rows["base"].to_numpy(np.float64), rows["run"].to_numpy(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.abs(high - low) / np.maximum(np.abs(low), np.abs(high))
    return Floor.of(rows["dtype_base"].to_numpy(object), rows["step"].to_numpy(np.int64), apart)


def _norms(base: Run, run: Run, mode: Mode, floor: Floor | None = None) -> pd.DataFrame:
    keys = ["rank", "step", "parameter", "optimizer", "again"]
    sides = []
    for one in (base, run):
        frame = gradients(one)
        names = {(t.rank, t.thread): t.name for t in one.threads}
        frame["thread_name"] = [
            names.get(place, "") for place in zip(frame["rank"], frame["thread"], strict=True)
        ]
        frame = _plain_keys(frame, "parameter")
        # A parameter may pass an optimizer twice within a step (an explicit step boundary).
        frame["again"] = frame.groupby(keys[:-1]).cumcount()
        frame["order"] = np.arange(len(frame))
        sides.append(frame)
    both = sides[0].merge(sides[1], on=keys, how="outer", suffixes=("_base", "_run"))
    both["order"] = both["order_run"].fillna(both["order_base"])
    both = both.sort_values(["step", "rank", "order"], kind="stable", ignore_index=True)
    here, there = both["order_run"].notna(), both["order_base"].notna()
    low = both["norm_base"].to_numpy(np.float64)
    high = both["norm_run"].to_numpy(np.float64)
    gone = both[["missing_base", "missing_run"]].fillna(False).to_numpy(bool)
    state = _states(low, high, gone, _tolerances(both, floor, least_tolerance(base, run)), mode)
    state[~here.to_numpy()] = "only_in_base"
    state[~there.to_numpy()] = "only_in_run"
    with np.errstate(invalid="ignore"):
        apart = high - low  # of two infinities: not a number
    thread = both["thread_name_run"].where(here, both["thread_name_base"])
    return pd.DataFrame(
        {
            "kind": "gradient",
            "rank": both["rank"],
            "thread": thread,
            "step": both["step"],
            "name": both["parameter"],
            "base": low,
            "run": high,
            "difference": apart,
            "state": state,
            "thread_id": both["thread_run"],
            "dtype_base": both["dtype_base"],
            "dtype_run": both["dtype_run"],
            "missing_base": gone[:, 0],
            "missing_run": gone[:, 1],
        }
    )


def _plain_keys(frame: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Keys as Python texts: pandas 3 cannot merge on Arrow ones where a side has no rows."""
    return frame.astype(dict.fromkeys(names, "object"))


def _tolerances(both: pd.DataFrame, floor: Floor | None, least: float) -> Float64Array:
    sides = [both[name].map(RELATIVE).fillna(COARSEST) for name in ("dtype_base", "dtype_run")]
    low, high = (side.to_numpy(np.float64) for side in sides)
    coarser: Float64Array = np.maximum(low, high).clip(min=least)
    if floor is None:
        return coarser
    codes, dtypes = pd.factorize(both["dtype_base"].fillna(""))
    step = both["step"].to_numpy(np.int64)
    return np.maximum(coarser, floor.at([str(dtype) for dtype in dtypes], codes, step))


def _states(
    base: Float64Array,
    run: Float64Array,
    gone: BoolArray,
    relative: Float64Array,
    mode: Mode,
) -> npt.NDArray[np.object_]:
    """State of each pair of norms; `gone` says, per side, that there was no gradient."""
    neither, both = gone.all(axis=1), ~gone.any(axis=1)
    same = neither | (both & (base.view(np.int64) == run.view(np.int64)))
    with np.errstate(invalid="ignore"):
        apart = np.abs(run - base)
        if mode == "tolerance":
            close = apart <= relative * np.maximum(np.abs(base), np.abs(run))
        elif mode == "simple":
            close = apart <= SIMPLE
        else:
            close = np.zeros(len(base), np.bool_)
    if mode != "bitwise":
        # Infinity times a tolerance is infinity: it must not be close to every number.
        close = close & np.isfinite(base) & np.isfinite(run)
        close |= (np.isnan(base) & np.isnan(run)) | (base == run)
    state = np.full(len(base), "different", np.object_)
    state[close & both] = "within_tolerance"
    state[same] = "identical"
    return state


def _calls(base: Run, run: Run, names: Mapping[tuple[int, str], str]) -> pd.DataFrame:
    keys = ["step", "rank", "thread", "name"]
    words = Words()
    both = _counted(base, names, words).merge(
        _counted(run, {}, words), on=keys, how="outer", suffixes=("_base", "_run")
    )
    for key in ("thread", "name"):  # numbers that sort as their texts do
        texts = np.array(words.known[key], object)
        order = np.argsort(texts)
        ranked = np.empty(len(order), np.int64)
        ranked[order] = np.arange(len(order))
        both[key] = pd.Categorical.from_codes(ranked[both[key].to_numpy(np.int64)], texts[order])
    both = both.sort_values(keys, kind="stable", ignore_index=True)
    low, high = both["calls_base"], both["calls_run"]
    apart = high.fillna(0) - low.fillna(0)
    state = np.where(apart == 0, "identical", np.where(apart > 0, "only_in_run", "only_in_base"))
    return pd.DataFrame(
        {
            "kind": "op",
            "rank": both["rank"],
            "thread": both["thread"].astype("object"),
            "step": both["step"],
            "name": both["name"].astype("object"),
            "base": low.astype("float64"),
            "run": high.astype("float64"),
            "difference": apart.astype("float64"),
            "state": state,
        }
    )


def _counted(run: Run, other_names: Mapping[tuple[int, str], str], words: Words) -> pd.DataFrame:
    """Calls per step, rank, thread name and op name (numbers in `words`), without those of ARRIVES
    and of accesses that are noted by chance. Threads of one name are counted as one; `other_names`
    are those of threads that the other run calls otherwise.
    """
    names = {**{(t.rank, t.thread): t.name for t in run.threads}, **other_names}
    keys = ["step", "rank", "thread", "name"]
    frames = [pd.DataFrame(columns=[*keys, "calls"], dtype="int64")]
    for rows in run.pieces("op", columns=["rank", "thread", "step", "name"]):
        if not len(rows):
            continue
        rank, thread = rows["rank"][0].as_py(), rows["thread"][0].as_py()
        counted = rows.group_by(["step", "name"]).aggregate([([], "count_all")])
        frame = pd.DataFrame(
            {
                "step": counted["step"].to_numpy(),
                "rank": rank,
                "thread": words.code("thread", names.get((rank, thread), "")),
                "name": words.codes("name", counted["name"]),
                "calls": counted["count_all"].to_numpy(),
            }
        )
        frames.append(frame.astype("int64"))
    frame = pd.concat(frames, ignore_index=True)
    left_out = [words.code("name", name) for name in (ARRIVES, *schema.NOTED_ACCESSES)]
    frame = frame[~frame["name"].isin(left_out)]
    return frame.groupby(keys, as_index=False, sort=False)["calls"].sum()


def _first(differing: pd.DataFrame, layer: FirstLayer | None) -> dict[str, Any] | None:
    if differing.empty:
        return None
    row = first_gradient(differing, layer).iloc[0]
    parameter = str(row["name"])
    sides = {
        side: {
            "norm": None if row[f"missing_{side}"] else json_number(float(row[side])),
            "dtype": str(row[f"dtype_{side}"]),
        }
        for side in ("base", "run")
    }
    return {
        "rank": int(row["rank"]),
        "thread": str(row["thread_id"]),
        "step": int(row["step"]),
        "phase": "backward",
        "op": "gradient",
        "parameter": parameter,
        "module": parameter.rpartition(".")[0],
        "where": None,
        **sides,
        "origin": None,
    }
