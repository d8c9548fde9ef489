"""Why replicas part: parameters that a wrapper leaves out, settings that differ by rank, and what
ranks do apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import filterfalse, permutations
from typing import Any

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.names import (
    LEFT_OUT,
    LEFT_OUT_CAUSES,
    SETTINGS,
)
from lanescope.webapp.analysis.access_site import phase_names, storage_names
from lanescope.webapp.analysis.arrow_columns import (
    frame_ends_ns,
    phases_of_kind,
    stack_of,
    to_frame,
)
from lanescope.webapp.analysis.collective_calls import collective_calls, group_members
from lanescope.webapp.analysis.links import and_more, at_place
from lanescope.webapp.analysis.parameter_history import (
    gradient_rows,
    logged,
    sharded_names,
    wrapped,
)
from lanescope.webapp.analysis.stack_frames import first_place, own_place
from lanescope.webapp.plugins.learning.replicas import hashes
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_OF_RANKS = ("seed", "threads", "environment ")
"""Beginnings of settings that may differ by rank."""


_JOINS = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "all_to_all")
_MIN_STEPS = 3

_FORWARD = schema.PhaseKind.forward.name

_UPDATES = (schema.PhaseKind.optimizer.name, schema.PhaseKind.backward.name)
"""What updates parameters on all ranks; optimizers may do so within backward."""

_MIN_CROSSED = 2
"""Gradients that another rank has for other parameters."""


@dataclass(frozen=True)
class Cause:
    """Why replicas part, and what to do."""

    words: str
    where: str | None = None
    parameters: tuple[str, ...] = ()  # that no rank synchronises


def left_out(run: Run, ranks: tuple[int, ...], cause: str) -> list[str]:
    """Returns trained parameters that the wrapper of a model leaves out, by a word of
    LEFT_OUT_CAUSES."""
    rows = logged(run, None, prefix=LEFT_OUT)
    rows = rows[rows["rank"].isin(ranks) & (rows["value"] == LEFT_OUT_CAUSES.index(cause))]
    return list(dict.fromkeys(rows.sort_values("time_ns")["name"]))


_NOT_REDUCED = {
    "unknown": "DistributedDataParallel does not reduce {}: put into the model after it was "
    "wrapped. Wrap the model after the last change to its parameters, and build the optimizer "
    "then.",
    "ignored": "DistributedDataParallel is set to ignore {}: reduce them by hand, or do not ignore "
    "them.",
    "unfrozen": "DistributedDataParallel does not reduce {}: frozen when the model was wrapped, "
    "and unfrozen since. Wrap the model again after requires_grad is set.",
}
"""Words of LEFT_OUT_CAUSES, and what to say. Unknown: they took the place of others."""


def not_reduced(
    run: Run, group: str, ranks: tuple[int, ...], cause: str, parting: list[str] | None = None
) -> Cause | None:
    """Returns parameters that the wrapper of a model leaves out, by a word of LEFT_OUT_CAUSES;
    `parting`: of these alone."""
    names = left_out(run, ranks, cause)
    if parting is not None:
        names = [name for name in names if any(_same(name, one) for one in parting)]
    if not names:
        return None
    words = _NOT_REDUCED[cause].format(f"{names[0]}{and_more(len(names), 'parameter')}")
    return Cause(words, _wrapping_place(run, group, ranks[0]), tuple(names))


def left_whole(run: Run, parting: list[str]) -> Cause | None:
    """Returns parameters that part and that each rank holds whole, beside others that are
    sharded."""
    sharded = sharded_names(run)
    if not sharded or sharded & set(parting):
        return None
    more = and_more(len(parting), "parameter")
    return Cause(
        f"Other parameters are sharded, and {parting[0]}{more} {'are' if more else 'is'} "
        "not: call fully_shard() on the whole model after its layers, once its last layer is in "
        "place, or reduce these gradients before each step.",
        parameters=tuple(parting),
    )


def sums_activations_alone(run: Run, group: str, ranks: tuple[int, ...], step: int) -> Cause | None:
    """Returns why gradients part at a step in which ranks with parts of one model sum activations
    in forward, and nothing in backward or after it."""
    calls = collective_calls(run)
    mine = (calls["group"] == group) & (calls["rank"] == ranks[0]) & (calls["step"] == step)
    phases = calls.loc[mine & calls["name"].isin(_JOINS), "phase"]
    if ranks[0] in wrapped(run) or phases.empty or (phases != _FORWARD).any():
        return None
    return Cause(
        "The ranks sum activations in forward, as those with parts of one model do, and nothing in "
        "backward, so each has the gradient of its own part. Sum the gradient of what the split "
        "layers get: all_reduce it in the backward of their input."
    )


def other_settings(run: Run, ranks: tuple[int, ...], step: int) -> Cause | None:
    """Returns settings of optimizers that differ by rank, until a step."""
    apart = list(_other_rates(run, ranks, step)) or list(_other_settings(run, ranks))
    if not apart:
        return None
    return Cause(
        f"{'; '.join(apart[:3])}. Give all ranks the same settings, and step schedulers alike."
    )


def other_order(rows: pd.DataFrame) -> Cause | None:
    """Returns gradients that a rank reduces with those of other parameters: a sum is under one name
    on a rank, and under another one on the next.

    `rows`: rank, parameter and hash of gradients that differ.
    """
    # Gradients that are equal within a rank, as all of zero are, say nothing.
    alone = rows[~rows.duplicated(["rank", "hash"], keep=False)]
    pairs = alone.merge(alone, on="hash", suffixes=("", "_other"))
    pairs = pairs[(pairs["rank"] < pairs["rank_other"])]
    crossed = pairs[pairs["parameter"] != pairs["parameter_other"]]
    if len(crossed) < _MIN_CROSSED:
        return None
    first = crossed.iloc[0]
    return Cause(
        f"The ranks reduce them in different orders: the sum that rank {first['rank']} has for "
        f"{first['parameter']} is what rank {first['rank_other']} has for "
        f"{first['parameter_other']}. Reduce in the order of model.parameters(), not in that of a "
        "set, or in which hooks happen to run."
    )


def crossed(run: Run, ranks: tuple[int, ...]) -> Cause | None:
    """Returns that gradients of different parameters are added up: in each of some steps two ranks
    have as many gradients, not of the same parameters, and reduce each of theirs by hand."""
    rows = gradient_rows(run)
    rows = rows[rows["rank"].isin(ranks[:2]) & ~rows["missing"].astype(bool)]
    calls = collective_calls(run)
    calls = calls[(calls["rank"] == ranks[0]) & (calls["name"] == "all_reduce")]
    reduced = calls["step"].value_counts()
    found = []
    for step, own in rows.groupby("step", sort=True):
        names = [dict.fromkeys(own.loc[own["rank"] == rank, "parameter"]) for rank in ranks[:2]]
        mine, theirs = (
            [*filterfalse(other.__contains__, one)] for one, other in permutations(names)
        )
        if mine and len(mine) == len(theirs) and reduced.get(step, 0) >= len(names[0]):
            found.append((step, mine[0], theirs[0]))
    if len(found) < _MIN_STEPS or ranks[0] in wrapped(run):
        return None
    step, first, other = found[0]
    return Cause(
        f"Each rank reduces the gradients that it has: at step {step} rank {ranks[0]} has one of "
        f"{first} where rank {ranks[1]} has one of {other}, and they are added up. Reduce those of "
        "all parameters on all ranks: set p.grad = torch.zeros_like(p) where it is None."
    )


def mixed_parts(run: Run, ranks: tuple[int, ...], rows: pd.DataFrame) -> Cause | None:
    """Returns that ranks hold parts of one model and reduce the gradients of all parts together.

    Ranks with equal values hold the same part; groups of ranks with other parts reduce or gather
    something in each step. `rows`: rank, parameter and hash of values that differ.
    """
    layouts = {
        frozenset(frozenset(part) for part in own.groupby("hash")["rank"].agg(set))
        for _, own in rows.groupby("parameter")
    }
    parts = sorted(next(iter(layouts)), key=min) if len(layouts) == 1 else []
    if len(parts) < 2 or any(len(part) < 2 for part in parts):
        return None
    calls = collective_calls(run)
    calls = calls[calls["name"].isin(_JOINS)]
    for group, members in group_members(run).items():
        across = all(len(part & {*members}) < 2 for part in parts)
        steps = calls.loc[calls["group"] == group, "step"].nunique()
        if len(members) > 1 and {*members} < {*ranks} and across and steps >= _MIN_STEPS:
            said = ranks_in(run, tuple(sorted(parts[0])))
            return Cause(
                f"They hold parts of one model: {said} hold the same one, and "
                f"{ranks_in(run, tuple(members))} join theirs in each step. Reduce gradients among "
                f"ranks that hold the same part alone: dist.new_group({sorted(parts[0])}), and "
                "likewise for each other part."
            )
    return None


def other_group(run: Run, group: str, ranks: tuple[int, ...], rows: pd.DataFrame) -> Cause | None:
    """Returns that gradients are reduced with those of other parts: each rank of the group begins
    with the values of a rank outside of it. `rows`: rank, step and parameter of values that differ.
    """
    known = hashes(run)
    known = known[
        (known["step"] == rows["step"].min()) & known["parameter"].isin(rows["parameter"])
    ]
    of_rank = {
        int(rank): tuple(own.sort_values("parameter")["param_hash"])
        for rank, own in known.groupby("rank")
    }
    same = [tuple(one for one in of_rank if of_rank[one] == of_rank.get(rank)) for rank in ranks]
    if any({*one} <= {*ranks} for one in same):
        return None
    calls = collective_calls(run)
    calls = calls[(calls["group"] == group) & (calls["rank"] == ranks[0])]
    where = first_place(run, ranks[0], calls.loc[calls["phase"] != _FORWARD, "stack"][::-1])
    parts = " and ".join(ranks_in(run, one) for one in same)
    return Cause(
        f"They hold different parts of one model: {parts} begin with the same values, so these are "
        f"the replicas, and gradients are reduced in the wrong group{at_place(where)}. Reduce them "
        f"in groups of ranks that hold the same part, as dist.new_group({sorted(same[0])}).",
        where,
    )


def skipped_step(run: Run, ranks: tuple[int, ...], until: int) -> Cause | None:
    """Returns the first step, up to one, for which a rank ran more backward passes than the others:
    it left out a step of the optimizer that they took."""
    columns = ["rank", "start_ns", "step"]
    rows = phases_of_kind(run, schema.PhaseKind.backward, columns=columns)
    rows = rows[rows["rank"].isin(ranks)]
    counts = rows[rows["step"] <= until].groupby(["step", "rank"]).size().unstack()
    apart = counts.dropna()[lambda table: table.nunique(axis=1) > 1]
    if apart.empty:
        return None
    step, passes = int(apart.index[0]), apart.iloc[0]
    if (passes == passes.max()).sum() > 1 or passes.nunique() > 2:
        return None
    rank = int(passes.idxmax())
    return Cause(
        f"Rank {rank} runs {int(passes.max())} backward passes up to optimizer step {step}, the "
        f"others {int(passes.min())}: it left out a step that they took, as where each rank "
        "looks at its own loss or gradients. Let all ranks decide alike: all_reduce the "
        "condition."
    )


def reduced_too_early(run: Run, group: str, rank: int, step: int) -> Cause | None:
    """Returns that gradients were reduced in a backward pass of a step, and not in the last one,
    which adds to them on each rank alone."""
    columns = ["step", "start_ns", "duration_ns"]
    passes = phases_of_kind(run, schema.PhaseKind.backward, rank, columns=columns)
    passes = passes[passes["step"] == step]
    calls = collective_calls(run)
    mine = (calls["group"] == group) & (calls["rank"] == rank) & (calls["step"] == step)
    starts = calls.loc[mine, "start_ns"]
    ends = frame_ends_ns(passes, run.duration_ns)
    within = [
        bool(starts.between(begins, end).any())
        for begins, end in zip(passes["start_ns"], ends, strict=True)
    ]
    if not any(within) or within[-1]:
        return None
    last = max(number for number, reduced in enumerate(within, 1) if reduced)
    return Cause(
        f"The step has {len(within)} backward passes, and the last one that reduces gradients is "
        f"number {last}: those after it add to them on each rank alone. Let the last backward of "
        "a step, and its forward, run outside of no_sync()."
    )


def writes(
    run: Run, ranks: tuple[int, ...], names: list[str], windows: dict[int, tuple[int, int]]
) -> Cause | None:
    """Returns the line that writes parameters that part, outside of an optimizer, in the window of
    each rank: one that a part of the ranks runs, or the only one that all of them do."""
    lines: dict[str, dict[int, Any]] = defaultdict(dict)
    for rank in ranks:
        for row in _written(run, rank, set(names), windows[rank]).itertuples():
            line = own_place(run, rank, stack_of(row, "stack"))
            if line is not None:
                lines[line].setdefault(rank, row)
    alone = {line: rows for line, rows in lines.items() if len(rows) < len(ranks)}
    if not alone and len(lines) != 1:
        return None
    where, rows = min((alone or lines).items(), key=lambda one: min(_starts(one[1])))
    row = next(iter(rows.values()))
    who = units.sentence(ranks_in(run, tuple(rows)))
    said = f"{row.parameter}{and_more(len(names), 'parameter')} at {where} ({row.name})"
    if not alone:
        return Cause(
            f"{who} write {said}, outside of the optimizer: give all ranks the same values there, "
            "or broadcast them afterwards.",
            where,
        )
    verb = "writes" if len(rows) == 1 else "write"
    return Cause(
        f"{who} alone {verb} {said}, outside of the optimizer. Do so on all ranks, or broadcast "
        "the parameters afterwards.",
        where,
    )


def _starts(rows: dict[int, Any]) -> list[int]:
    return [row.start_ns for row in rows.values()]


def _written(run: Run, rank: int, names: set[str], window: tuple[int, int]) -> pd.DataFrame:
    """First writes of parameters by the program, by line: name of the operator, stack, start_ns and
    parameter."""
    held = {one: name.split(", ") for one, name in storage_names(run, rank).items()}
    storages = {one: of[0] for one, of in held.items() if not names.isdisjoint(of)}
    steps = phases_of_kind(
        run, schema.PhaseKind.optimizer, rank, columns=["start_ns", "duration_ns"]
    )
    begins, ends = steps["start_ns"], frame_ends_ns(steps, run.duration_ns)
    columns = ["thread", "start_ns", "depth", "storage", "write", "birth"]
    wider = window[0], int(ends[ends > window[1]].min()) if (ends > window[1]).any() else window[1]
    touched = to_frame(run.events("access", rank, columns=columns, window=wider))
    touched = touched[touched["storage"].isin(storages)].sort_values("start_ns", kind="stable")
    # Once the data of a parameter is another tensor, others come to the address where it was.
    births = touched.groupby("storage")["birth"].cumsum()
    updated = [bool(((begins <= at) & (at < ends)).any()) for at in touched["start_ns"]]
    own = pd.Series(updated, touched.index).groupby([touched["storage"], births]).transform("any")
    touched = touched[touched["write"] & (own if any(updated) else True)]
    columns = ["thread", "start_ns", "depth", "name", "stack", "phase"]
    ops = to_frame(run.events("op", rank, columns=columns, window=window))
    kinds = {of for kind in _UPDATES for of in phase_names(run, rank).get(kind, ())}
    ops = ops[~ops["phase"].isin(kinds)]
    rows = touched.merge(ops, on=["thread", "start_ns", "depth"])
    rows = rows.sort_values("start_ns").drop_duplicates("stack")
    return rows.assign(parameter=rows["storage"].map(storages))


def _same(name: str, recorded: str) -> bool:
    """Whether a parameter's name within its model is that under which it is recorded."""
    return recorded == name or recorded.endswith(f".{name}")


