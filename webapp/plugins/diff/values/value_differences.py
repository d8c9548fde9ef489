"""Which operators of two runs have other values, and how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.op_inputs import OperatorKey
from lanescope.webapp.analysis.sequence_alignment import by_occurrence, pools, thread_pairs
from lanescope.webapp.analysis.tensor_fingerprints import Ops, Words, read_ops
from lanescope.webapp.plugins.diff.grouped_rows import grouped_rows
from lanescope.webapp.plugins.diff.values.closeness import Mode
from lanescope.webapp.plugins.diff.values.compared_ops import ComparedOps, compared_ops
from lanescope.webapp.plugins.diff.values.first_difference import First, called, explained, first_of
from lanescope.webapp.plugins.diff.values.noise import Floor
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run, Thread
from lanescope.webapp.runs.run_warnings import ranks_named
from lanescope.webapp.runs.types import Int64Array

_KEPT = 100_000
"""Differing tensors of a thread that are kept, the earliest; all are counted."""

_STATES = np.array(["identical", "within_tolerance", "different"], object)


@dataclass
class ValueDifferences:
    """What came of comparing all tensors of all operators that both runs have."""

    compared: int = 0  # operators on both sides
    tensors: int = 0  # tensors on both sides
    only_in_base: Counter[str] = field(default_factory=Counter)  # operators by name
    only_in_run: Counter[str] = field(default_factory=Counter)
    different: int = 0  # tensors
    within_tolerance: int = 0
    left_out: int = 0  # tensors that both sides have and that say nothing, see `world_sizes`
    # rank, side and operator of each tensor made of uninitialised memory
    unset: list[tuple[int, str, OperatorKey]] = field(default_factory=list)
    tables: list[pd.DataFrame] = field(default_factory=list)
    firsts: dict[int, First] = field(default_factory=dict)  # rank -> earliest of the worst state
    names: dict[tuple[int, str], str] = field(default_factory=dict)  # of base's threads, in run
    notes: list[str] = field(default_factory=list)  # what could not be compared, and hints
    growth: list[pd.DataFrame] = field(default_factory=list)  # of each thread, see `grown`

    def grown(self) -> pd.DataFrame:
        """Returns how the difference grows: one row per rank, step and module that has tensors.

        tensors, differing (of these, not with equal bits), largest (the greatest of
        `closeness.relative_differences`, may be infinite) and time_ns, the first operator.
        """
        keys = ["rank", "step", "module"]
        if not self.growth:
            return pd.DataFrame(columns=[*keys, "tensors", "differing", "largest", "time_ns"])
        return (
            pd.concat(self.growth)
            .groupby(keys, as_index=False, sort=True)
            .agg(
                tensors=("tensors", "sum"),
                differing=("differing", "sum"),
                largest=("largest", "max"),
                time_ns=("time_ns", "min"),
            )
        )

    def add(self, other: ValueDifferences) -> None:
        """Adds what was found of other ranks."""
        for each in fields(self):
            ours, theirs = getattr(self, each.name), getattr(other, each.name)
            if isinstance(ours, dict) and not isinstance(ours, Counter):
                ours.update(theirs)
            else:
                setattr(self, each.name, ours + theirs)

    @property
    def first(self) -> First | None:
        """The earliest of the worst state of all ranks, by step and then by instant."""
        return min(self.firsts.values(), key=lambda first: first.order, default=None)


def value_differences(base: Run, run: Run, parts: Iterable[ValueDifferences]) -> ValueDifferences:
    """Returns all that differs between two runs of level numerics: `parts` is what `of_rank` found
    of each rank, in order."""
    found = ValueDifferences()
    for name, one, other in (("baseline", base, run), ("run", run, base)):
        ranks = sorted(set(one.ranks) - set(other.ranks))
        if ranks:
            found.notes.append(f"only in the {name}: {ranks_named(ranks)}")
    for part in parts:
        found.add(part)
    if found.first is not None:
        found.notes += explained(base, run, found.first, found.firsts)
    if found.unset:
        found.notes.append(_unset_words(base, run, found.unset))
    return found


def of_rank(
    base: Run, run: Run, rank: int, mode: Mode, floor: Floor | None = None
) -> ValueDifferences:
    """Compares one rank of two runs thread by thread, so as to hold one of each at a time.

    Tensors no further apart than `floor` are within tolerance.
    """
    found = ValueDifferences()
    words = Words()
    counted = pools(base, rank) | pools(run, rank)
    for key in sorted(counted):
        _count_pool(found, base, run, key, words)
    for mine, theirs in thread_pairs(base, run, rank):
        if any(t is not None and (t.rank, t.kind, t.name) in counted for t in (mine, theirs)):
            continue
        if mine is not None and theirs is not None:
            _compare_thread(found, base, run, mine, theirs, words, mode, floor)
        elif mine is not None:
            found.only_in_base += _lone_thread(base, mine)
        elif theirs is not None:
            found.only_in_run += _lone_thread(run, theirs)
    return found


def _unset_words(base: Run, run: Run, unset: list[tuple[int, str, OperatorKey]]) -> str:
    rank, side, place = min(unset, key=lambda one: one[2][1])
    return (
        f"not compared: {units.count(len(unset))} tensors of uninitialised memory "
        f"(torch.empty), the first by {called(base if side == 'base' else run, rank, place)}"
    )


def _count_pool(
    found: ValueDifferences, base: Run, run: Run, key: tuple[int, str, str], words: Words
) -> None:
    """Counts operators of threads that share their work by chance (Gloo's), together.

    In which step a piece is done is chance as well, and what it finds may be on its way still: what
    was given to it, and what came of it, is compared where the program has it. Values count where
    all are equal, whichever thread had them.
    """
    sides, names, valued, tensors = [], [], [], 0
    for one in (base, run):
        threads = [t for t in one.threads if (t.rank, t.kind, t.name) == key]
        ops = [read_ops(one, t.rank, t.thread, words) for t in threads]
        codes = [np.empty(0, np.uint64), *(each.content[np.unique(each.owner)] for each in ops)]
        valued.append(np.sort(np.concatenate(codes)))
        tensors += sum(len(each.owner) for each in ops)
        sides.append(np.concatenate([np.empty(0, np.uint64), *(each.signature for each in ops)]))
        names.append(np.concatenate([np.empty(0, np.int64), *(each.texts["name"] for each in ops)]))
    pairs = by_occurrence(*sides)
    if np.array_equal(valued[0], valued[1]):
        found.tensors += tensors // 2
    found.compared += len(pairs[0])
    found.only_in_base += _unpaired(names[0], pairs[0], words)
    found.only_in_run += _unpaired(names[1], pairs[1], words)


def _unpaired(names: Int64Array, paired: Int64Array, words: Words) -> Counter[str]:
    """How many operators of each name are not among those at the positions `paired`."""
    counts = np.bincount(np.delete(names, paired))
    return _operators_only({words.known["name"][k]: int(counts[k]) for k in np.flatnonzero(counts)})


def _operators_only(counts: dict[str, int]) -> Counter[str]:
    """Without accesses that are noted by chance, and are no operators."""
    return Counter({name: n for name, n in counts.items() if name not in schema.NOTED_ACCESSES})


def _lone_thread(run: Run, thread: Thread) -> Counter[str]:
    names = run.events("op", thread.rank, thread.thread, columns=["name"])["name"]
    return _operators_only(Counter(names.to_pylist()))


def _compare_thread(
    found: ValueDifferences,
    base: Run,
    run: Run,
    mine: Thread,
    theirs: Thread,
    words: Words,
    mode: Mode,
    floor: Floor | None,
) -> None:
    rank = mine.rank
    found.names[rank, mine.thread] = theirs.name
    pairs = compared_ops(base, run, mine, theirs, words, mode, floor)
    old, new, right, one, two = pairs.old, pairs.new, pairs.right, pairs.one, pairs.two
    state = pairs.state
    found.compared += len(right)
    found.only_in_base += _unpaired(old.texts["name"], pairs.left, words)
    found.only_in_run += _unpaired(new.texts["name"], right, words)
    found.tensors += len(state)
    found.left_out += pairs.left_out
    for side, thread, ops in (("base", mine, old), ("run", theirs, new)):
        places = zip(ops.start[ops.unset].tolist(), ops.depth[ops.unset].tolist(), strict=True)
        found.unset += [(rank, side, (thread.thread, *place)) for place in places]
    found.different += int((state == 2).sum())
    found.within_tolerance += int((state == 1).sum())
    found.growth.append(_growth(pairs, words))
    rows = np.flatnonzero(state)
    if not len(rows):
        return
    owner = new.owner[two[rows]]
    rows = rows[np.lexsort((new.start[owner], new.step[owner]))]
    first = first_of(pairs, rows, words)
    if rank not in found.firsts or first.order < found.firsts[rank].order:
        found.firsts[rank] = first
    found.tables.append(_table(rank, theirs, old, new, one, two, state, rows[:_KEPT], words))


def _growth(pairs: ComparedOps, words: Words) -> pd.DataFrame:
    owner = pairs.new.owner[pairs.two]
    step, module = pairs.new.step[owner], pairs.new.texts["module"][owner]
    grouped = grouped_rows([step, module])
    largest = np.zeros(grouped.size)
    np.fmax.at(largest, grouped.group, pairs.apart)
    time_ns = np.full(grouped.size, np.iinfo(np.int64).max)
    np.minimum.at(time_ns, grouped.group, pairs.new.start[owner])
    modules = np.array([text or "" for text in words.known["module"]], object)
    return pd.DataFrame(
        {
            "step": step[grouped.row],
            "module": modules[module[grouped.row]],
            "tensors": grouped.counts,
            "differing": grouped.sums(pairs.state > 0),
            "largest": largest[grouped.present],
            "time_ns": time_ns[grouped.present],
            "rank": pairs.thread.rank,
        }
    )


def _table(
    rank: int,
    thread: Thread,
    old: Ops,
    new: Ops,
    one: Int64Array,
    two: Int64Array,
    state: Any,
    rows: Int64Array,
    words: Words,
) -> pd.DataFrame:
    mine, theirs = one[rows], two[rows]
    place = new.owner[theirs]
    low, high = (
        np.asarray(side.tensors["mean"][at], np.float64)
        for side, at in ((old, mine), (new, theirs))
    )
    text = {name: np.array(words.known[name], object) for name in ("name", "phase", "module")}
    positions = np.array(words.known["position"], object)
    return pd.DataFrame(
        {
            "kind": "tensor",
            "rank": rank,
            "thread": thread.name,
            "step": new.step[place],
            "name": text["name"][new.texts["name"][place]],
            "base": low,
            "run": high,
            "difference": high - low,
            "state": _STATES[state[rows]],
            "phase": text["phase"][new.texts["phase"][place]],
            "module": text["module"][new.texts["module"][place]],
            "position": positions[new.tensors["position"][theirs]],
            "thread_id": thread.thread,
            "time_ns": new.start[place],
        }
    )
