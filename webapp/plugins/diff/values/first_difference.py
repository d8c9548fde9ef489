"""Finds the first operator with other values in two runs, its inputs, and its origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import numpy as np

from lanescope.webapp.analysis import stack_frames
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.collective_calls import calls, group_members
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.op_inputs import OperatorKey, operands
from lanescope.webapp.analysis.stack_frames import frame_texts
from lanescope.webapp.analysis.tensor_fingerprints import Ops, Words
from lanescope.webapp.plugins.diff.values.compared_ops import ComparedOps
from lanescope.webapp.plugins.diff.values.world_sizes import shares_differ
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.typed_json import json_number
from lanescope.webapp.runs.types import Int64Array

MAX_INPUTS = 16
"""Inputs listed of an operator: one on all parameters has hundreds."""

_SHAPES = 80
"""Characters of an operator's shapes in a sentence."""

_CALL_NS = 1_000_000
"""What a rank gives to a collective is read as its call begins, by another clock reading."""

_WORD = (1 << 64) - 1
_SHOWN = ("mean", "l2", "nan", "inf")
_FOUND = ("shape", "dtype", "mean", "l2", "min", "max", "nan", "inf")


@dataclass
class First:
    """The first operator of a rank that differs."""

    state: int  # of the worst of its tensors: 1 within tolerance, 2 different
    entry: dict[str, Any]  # as `diff --json` prints it
    places: dict[str, OperatorKey]  # of the operator in "base" and in "run"
    alone: dict[
        str, Int64Array
    ]  # positions, in its thread of "base" and of "run", of the operators
    # before it of its step that the other has not
    found: bool  # whether a tensor that no recorded operator had left so is among what differs
    reshaped: str = ""  # of one of `alone`, by what shapes alone it is another than in the baseline

    @property
    def when(self) -> tuple[int, int]:
        """Step and instant."""
        return self.entry["step"], self.entry["run"]["time_ns"]

    @property
    def order(self) -> tuple[int, int, int]:
        """The worst first, then the earliest."""
        return -self.state, *self.when


def first_of(pairs: ComparedOps, rows: Int64Array, words: Words) -> First:
    """Returns the first of a thread. `rows`: pairs of tensors that differ, by step and start; not
    empty."""
    old, new, state = pairs.old, pairs.new, pairs.state
    worst = int(state.max())
    start = int(rows[np.argmax(state[rows] == worst)])
    base, run = int(old.owner[pairs.one[start]]), int(new.owner[pairs.two[start]])
    entry: dict[str, Any] = {
        "rank": pairs.thread.rank,
        "thread": pairs.thread.thread,
        "thread_name": pairs.thread.name,
        "step": int(new.step[run]),
        **{
            key: words.known[column][new.texts[column][run]]
            for key, column in (("phase", "phase"), ("op", "name"), ("module", "module"))
        },
        "where": None,
        "base": {"time_ns": int(old.start[base])},
        "run": {"time_ns": int(new.start[run])},
        "origin": None,
    }
    same_op = rows[(new.owner[pairs.two[rows]] == run) & (state[rows] == worst)]
    for side, ops, chosen in (("base", old, pairs.one), ("run", new, pairs.two)):
        entry[side]["tensors"] = [_tensor(ops, int(chosen[row]), words) for row in same_op]
    places = {
        side: (thread.thread, int(ops.start[at]), int(ops.depth[at]))
        for side, thread, ops, at in (
            ("base", pairs.mine, old, base),
            ("run", pairs.thread, new, run),
        )
    }
    alone = {"base": _alone(old, pairs.left, base), "run": _alone(new, pairs.right, run)}
    read = [k for k, name in enumerate(words.known["position"]) if name.startswith("read")]
    own = rows[new.owner[pairs.two[rows]] == run]
    found = bool(np.isin(new.tensors["position"][pairs.two[own]], read).any())
    reshaped = _reshaped(pairs, alone["run"], int(new.step[run]), words)
    return First(worst, entry, places, alone, found, reshaped)


def explained(base: Run, run: Run, first: First, firsts: Mapping[int, First]) -> list[str]:
    """Adds to the first difference of all ranks where it is called, what it worked on and where it
    comes from; `firsts` is that of each rank. Returns sentences about what went before.
    """
    entry = first.entry
    rank = entry["rank"]
    for side, one in (("base", base), ("run", run)):
        stack = _stack(one, rank, first.places[side])
        inputs = operands(one, rank, first.places[side], in_place=entry["op"].endswith("_"))
        entry[side]["stack"] = stack
        entry[side]["inputs"] = [_input(one, rank, found) for found in inputs[:MAX_INPUTS]]
    entry["where"] = stack_frames.innermost_place(entry["run"]["stack"])
    entry["origin"] = _origin(base, run, firsts, first)
    if shares_differ(base, run):
        return []
    sides = (("run", run, "base"), ("base", base, "run"))
    return [
        _before(one, first, side, other) for side, one, other in sides if len(first.alone[side])
    ]


