"""Which ranks are data-parallel replicas, by what was hashed and reduced."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.access_site import phase_names
from lanescope.webapp.analysis.arrow_columns import (
    frame_ends_ns,
    phases_of_kind,
    stack_of,
    to_frame,
)
from lanescope.webapp.analysis.collective_calls import (
    collective_calls,
    group_members,
    point_to_point_calls,
)
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.parameter_history import wrapped
from lanescope.webapp.analysis.process_exits import of_last_attempt
from lanescope.webapp.analysis.stack_frames import own_place, place_before
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray

EQUAL_SHARE = 0.5

_ITEM_BYTES = {"float64": 8, "float16": 2, "bfloat16": 2, "complex64": 8, "complex128": 16}

REDUCES = ("all_reduce", "all_reduce_coalesced", "reduce_scatter", "reduce_scatter_tensor")

_FORWARD, _BACKWARD, _OPTIMIZER = (
    kind.name
    for kind in (schema.PhaseKind.forward, schema.PhaseKind.backward, schema.PhaseKind.optimizer)
)

_ONE_FACTOR, _OTHER_FACTOR = 1e-5, 1e-3
"""Relative differences of norms: at most where one factor scaled them, at least of two factors."""

_MIN_SCALED = 2
"""Gradients that one factor scaled."""

_LOOSE = re.compile(r"(\w+#\d+|[A-Z]\w*)?")
"""Prefix of the parameters of a layer that is called on its own: that of the first is empty."""


@lru_cache(maxsize=4)
def replicas(run: Run) -> dict[str, tuple[int, ...]]:
    """Returns groups whose recorded ranks are data-parallel replicas, see `consistency`."""
    found: dict[str, tuple[int, ...]] = {}
    for group, ranks in sorted(group_members(run).items(), key=lambda item: -len(item[1])):
        present = tuple(sorted(rank for rank in ranks if rank in run.ranks))
        if len(present) < 2 or present in found.values() or not _synchronises(run, group, present):
            continue
        common = common_hashes(hashes(run), present, "param_hash")
        if common.empty:
            continue
        sizes = common.groupby("parameter", sort=False)["numel"].first()
        equal = sizes[sizes.index.isin(meant_equal(run, group, present))].sum()
        if equal >= EQUAL_SHARE * sizes.sum():
            found[group] = present
    return found


@lru_cache(maxsize=8)
def meant_equal(run: Run, group: str, ranks: tuple[int, ...]) -> set[str]:
    """Returns the parameters that are equal when first hashed, or whose gradients are, once
    reduced. Callers must not change them."""
    rows = hashes(run)
    found = began_equal(common_hashes(rows, ranks, "param_hash"))
    # Zeros are alike on all shards.
    graded = common_hashes(rows[rows["norm"] > 0], ranks, "grad_hash")
    if not graded.empty:
        step = int(graded.index.get_level_values("step")[0])
        if was_reduced(run, group, ranks[0], step):
            found |= began_equal(graded)
    return found


def began_equal(common: pd.DataFrame) -> set[str]:
    """Returns the parameters of `common_hashes` that are equal when they are first hashed."""
    known = common.groupby("parameter", sort=False)["equal"].first()
    return set(known.index[known])


@lru_cache(maxsize=4)
def hashes(run: Run) -> pd.DataFrame:
    """Returns gradient rows of steps at which hashes were taken, in the order of recording."""
    columns = [
        "rank",
        "thread",
        "step",
        "time_ns",
        "parameter",
        "norm",
        "numel",
        "dtype",
        "grad_hash",
        "param_hash",
    ]
    events = run.events("gradient", columns=columns)
    # 64-bit hashes do not fit float64, which is what pandas makes of integers with nulls.
    frame = to_frame(events.drop_columns(["grad_hash", "param_hash"]))
    for name in ("grad_hash", "param_hash"):
        frame[name] = pd.array(events[name].to_pylist(), dtype="Int64")
    frame = of_last_attempt(run, frame)
    return _named_alike(frame[frame["param_hash"].notna() | frame["grad_hash"].notna()])


def _named_alike(rows: pd.DataFrame) -> pd.DataFrame:
    """Gives layers the names that they have on the first rank: those without a model are numbered
    as they are called, which ranks may do in different orders. A layer is known by its first
    values."""
    known = rows[rows["param_hash"].notna()].drop_duplicates(["rank", "parameter"])
    known = known[~known.duplicated(["rank", "param_hash"], keep=False)]
    if known.empty:
        return rows
    parts = known["parameter"].str.rpartition(".")
    known = known.assign(layer=parts[0], own=parts[2])
    first = known[known["rank"] == known["rank"].min()]
    pairs = known.merge(first, on=["param_hash", "own"], suffixes=("", "_first"))
    pairs = pairs[pairs["layer"] != pairs["layer_first"]]
    for rank, moved in pairs.groupby("rank"):
        names = dict(zip(moved["layer"], moved["layer_first"], strict=True))
        # Within a model, equal values under another name are no other name.
        if {*names} == {*names.values()} and all(map(_LOOSE.fullmatch, names)):
            own = rows["rank"] == rank
            parts = rows.loc[own, "parameter"].str.rpartition(".")
            layers = parts[0].replace(names)
            renamed = layers + layers.ne("").map({True: ".", False: ""}) + parts[2]
            rows = rows.assign(parameter=rows["parameter"].mask(own, renamed))
    return rows


def common_hashes(rows: pd.DataFrame, ranks: tuple[int, ...], column: str) -> pd.DataFrame:
    """Returns per step and parameter that all ranks hashed: numel, and whether hashes are equal.

    `rows` are those of `hashes`, or some of them.
    """
    known = rows[rows["rank"].isin(ranks) & rows[column].notna()]
    groups = known.groupby(["step", "parameter"], sort=False)
    table = groups.agg(
        numel=("numel", "first"), sizes=("numel", "nunique"), ranks=("rank", "nunique")
    )
    table["equal"] = groups[column].nunique() == 1
    return table[(table["ranks"] == len(ranks)) & (table["sizes"] == 1)]


def _synchronises(run: Run, group: str, ranks: tuple[int, ...]) -> bool:
    rows = hashes(run)
    mine = rows[rows["rank"] == ranks[0]]
    if mine.empty:
        return False
    calls = collective_calls(run)
    calls = calls[(calls["group"] == group) & (calls["rank"] == ranks[0])]
    early = calls[(calls["name"] == "broadcast") & (calls["start_ns"] < mine["time_ns"].min())]
    reduced = gradient_reductions(run, group, ranks[0])
    reduced = reduced[~_of_activations(run, ranks[0], reduced)].groupby("step")["bytes"].sum()
    moved = max(int(early["bytes"].sum()), int(reduced.max()) if len(reduced) else 0)
    if all(wrapped(run).get(rank) == len(group_members(run)[group]) for rank in ranks):
        return True
    return moved >= EQUAL_SHARE * bytes_of_step(run, ranks[0])


def _of_activations(run: Run, rank: int, calls: pd.DataFrame) -> BoolArray:
    """Whether calls come after a forward and before its backward."""
    before, after = _beside(run, rank, calls)
    between: BoolArray = (before == _FORWARD) & (after == _BACKWARD)
    return between


def _beside(run: Run, rank: int, calls: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Kinds of the last forward, backward or optimizer's step that began before each call, and of
    the next one; empty texts at both ends."""
    phases = to_frame(run.events("phase", rank, columns=["start_ns", "kind"]))
    phases = phases[phases["kind"].isin([_FORWARD, _BACKWARD, _OPTIMIZER])]
    phases = phases.sort_values("start_ns")
    kinds = np.array(["", *phases["kind"].astype("str"), ""])
    after = np.searchsorted(phases["start_ns"], calls["start_ns"])
    return kinds[after], kinds[after + 1]


