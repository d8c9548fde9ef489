"""Which operators of two runs have other values, and where the first difference comes from."""

from __future__ import annotations

from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.alignment import Ints, thread_pairs
from lanescope.webapp.analysis.calls import collective_calls, members
from lanescope.webapp.analysis.closeness import Mode
from lanescope.webapp.analysis.compared_ops import ComparedOps, compared_ops
from lanescope.webapp.analysis.fingerprints import Ops, Words
from lanescope.webapp.analysis.frames import json_number
from lanescope.webapp.analysis.noise import Floor
from lanescope.webapp.analysis.sites import frames_of
from lanescope.webapp.notices import ranks_text
from lanescope.webapp.run import Run, Thread

KEPT = 100_000
"""Differing tensors of a thread that are kept, the earliest; all are counted."""

_SHAPES = 80
"""Characters of an operator's shapes that a sentence tells."""

_STATES = np.array(["identical", "within_tolerance", "different"], object)
_SHOWN = ("mean", "l2", "nan", "inf")


@dataclass
class First:
    """The first operator of a rank that differs."""

    state: int  # of the worst of its tensors: 1 within tolerance, 2 different
    told: dict[str, Any]  # as `diff --json` tells it
    alone: Ints  # places, in its thread of `run`, of the operators before it of its step that the
    # base has not
    reshaped: str = ""  # of one of these, by what shapes alone it is another than one of the base

    @property
    def when(self) -> tuple[int, int]:
        """Step and instant."""
        return self.told["step"], self.told["run"]["time_ns"]

    @property
    def order(self) -> tuple[int, int, int]:
        """The worst first, then the earliest."""
        return -self.state, *self.when


@dataclass
class ValueDifferences:
    """What came of comparing all tensors of all operators that both runs have."""

    compared: int = 0  # operators on both sides
    tensors: int = 0  # tensors on both sides
    only_in_base: int = 0  # operators
    only_in_run: int = 0
    different: int = 0  # tensors
    within_tolerance: int = 0
    left_out: int = 0  # tensors that both sides have and that say nothing, see `world_sizes`
    tables: list[pd.DataFrame] = field(default_factory=list)
    firsts: dict[int, First] = field(default_factory=dict)  # rank -> earliest of the worst state
    names: dict[tuple[int, str], str] = field(default_factory=dict)  # of base's threads, in run
    notes: list[str] = field(default_factory=list)  # what could not be compared, and hints
    growth: list[pd.DataFrame] = field(default_factory=list)  # of each thread, see `grown`

    def grown(self) -> pd.DataFrame:
        """How the difference grows: one row per rank, step and module that has tensors.

        tensors, differing (of these, not with equal bits), largest (the greatest of
        `closeness.relative_differences`, may be infinite) and time_ns, the first operator.
        """
        keys = ["rank", "step", "module"]
        if not self.growth:
            return pd.DataFrame(columns=[*keys, "tensors", "differing", "largest", "time_ns"])
        return pd.concat(self.growth).groupby(keys, as_index=False, sort=True).agg(
            tensors=("tensors", "sum"), differing=("differing", "sum"),
            largest=("largest", "max"), time_ns=("time_ns", "min"),
        )  # fmt: skip

    @property
    def first(self) -> First | None:
        """The earliest of the worst state of all ranks, by step and then by instant."""
        return min(self.firsts.values(), key=lambda first: first.order, default=None)


def value_differences(
    base: Run, run: Run, mode: Mode, floor: Floor | None = None
) -> ValueDifferences:
    """Compares two runs of level numerics thread by thread, so as to hold one of each at a time.

    Tensors no further apart than `floor` are within tolerance.
    """
    found = ValueDifferences()
    words = Words()
    for name, one, other in (("base", base, run), ("run", run, base)):
        ranks = sorted(set(one.ranks) - set(other.ranks))
        if ranks:
            found.notes.append(f"ranks {ranks_text(tuple(ranks))} are in the {name} only")
    for mine, theirs in thread_pairs(base, run):
        if mine is None or theirs is None:
            _unpaired(found, base, run, mine, theirs)
        else:
            _compare_thread(found, base, run, mine, theirs, words, mode, floor)
    first = found.first
    if first is not None:
        first.told["origin"] = _origin(base, run, found, first)
        if len(first.alone) and base.world_size == run.world_size:
            found.notes.append(_before(run, first))
    return found