def other_inputs(first: Mapping[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Inputs of the first operator that are known in both runs and are not the same in both."""
    sides = [first[side].get("inputs", []) for side in ("base", "run")]
    if len(sides[0]) != len(sides[1]):
        return []
    keys = ("hash", "shape", "dtype")
    pairs = zip(*sides, strict=True)
    return [(one, two) for one, two in pairs if any(one[key] != two[key] for key in keys)]


def other_parts(base: Mapping[str, Any], run: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Returns the ranges of an input of the first operator that the baseline and the run read,
    where these are others."""
    if len(base["parts"]) != len(run["parts"]):
        return []
    pairs = zip(base["parts"], run["parts"], strict=True)
    return [(one, two) for one, two in pairs if one != two]


def reads_other_parts(first: Mapping[str, Any]) -> bool:
    """Returns whether the first operator reads other ranges of inputs that are the same in both
    runs."""
    sides = [first[side].get("inputs", []) for side in ("base", "run")]
    if len(sides[0]) != len(sides[1]) or other_inputs(first):
        return False
    return any(other_parts(one, two) for one, two in zip(*sides, strict=True))


def _tensor(ops: Ops, row: int, words: Words) -> dict[str, Any]:
    columns = ops.tensors
    return {
        **{name: words.known[name][columns[name][row]] for name in ("position", "shape", "dtype")},
        **{name: _plain(columns[name][row].item()) for name in _SHOWN},
        "hash": f"{int(columns['hash'][row]) & _WORD:016x}",
    }


def _plain(number: Any) -> Any:
    """A number as JSON has it; none for "not a number", which is what a null becomes."""
    if not isinstance(number, float):
        return number
    return json_number(number) if number == number else None


def _input(run: Run, rank: int, found: dict[str, Any]) -> dict[str, Any]:
    """A tensor that an operator found, with what had left it there."""
    writer = found["writer"]
    return {
        **{name: _plain(found[name]) for name in _FOUND},
        "hash": f"{found['hash'] & _WORD:016x}",
        "written_by": None if writer is None else called(run, rank, writer),
        "parts": found["parts"],
    }


def called(run: Run, rank: int, place: OperatorKey) -> str:
    """Returns an operator by its name and line."""
    thread, start, depth = place
    ops = run.events("op", rank, thread, ["start_ns", "depth", "name"], window=(start, start + 1))
    found = (op for op in ops.to_pylist() if (op["start_ns"], op["depth"]) == (start, depth))
    name = next((op["name"] for op in found), "an operator")
    where = stack_frames.innermost_place(_stack(run, rank, place))
    return f"{name} at {where}" if where else str(name)


def _stack(run: Run, rank: int, place: OperatorKey) -> list[str]:
    """Frames of an operator, else of the one that it is part of, innermost first."""
    thread, start, depth = place
    columns = ["start_ns", "depth", "stack"]
    ops = run.events("op", rank, thread, columns=columns, window=(start, start + 1))
    around = [op for op in ops.to_pylist() if op["start_ns"] <= start and op["depth"] <= depth]
    around = [op for op in around if op["depth"] < depth or op["start_ns"] == start]
    for op in sorted(around, key=lambda op: -op["depth"]):
        if op["stack"] is not None:
            return frame_texts(run, rank).get(op["stack"], [])
    return []


def _alone(new: Ops, paired: Int64Array, place: int) -> Int64Array:
    alone = np.ones(len(new), bool)
    alone[paired] = False
    alone &= (new.step == new.step[place]) & (np.arange(len(new)) < place)
    return np.flatnonzero(alone).astype(np.int64)


def _reshaped(pairs: ComparedOps, alone: Int64Array, step: int, words: Words) -> str:
    lone = pairs.old.step == step
    lone[pairs.left] = False
    shapes = {}
    for row in np.flatnonzero(lone)[::-1].tolist():
        shapes[tuple(pairs.old.texts[key][row] for key in ("name", "module"))] = pairs.old.texts[
            "shapes"
        ][row]
    for row in alone.tolist():
        name, module, now = (pairs.new.texts[key][row] for key in ("name", "module", "shapes"))
        was = shapes.get((name, module), now)
        if was != now:
            sides = [shorten(words.known["shapes"][code], _SHAPES) for code in (was, now)]
            return (
                f", the first of other shapes {words.known['name'][name]}: {sides[0]} in the "
                f"baseline, {sides[1]} in the run"
            )
    return ""


def _before(run: Run, first: First, side: str, other: str) -> str:
    rank, thread = first.entry["rank"], first.places[side][0]
    alone = first.alone[side]
    columns = ["name", "module", "start_ns", "depth"]
    [op] = run.events("op", rank, thread, columns=columns).slice(int(alone[-1]), 1).to_pylist()
    where = stack_frames.innermost_place(_stack(run, rank, (thread, op["start_ns"], op["depth"])))
    count = units.counted(len(alone), "operator")
    here, there = ("baseline" if one == "base" else one for one in (side, other))
    return (
        f"before the first difference the {here} ran {count} of that step that the {there} did not "
        f"run, the last {op['name']}"
        + (f" in {op['module']}" if op["module"] else "")
        + at_place(where)
        + (first.reshaped if side == "run" else "")
    )


def _origin(base: Run, run: Run, firsts: Mapping[int, First], first: First) -> dict[str, Any]:
    """Where the first difference comes from.

    An operator that found something else than before (`read`: what no recorded operator wrote, or
    changed since one wrote it) took it from a collective, where another rank of it had parted
    before its own call or was not recorded, else from outside. One that found the same computed
    something else. Where the numbers of ranks differ, the share of the first rank that one side has
    not is what came.
    """
    entry = first.entry
    rank = entry["rank"]
    if base.world_size != run.world_size:  # compared values have been through one then
        other = set(base.ranks) ^ set(run.ranks)
        return {"kind": "collective", "rank": min(other, default=rank)}
    if not first.found:
        return {"kind": "compute", "rank": rank}
    if not entry["op"].startswith("c10d::"):
        source = _through_collective(base, run, firsts, entry)
        if source is not None:
            return {"kind": "collective", "rank": source}
    return {"kind": "input", "rank": rank}


def _through_collective(
    base: Run, run: Run, firsts: Mapping[int, First], entry: dict[str, Any]
) -> int | None:
    """The rank that another value came from, by the last call before with such a tensor: of a
    collective, or a receive.
    """
    shapes = {tensor["shape"] for tensor in entry["run"]["tensors"]}
    every = calls(run)
    every = every[every["name"] != "send"]
    mine = every[(every["rank"] == entry["rank"]) & (every["start_ns"] < entry["run"]["time_ns"])]
    for call in mine.iloc[::-1].itertuples():
        if call.step < entry["step"] - 1:
            break
        if not any(shape in str(call.shapes) for shape in shapes):
            continue
        if call.name == "recv":
            return int(call.peer) if call.peer >= 0 else None
        peers = [rank for rank in group_members(run).get(call.group, ()) if rank != entry["rank"]]
        same = every[(every["group"] == call.group) & (every["sequence"] == call.sequence)]
        same = same[same["name"] != "recv"]
        begun = {int(r): int(t) for r, t in zip(same["rank"], same["start_ns"], strict=True)}
        parted = [
            (firsts[rank].when, rank)
            for rank in peers
            if rank in firsts and firsts[rank].when[1] <= begun.get(rank, -1) + _CALL_NS
        ]
        if parted:
            return min(parted)[1]
        unknown = [rank for rank in peers if rank not in run.ranks or rank not in base.ranks]
        return unknown[0] if len(unknown) == 1 else None
    return None


RANDOM = (
    "bernoulli",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "multinomial",
    "native_dropout",
    "normal",
    "poisson",
    "rand",
    "randint",
    "randn",
    "random_",
    "randperm",
    "uniform",
)
"""Operators that draw, without namespace and without the _ of one that changes its input."""

_SETTINGS = {"lr": "learning rate", "weight_decay": "weight decay"}


def hints(base: Run, run: Run, first: dict[str, Any]) -> list[str]:
    """Returns about the first operator that differs, as `diff --json` prints it."""
    found = []
    shapes = [[one["shape"] for one in first[side]["tensors"]] for side in ("base", "run")]
    if first["origin"]["kind"] == "compute" and shapes[0] == shapes[1] and draws(first["op"]):
        found.append(
            f"{first['op']} draws random numbers: another seed, other draws before it, or another "
            "distribution (a dropout rate, say)"
        )
    return [*found, *_settings(base, run, first)]


def draws(op: str) -> bool:
    """Returns whether an operator takes numbers from a generator."""
    name = op.rpartition("::")[2]
    return name in RANDOM or name.removesuffix("_") in RANDOM or name.startswith("rand")


def _settings(base: Run, run: Run, first: dict[str, Any]) -> list[str]:
    """What optimizers were set to otherwise, at the first step at which both runs know."""
    keys = ["step", "parameter", "optimizer"]
    sides = []
    for one in (base, run):
        rows = one.events("parameter", first["rank"], columns=[*keys, *_SETTINGS, "rule"])
        frame = to_frame(rows).astype({"parameter": object, "rule": object})
        sides.append(frame.dropna(subset=["rule"]))
    both = sides[0].merge(sides[1], on=keys, suffixes=("_base", "_run"))
    both = both.sort_values(keys, kind="stable")
    other = both[both["rule_base"].astype(str) != both["rule_run"].astype(str)]
    if len(other):
        row = other.iloc[0]
        return [
            f"parameters are updated by {row['rule_run']}, in the baseline by {row['rule_base']}"
        ]
    for name, words in _SETTINGS.items():
        low, high = (both[f"{name}_{side}"].to_numpy(np.float64) for side in ("base", "run"))
        apart = np.flatnonzero((low != high) & ~np.isnan(low) & ~np.isnan(high))
        if len(apart):
            at = apart[0]
            return [
                f"the {words} differs since step {both['step'].iloc[at]} at the latest: "
                f"{low[at]:g} became {high[at]:g}"
            ]
    return []