def bytes_of_step(run: Run, rank: int) -> float:
    """Returns bytes of all parameters of a rank that were hashed at its first step."""
    rows = hashes(run)
    rows = rows[rows["rank"] == rank]
    first = rows[rows["step"] == rows["step"].min()]
    return float((first["dtype"].map(_ITEM_BYTES).fillna(4) * first["numel"]).sum())


def gradient_reductions(run: Run, group: str, rank: int) -> pd.DataFrame:
    """Returns collective calls of a rank in a group that reduce gradients."""
    return group_calls(run, group, rank, REDUCES)


def group_calls(run: Run, group: str, rank: int, names: tuple[str, ...]) -> pd.DataFrame:
    """Returns collective calls of a rank in a group that have one of these names."""
    calls = collective_calls(run)
    same = (calls["group"] == group) & (calls["rank"] == rank)
    return calls[same & calls["name"].isin(names)]


def hand_round(run: Run, ranks: tuple[int, ...]) -> bool:
    """Returns True if a rank gets half of the parameters' bytes from another one of them between a
    step of its optimizer and the next forward: models that come near to each other by and by."""
    rank = ranks[0]
    own = point_to_point_calls(run)
    own = own[(own["rank"] == rank) & (own["name"] == "recv") & own["peer"].isin(ranks)]
    before, _ = _beside(run, rank, own)
    got = own[before == _OPTIMIZER].groupby("step")["bytes"].sum()
    return bool((got >= EQUAL_SHARE * bytes_of_step(run, rank)).any())