def _unpaired(
    found: ValueDifferences, base: Run, run: Run, mine: Thread | None, theirs: Thread | None
) -> None:
    if mine is not None:
        found.only_in_base += len(base.events("op", mine.rank, mine.thread, columns=["step"]))
    if theirs is not None:
        found.only_in_run += len(run.events("op", theirs.rank, theirs.thread, columns=["step"]))


def _compare_thread(
    found: ValueDifferences, base: Run, run: Run, mine: Thread, theirs: Thread, words: Words,
    mode: Mode, floor: Floor | None,
) -> None:  # fmt: skip
    rank = mine.rank
    found.names[rank, mine.thread] = theirs.name
    pairs = compared_ops(base, run, mine, theirs, words, mode, floor)
    old, new, right, one, two = pairs.old, pairs.new, pairs.right, pairs.one, pairs.two
    state = pairs.state
    found.compared += len(right)
    found.only_in_base += len(old) - len(right)
    found.only_in_run += len(new) - len(right)
    found.tensors += len(state)
    found.left_out += pairs.left_out
    found.different += int((state == 2).sum())
    found.within_tolerance += int((state == 1).sum())
    found.growth.append(_growth(pairs, words))
    rows = np.flatnonzero(state)
    if not len(rows):
        return
    owner = new.owner[two[rows]]
    rows = rows[np.lexsort((new.start[owner], new.step[owner]))]
    worst = int(state.max())
    start = int(rows[np.argmax(state[rows] == worst)])
    place = int(new.owner[two[start]])
    here = {
        "rank": rank,
        "thread": theirs.thread,
        "step": int(new.step[place]),
        **{key: words.known[column][new.texts[column][place]] for key, column in
           (("phase", "phase"), ("op", "name"), ("module", "module"))},
        "where": _where(run, rank, theirs.thread, place),
        "base": _side(old, int(old.owner[one[start]])),
        "run": _side(new, place),
        "origin": None,
    }  # fmt: skip
    same_op = rows[(new.owner[two[rows]] == place) & (state[rows] == worst)]
    for side, ops, chosen in (("base", old, one), ("run", new, two)):
        here[side]["tensors"] = [_tensor(ops, int(chosen[row]), words) for row in same_op]
    alone = _alone(new, right, place)
    first = First(worst, here, alone, _reshaped(pairs, alone, int(new.step[place]), words))
    if rank not in found.firsts or first.order < found.firsts[rank].order:
        found.firsts[rank] = first
    found.tables.append(_table(rank, theirs, old, new, one, two, state, rows[:KEPT], words))


def _growth(pairs: ComparedOps, words: Words) -> pd.DataFrame:
    owner = pairs.new.owner[pairs.two]
    frame = pd.DataFrame(
        {
            "step": pairs.new.step[owner], "module": pairs.new.texts["module"][owner],
            "differing": pairs.state > 0, "largest": pairs.apart, "time_ns": pairs.new.start[owner],
        }
    )  # fmt: skip
    told = frame.groupby(["step", "module"], as_index=False).agg(
        tensors=("differing", "size"), differing=("differing", "sum"),
        largest=("largest", "max"), time_ns=("time_ns", "min"),
    )  # fmt: skip
    modules = np.array([text or "" for text in words.known["module"]], object)
    return told.assign(rank=pairs.thread.rank, module=modules[told["module"].to_numpy(np.int64)])


def _side(ops: Ops, place: int) -> dict[str, Any]:
    return {"time_ns": int(ops.start[place])}


def _tensor(ops: Ops, row: int, words: Words) -> dict[str, Any]:
    columns = ops.tensors
    return {
        **{name: words.known[name][columns[name][row]] for name in ("position", "shape", "dtype")},
        **{name: _plain(columns[name][row]) for name in _SHOWN},
        "hash": f"{int(columns['hash'][row]) & (1 << 64) - 1:016x}",
    }


def _plain(value: Any) -> Any:
    number = value.item()
    return json_number(number) if isinstance(number, float) and number == number else (
        None if isinstance(number, float) else number
    )  # fmt: skip


def _where(run: Run, rank: int, thread: str, place: int) -> str | None:
    """The program's line: of the operator, else of the one it is part of."""
    ops = run.events("op", rank, thread, columns=["stack", "depth"]).slice(0, place + 1)
    stacks, depths = ops["stack"].combine_chunks(), ops["depth"].to_numpy()
    depth = int(depths[place]) + 1
    for row in range(place, -1, -1):
        if depths[row] < depth:
            depth = int(depths[row])
            stack = stacks[row].as_py()
            if stack is not None:
                frames = frames_of(run, rank).get(stack, [])
                return frames[0].partition(" ")[0].rpartition("/")[2] if frames else None
            if depth == 0:
                break
    return None