def _wrapping_place(run: Run, group: str, rank: int) -> str | None:
    """The line that made the wrapper: it broadcasts the model's parameters."""
    rows = collective_calls(run)
    rows = rows[(rows["group"] == group) & (rows["rank"] == rank) & (rows["name"] == "broadcast")]
    return own_place(run, rank, int(rows["stack"].iloc[0])) if len(rows) else None


def _other_rates(run: Run, ranks: tuple[int, ...], step: int) -> Iterator[str]:
    """Learning rates and weight decays as they were at sampled steps, up to `step`."""
    columns = ["rank", "step", "parameter", "optimizer", "lr", "weight_decay"]
    rows = to_frame(run.events("parameter", columns=columns))
    rows = rows[rows["rank"].isin(ranks) & (rows["step"] <= step)]
    for name, words in (("lr", "learning rate"), ("weight_decay", "weight decay")):
        known = rows[rows[name].notna()].sort_values("step", kind="stable")
        spread = known.groupby(["step", "parameter", "optimizer"])[name].nunique()
        if (spread > 1).any():
            at, parameter, _ = spread.index[spread > 1][0]
            own = known[(known["step"] == at) & (known["parameter"] == parameter)]
            said = ", ".join(
                f"{units.number(row.value)} on rank {row.rank}"
                for row in own.rename(columns={name: "value"}).drop_duplicates("rank").itertuples()
            )
            yield f"The {words} differs at step {at}: {said}"


def _other_settings(run: Run, ranks: tuple[int, ...]) -> Iterator[str]:
    rows = logged(run, None, prefix=SETTINGS)
    rows = rows[rows["rank"].isin(ranks) & ~rows["name"].str.startswith(_OF_RANKS)]
    first = rows.sort_values("time_ns", kind="stable").drop_duplicates(["rank", "name"])
    for name, own in first.groupby("name", sort=True):
        if own["value"].nunique() > 1 or own["rank"].nunique() < len(ranks):
            values = dict(zip(own["rank"], own["value"], strict=True))
            said = ", ".join(
                f"{units.number(values[rank]) if rank in values else 'none'} on rank {rank}"
                for rank in ranks
            )
            yield f"The setting {name} differs: {said}"