def was_reduced(run: Run, group: str, rank: int, step: int) -> bool:
    """Returns True if the rank reduced gradients in the group at this step."""
    return bool((gradient_reductions(run, group, rank)["step"] == step).any())


def scaled_apart(run: Run, rows: pd.DataFrame) -> tuple[str, str | None] | None:
    """Returns what to say where gradients of the ranks differ by one factor alone, and the line
    that scales them.

    `rows`: rank, thread, time_ns, parameter and norm of gradients of a step that differ.
    """
    norms = rows.pivot_table(index="parameter", columns="rank", values="norm").dropna()
    norms = norms[(norms > 0).all(axis=1)]
    factors = norms.div(norms.max(axis=1), axis=0)
    low, high = factors.min(), factors.max()
    if len(norms) < _MIN_SCALED or (high - low > _ONE_FACTOR * high).any():
        return None
    if high.max() - low.min() < _OTHER_FACTOR:
        return None
    first = rows.sort_values("time_ns").iloc[0]
    where = place_before(run, int(first["rank"]), str(first["thread"]), int(first["time_ns"]))
    said = ", ".join(f"{units.number(factor)} on rank {rank}" for rank, factor in high.items())
    return (
        f"Gradients of the ranks differ by a factor alone ({said}): each rank scales them by a "
        f"number of its own{at_place(where)}, as where it clips by the norm of what it holds, or "
        "divides by its own count. Work the factor out together: all_reduce the sum of squares of "
        "the parts, or the count.",
        where,
    )


def changed_apart(
    run: Run, group: str, rows: pd.DataFrame, name: str
) -> tuple[str, str | None] | None:
    """Returns what to say where a part of the ranks changes gradients between the last reduction of
    a step and its optimizer, and the first line that does.

    `rows`: rank and time_ns of gradients of the step that differ; `name`: the first of them.
    """
    lines: dict[str, dict[int, Any]] = defaultdict(dict)
    until = rows.groupby("rank")["time_ns"].min()
    for rank, instant in until.items():
        for row in _changes(run, group, int(rank), int(instant)).itertuples():
            line = own_place(run, int(rank), stack_of(row, "stack"))
            if line is not None:
                lines[line].setdefault(int(rank), row)
    alone = {line: own for line, own in lines.items() if len(own) < len(until)}
    if not alone:
        return None
    where, own = min(alone.items(), key=lambda one: min(row.start_ns for row in one[1].values()))
    verb, op = "changes" if len(own) == 1 else "change", next(iter(own.values())).name
    return (
        f"{units.sentence(ranks_in(run, tuple(own)))} alone {verb} gradients at {where} ({op}), "
        f"after they were reduced; {name} is the first that differs. Do so on all ranks, or before "
        "backward reduces them.",
        where,
    )


def _changes(run: Run, group: str, rank: int, until: int) -> pd.DataFrame:
    """Operators of the program that write, since the last call of the group before `until` (ns), to
    what the optimizer then reads: name, stack and start_ns."""
    keys, calls = ["thread", "start_ns", "depth"], collective_calls(run)
    before = (calls["group"] == group) & (calls["rank"] == rank) & (calls["start_ns"] < until)
    steps = phases_of_kind(run, schema.PhaseKind.optimizer, rank)
    ends = frame_ends_ns(steps, run.duration_ns)
    if not before.any() or not (ends > until).any():  # a rank that ended within the step
        return pd.DataFrame(columns=[*keys, "name", "stack"])
    window = int(calls.loc[before, "start_ns"].max()), int(ends[ends > until].min())
    touched = to_frame(
        run.events("access", rank, columns=[*keys, "storage", "write"], window=window)
    )
    read = touched.loc[~touched["write"] & (touched["start_ns"] >= until), "storage"]
    touched = touched[touched["write"] & touched["storage"].isin(read)]
    columns = [*keys, "name", "stack", "phase"]
    ops = to_frame(run.events("op", rank, columns=columns, window=(window[0], until)))
    names = phase_names(run, rank)
    updates = {of for kind in (_BACKWARD, _OPTIMIZER) for of in names.get(kind, ())}
    return touched.merge(ops[~ops["phase"].isin(updates)], on=keys).sort_values("start_ns")
