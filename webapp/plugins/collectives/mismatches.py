"""Finds calls on which the ranks of a group disagree, by their sequence numbers.

Compared are the operation, the data type, the reduction, the root, and for operations that need it
the shape; of others it is compared where the call did not end, or where it ended on some ranks and
not on all. In an all-to-all, what one sends is compared with what another expects. The first
difference of each group is reported: after it everything is shifted. Of a send and the receive that
it meets the data type and the number of elements are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.collective_calls import (
    ambiguous,
    calls,
    collective_calls,
    exchanges,
    group_title,
)
from lanescope.webapp.analysis.findings import Finding, NotApplicable, NotRecorded, Severity
from lanescope.webapp.analysis.incomplete_collectives import incomplete_collectives
from lanescope.webapp.analysis.links import at_place, group_lane, timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_ranks
from lanescope.webapp.analysis.op_inputs import tensor_shapes
from lanescope.webapp.analysis.rank_state import rank_states
from lanescope.webapp.analysis.stack_frames import frame_text, frames_of, where_of
from lanescope.webapp.plugins.collectives.early_exits import SKIP_TOGETHER, Leaving, left_training
from lanescope.webapp.plugins.collectives.split_sizes import unlike_calls, unlike_parts
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

SAME_SHAPE = (
    "all_reduce",
    "all_reduce_coalesced",
    "broadcast",
    "reduce",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
)
"""Operations whose tensors have the same shape on all ranks; others allow uneven ones."""

ASPECTS = {
    "name": "operation",
    "reduce_op": "reduction",
    "root": "root",
    "dtypes": "data type",
    "shapes": "shape",
    "splits": "split sizes",
}
"""What is compared, in the order in which it is reported."""

_ADVICE = {
    "name": "Make the same calls in the same order on all ranks: look for a branch on the rank.",
    "reduce_op": "Pass the same reduction on all ranks.",
    "root": "Pass the same root on all ranks.",
    "dtypes": "Cast the tensors to one data type on all ranks.",
    "shapes": "Pass tensors of the same shape on all ranks: pad them, or exchange sizes first.",
    "splits": "Exchange the sizes of what each rank sends first, and expect as much.",
}


_LOOPED = (
    "The line reduces several tensors in turn, and a rank has others, or another order of them: go "
    "through the same ones in the same order on all ranks, with zeros where a gradient is None."
)


@dataclass(frozen=True)
class _Mismatch:
    """The first call of a group on which its ranks disagree."""

    group: str
    sequence: int
    aspect: str  # column of the collective table
    rows: pd.DataFrame  # of `calls`, one per rank

    @property
    def values(self) -> dict[int, Any]:
        """What each rank has."""
        return {int(row.rank): getattr(row, self.aspect) for row in self.rows.itertuples()}

    @property
    def evaluating(self) -> tuple[int, ...]:
        """Ranks that evaluate while others do something else, which is why they disagree."""
        alone = self.rows["phase"] == schema.PhaseKind.evaluation.name
        return tuple(sorted(map(int, self.rows.loc[alone & ~alone.all(), "rank"])))

    @property
    def is_exchange(self) -> bool:
        """Whether it is a send and its receive."""
        return list(self.rows["name"]) == ["send", "recv"]


def mismatches(run: Run) -> list[Finding]:
    """Returns findings of kind `collective_mismatch`. NotApplicable: there are too few."""
    need_ranks(run)
    if calls(run)["rank"].nunique() < 2:
        raise NotRecorded("record collective calls of two ranks or more")
    if run.imported and calls(run).groupby("group")["rank"].nunique().max() < 2:
        raise NotApplicable("not in imported traces without process groups")
    return [_finding(run, one) for one in (*first_mismatches(run), *unlike_exchanges(run))]


@lru_cache(maxsize=4)
def first_mismatches(run: Run) -> tuple[_Mismatch, ...]:
    """Returns per group the first call on which its ranks disagree."""
    rows = collective_calls(run)
    rows = rows[~rows["group"].isin(ambiguous(run))]
    keys = ["group", "sequence"]
    codes = rows[keys].copy()
    alike = [name for name in ASPECTS if name != "splits"]
    for name in alike:
        codes[name] = pd.factorize(rows[name])[0]
    stuck = pd.MultiIndex.from_tuples(_stuck(run, rows), names=keys)
    may_differ = ~rows["name"].isin(SAME_SHAPE) & ~pd.MultiIndex.from_frame(rows[keys]).isin(stuck)
    uneven = rows["splits"].str.len() > 0
    codes.loc[may_differ | uneven, "shapes"] = -1
    spread = codes.groupby(keys)[alike].agg(["min", "max"])
    odd = pd.Series(False, index=spread.index)
    for name in alike:
        odd |= spread[name, "min"] != spread[name, "max"]
    odd[unlike_calls(run, rows[uneven])] = True
    found = []
    for group, sequence in odd[odd].index.to_frame(index=False).groupby("group").min().itertuples():
        same = rows[(rows["group"] == group) & (rows["sequence"] == sequence)]
        aspect = next(name for name in (*alike, "splits") if same[name].nunique() > 1)
        if aspect == "shapes" and unlike_parts(run, same):
            aspect = "splits"
        if aspect == "dtypes" and same["dtypes"].str.count(" ").nunique() > 1:
            aspect = "shapes"  # of more tensors or fewer
        one = _Mismatch(str(group), int(sequence), aspect, same)
        if len({*one.values.values()}) > 1:  # else two jobs in one run differ, and no ranks
            found.append(one)
    return tuple(found)


@lru_cache(maxsize=4)
def ended_in(run: Run) -> frozenset[int]:
    """Returns ranks whose last call is one on which they disagree with others: they failed by
    it."""
    last = calls(run).groupby("rank").tail(1)
    failed = set()
    for one in (*first_mismatches(run), *unlike_exchanges(run)):
        mine = last[(last["group"] == one.group) & (last["sequence"] == one.sequence)]
        failed |= {int(row.rank) for row in mine.itertuples() if row.name in set(one.rows["name"])}
    return frozenset(failed)


_ONE_SIZE = ("all_gather", "gather", "scatter", "reduce_scatter")
"""Operations with lists of tensors whose sizes have to agree, unless a backend allows for uneven
ones: then the call ends."""


def _stuck(run: Run, rows: pd.DataFrame) -> list[tuple[str, int]]:
    """Group and number of the calls that all members made and that did not end; and of those in
    which a rank crashed (gloo does), or was lost, while others were done with them."""
    whole = [wait for wait in incomplete_collectives(run) if not wait.missing]
    own = rows[rows["name"].isin(_ONE_SIZE)]
    done = own.groupby(["group", "sequence"], observed=True)["done_ns"].agg(["min", "max"])
    lost = done.index[(done["min"] < 0) & (done["max"] >= 0)]
    return [*((wait.group, wait.sequence) for wait in whole), *lost]


@lru_cache(maxsize=4)
def unlike_exchanges(run: Run) -> tuple[_Mismatch, ...]:
    """Returns per pair of ranks the first send that meets a receive of something else.

    Tags may change the order in which they meet, so nothing is said where what was sent is in all
    what was received; nor, where one has more calls than the other, of those that went well.
    """
    found = []
    for one in exchanges(run):
        met = min(len(one.sends), len(one.receives))
        sides = [side.iloc[:met] for side in (one.sends, one.receives)]
        kinds = [
            list(zip(side["dtypes"], map(_total, side["shapes"]), strict=True)) for side in sides
        ]
        if Counter(kinds[0]) == Counter(kinds[1]):
            continue
        k = next(k for k, (sent, taken) in enumerate(zip(*kinds, strict=True)) if sent != taken)
        rows = pd.concat([side.iloc[[k]] for side in sides])
        if len(one.sends) != len(one.receives) and (rows["done_ns"] >= 0).all():
            continue
        aspect = "dtypes" if kinds[0][k][0] != kinds[1][k][0] else "shapes"
        found.append(_Mismatch(one.group, int(rows["sequence"].iloc[0]), aspect, rows))
    return tuple(found)


def _total(shapes: str) -> int:
    return sum(_elements(shapes))


def _finding(run: Run, one: _Mismatch) -> Finding:
    values = one.values
    # What most ranks have is the norm; where as many have either, what the lowest rank has.
    ordered = [values[rank] for rank in sorted(values)]
    norm = Counter(ordered).most_common(1)[0][0]
    odd = one.evaluating or tuple(rank for rank in sorted(values) if values[rank] != norm)
    odd = (_alone_there(run, one) if 2 * len(odd) == len(values) else ()) or odd
    leaving = _leaving(run, one)
    if leaving is not None and {*leaving.ranks} & {*values} and not {*leaving.ranks} >= {*values}:
        odd = tuple(rank for rank in leaving.ranks if rank in values)
    first = one.rows[one.rows["rank"].isin(odd)].iloc[0]
    rank = int(first["rank"])
    known = rank_states(run)
    start = int(one.rows["start_ns"].min())
    wheres = {
        str(int(row.rank)): where_of(run, int(row.rank), int(row.stack))
        for row in one.rows.itertuples()
    }
    return Finding(
        kind="collective_mismatch",
        severity=_severity(one),
        title=_title_of_leaving(run, one, odd, wheres) or _title(run, one, wheres),
        rank=rank,
        ranks=tuple(sorted(values)),
        thread=str(first["thread"]),
        step=int(first["step"]),
        time_ns=start,
        where=wheres[str(rank)],
        evidence={
            "group": one.group,
            "sequence": one.sequence,
            "op": {
                str(int(rank)): str(name)
                for rank, name in zip(one.rows["rank"], one.rows["name"], strict=True)
            },
            "waiting": [],
            "missing": [
                {"rank": r, "doing": known[r].activity, "where": wheres[str(r)]} for r in odd
            ],
            "differs": ASPECTS[one.aspect],
            "values": {str(r): value for r, value in values.items()},
            "called_at": wheres,
        },
        link=timeline_address(
            start,
            int(one.rows["start_ns"].max()) + 1000,
            run.duration_ns,
            (group_lane(rank, one.group), int(first["start_ns"])),
        ),
    )


def _alone_there(run: Run, one: _Mismatch) -> tuple[int, ...]:
    """Ranks that call from a line from which no other rank ever called, while others do not."""
    calls = collective_calls(run)
    stacks = calls[calls["group"] == one.group].groupby("rank")["stack"].unique()
    lines = {rank: {where_of(run, int(rank), int(s)) for s in own} for rank, own in stacks.items()}
    alone = []
    for row in one.rows.itertuples():
        where = where_of(run, int(row.rank), int(row.stack))
        if all(where not in own for rank, own in lines.items() if rank != row.rank):
            alone.append(int(row.rank))
    return tuple(alone) if len(alone) < len(one.rows) else ()


def _severity(one: _Mismatch) -> Severity:
    """Shapes of the same size may be meant, and so may room for more than is sent; everything else
    cannot work."""
    if one.aspect != "shapes":
        return "error"
    if one.is_exchange:
        sent, taken = (_total(shape) for shape in one.values.values())
        return "warning" if taken > sent and (one.rows["done_ns"] >= 0).all() else "error"
    sizes = {tuple(_elements(shape)) for shape in one.values.values()}
    return "error" if len(sizes) > 1 else "warning"


def _elements(shapes: str) -> list[int]:
    return [prod(shape) for shape in tensor_shapes(shapes)]


def _leaving(run: Run, one: _Mismatch) -> Leaving | None:
    """Which ranks left the training loop; None where all call from the same lines."""
    stacks = ((int(row.rank), int(row.stack)) for row in one.rows.itertuples())
    lines = {tuple(map(frame_text, frames_of(run, *stack))) for stack in stacks}
    return None if len(lines) == 1 and lines != {()} else left_training(run)


def _title_of_leaving(
    run: Run, one: _Mismatch, odd: tuple[int, ...], wheres: dict[str, str | None]
) -> str:
    """That ranks left the training loop, where that is why they disagree; else nothing."""
    leaving = _leaving(run, one)
    if leaving is None or not {*odd} <= {*leaving.ranks} or one.is_exchange:
        return ""
    sides = []
    for rank in (odd[0], next(rank for rank in one.values if rank not in odd)):
        row = one.rows[one.rows["rank"] == rank].iloc[0]
        if row["step"] <= leaving.step:
            return ""
        place = f" at {wheres[str(rank)]}" if wheres[str(rank)] else ""
        sides.append((rank, f"{row['name']}{place}", int(row["step"])))
    (_, theirs, _), (rank, ours, step) = sides
    words, advice = f"{leaving.words(run)} and called {theirs}", leaving.advice
    *_, before, last = 0, 0, *_steps_between(run, one.rows[one.rows["rank"] == odd[0]].iloc[0])
    if last >= before > 0 and leaving.skipped is None:
        return ""  # it makes that call in the loop
    if last < before and leaving.skipped is None and not leaving.ran_out:
        who, skipped = units.sentence(ranks_in(run, odd)), units.counted(before - last, "step")
        words = (
            f"{who} skipped {skipped}: {theirs} was called after {units.counted(last, 'step')}, "
            f"and after {units.count(before)} the time before"
        )
        advice = SKIP_TOGETHER
    return (
        f"{words}, while rank {rank} trains on and calls {ours} in step {step} (#{one.sequence} of "
        f"{group_title(run, one.group)}). {advice}"
    )


def _looped(run: Run, one: _Mismatch) -> bool:
    """Whether a rank has reduced tensors of several shapes from one line, as a loop over gradients
    does."""
    rows, calls = one.rows, collective_calls(run)
    same = (calls["group"] == one.group) & (calls["sequence"] <= one.sequence)
    keys = ["rank", "stack", "name"]
    own = calls[same & calls["name"].isin(SAME_SHAPE)].merge(rows[keys], on=keys)
    return bool((own.groupby("rank")["shapes"].nunique() > 1).any())


def _steps_between(run: Run, call: Any) -> list[int]:
    """Returns how many steps a rank made before each call from the same line, up to `call`."""
    calls = collective_calls(run)
    same = (calls["rank"] == call["rank"]) & (calls["stack"] == call["stack"])
    steps = calls.loc[same & (calls["start_ns"] <= call["start_ns"]), "step"]
    return np.diff(np.unique([0, *steps])).tolist() if call["stack"] >= 0 else []


def _advice(run: Run, one: _Mismatch) -> str:
    """What to do."""
    ranks = one.evaluating
    if not ranks:
        return _LOOPED if one.aspect == "shapes" and _looped(run, one) else _ADVICE[one.aspect]
    who = units.sentence(ranks_in(run, ranks))
    return (
        f"{who} {'evaluates' if len(ranks) == 1 else 'evaluate'} alone: evaluate on all ranks, or "
        "call the model within DistributedDataParallel (model.module), whose forward calls no "
        "collective."
    )


def _title(run: Run, one: _Mismatch, wheres: dict[str, str | None]) -> str:
    values = one.values

    def at(ranks: Iterable[int]) -> str:
        """Their line, where others call at another one."""
        lines = {wheres[str(rank)] for rank in ranks}
        own = next(iter(lines)) if len(lines) == 1 < len({*wheres.values()}) else None
        return at_place(own)

    place = f"at #{one.sequence} of {group_title(run, one.group)}"
    if one.is_exchange:
        (sender, sent), (receiver, taken) = values.items()
        return (
            f"{units.sentence(ranks_in(run, (sender,)))} sends {sent}, which "
            f"{ranks_in(run, (receiver,))} receives as {taken}: "
            f"the {ASPECTS[one.aspect]} of send and receive #{one.sequence} of "
            f"{group_title(run, one.group)} differs. {_ADVICE[one.aspect]}"
        )
    if one.aspect == "name" and "barrier" in values.values():
        alone = tuple(sorted(rank for rank, name in values.items() if name == "barrier"))
        others = {rank: name for rank, name in values.items() if name != "barrier"}
        who, calls = ranks_in(run, others), "calls" if len(others) == 1 else "call"
        called = ", ".join(sorted(set(others.values())))
        only = "calls" if len(alone) == 1 else "call"
        return (
            f"Only {ranks_in(run, alone)} {only} barrier{at(alone)}: {who} {calls} "
            f"{called}{at(others)} (#{one.sequence} of {group_title(run, one.group)}). "
            f"{_advice(run, one)}"
        )
    if one.aspect == "splits":
        return (
            f"Ranks disagree on the split sizes of {one.rows['name'].iloc[0]} {place}: "
            f"{unlike_parts(run, one.rows)}. {_ADVICE['splits']}"
        )
    by_value: dict[str, list[int]] = {}
    for rank, value in sorted(values.items()):
        by_value.setdefault(str(value), []).append(rank)
    said = ", ".join(
        f"{value or 'none'} on {ranks_in(run, r)}{at(r)}" for value, r in by_value.items()
    )
    call = "" if one.aspect == "name" else f" of {one.rows['name'].iloc[0]}"
    what = ASPECTS[one.aspect]
    return f"Ranks disagree on the {what}{call} {place}: {said}. {_advice(run, one)}"