def _alone(new: Ops, paired: Ints, place: int) -> Ints:
    alone = np.ones(len(new), bool)
    alone[paired] = False
    alone &= (new.step == new.step[place]) & (np.arange(len(new)) < place)
    return np.flatnonzero(alone).astype(np.int64)


def _reshaped(pairs: ComparedOps, alone: Ints, step: int, words: Words) -> str:
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
                f", the first of other shapes {words.known['name'][name]}: {sides[0]} in the base, "
                f"{sides[1]} in the run"
            )
    return ""


def _before(run: Run, first: First) -> str:
    told, last = first.told, int(first.alone[-1])
    rank, thread = told["rank"], told["thread"]
    name = run.events("op", rank, thread, columns=["name"])["name"][last].as_py()
    where = _where(run, rank, thread, last)
    return (
        f"before the first difference the run has operators of that step that the base has not: "
        f"{len(first.alone)}, the last {name}" + (f" at {where}" if where else "") + first.reshaped
    )


def _table(
    rank: int, thread: Thread, old: Ops, new: Ops, one: Ints, two: Ints, state: Any, rows: Ints,
    words: Words,
) -> pd.DataFrame:  # fmt: skip
    mine, theirs = one[rows], two[rows]
    place = new.owner[theirs]
    low, high = (np.asarray(side.tensors["mean"][at], np.float64)
                 for side, at in ((old, mine), (new, theirs)))  # fmt: skip
    text = {name: np.array(words.known[name], object) for name in ("name", "phase", "module")}
    positions = np.array(words.known["position"], object)
    return pd.DataFrame(
        {
            "kind": "tensor", "rank": rank, "thread": thread.name, "step": new.step[place],
            "name": text["name"][new.texts["name"][place]], "base": low, "run": high,
            "difference": high - low, "state": _STATES[state[rows]],
            "phase": text["phase"][new.texts["phase"][place]],
            "module": text["module"][new.texts["module"][place]],
            "position": positions[new.tensors["position"][theirs]],
            "thread_id": thread.thread, "time_ns": new.start[place],
        }
    )  # fmt: skip


def _origin(base: Run, run: Run, found: ValueDifferences, first: First) -> dict[str, Any]:
    """Where the first difference comes from.

    An operator that found something else than before (`read`: what no recorded operator wrote)
    took it from a collective, where another rank of it had parted before its own call or was not
    recorded, else from outside. One that found the same computed something else. Where the numbers
    of ranks differ, the share of the first rank that one side has not is what came.
    """
    told = first.told
    rank, tensors = told["rank"], told["run"]["tensors"]
    if base.world_size != run.world_size:  # what is compared then has been through one
        other = set(base.ranks) ^ set(run.ranks)
        return {"kind": "collective", "rank": min(other, default=rank)}
    if not any(tensor["position"].startswith("read") for tensor in tensors):
        return {"kind": "compute", "rank": rank}
    if not told["op"].startswith("c10d::"):
        source = _through_collective(base, run, found, told)
        if source is not None:
            return {"kind": "collective", "rank": source}
    return {"kind": "input", "rank": rank}


def _through_collective(
    base: Run, run: Run, found: ValueDifferences, told: dict[str, Any]
) -> int | None:
    """The rank that another value came from, by the last collective before with such a tensor."""
    shapes = {tensor["shape"] for tensor in told["run"]["tensors"]}
    calls = collective_calls(run)
    mine = calls[(calls["rank"] == told["rank"]) & (calls["start_ns"] < told["run"]["time_ns"])]
    for call in mine.iloc[::-1].itertuples():
        if call.step < told["step"] - 1:
            break
        if not any(shape in str(call.shapes) for shape in shapes):
            continue
        peers = [rank for rank in members(run).get(call.group, ()) if rank != told["rank"]]
        same = calls[(calls["group"] == call.group) & (calls["sequence"] == call.sequence)]
        begun = {int(r): int(t) for r, t in zip(same["rank"], same["start_ns"], strict=True)}
        parted = [
            (found.firsts[rank].when, rank)
            for rank in peers
            if rank in found.firsts and found.firsts[rank].when[1] <= begun.get(rank, -1) + _CALL_NS
        ]
        if parted:
            return min(parted)[1]
        unknown = [rank for rank in peers if rank not in run.ranks or rank not in base.ranks]
        if len(unknown) == 1:
            return unknown[0]
        return None
    return None


_CALL_NS = 1_000_000
"""What a rank gives to a collective is read as its call begins, by another clock reading."""
