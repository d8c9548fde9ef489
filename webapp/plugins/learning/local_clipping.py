"""Finds gradients that ranks clip each by its own norm: parts of one model, or replicas.

With tensor or expert parallelism, or sharded parameters, a rank holds a part of the parameters.
`clip_grad_norm_` on a rank then knows the norm of that part alone, and the parts are scaled by
different factors. Found where

- ranks of a group call collectives together in the backward of every step, as parts of one model
  do, or scatter reduced gradients, or reduce them and gather or hand out parameters in parts, and
  are no data-parallel replicas,
- the norms by which they clip differ in every step, and
- at least one of them is above the limit in MIN_STEPS steps, so that it is scaled.

Replicas that average their gradients before they clip them have equal norms. Where these differ in
every step, each rank scales its gradients by another factor before they are averaged.

Clipping that is written by hand shows in what it leaves: on each of these ranks the norm of all
its gradients is the same in MIN_STEPS steps or more, and larger in none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.names import CLIP_LIMIT, CLIP_NORM
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.collective_calls import collective_calls, group_members, group_title
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.nothing_to_check import need_backward, need_ranks
from lanescope.webapp.analysis.parameter_history import clip_place, last_logged, wrapped
from lanescope.webapp.analysis.stack_frames import place_before
from lanescope.webapp.plugins.learning.consistency import (
    began_random,
    equal_at_first,
    first_apart,
)
from lanescope.webapp.plugins.learning.replicas import hashes, replicas, scaled_apart
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 3
MIN_CLIPPED_BY_HAND = 6

_LEAST_BYTES = 2
"""Of an element of a gradient."""

_AS_LARGE = 1e-4
"""Relative difference of norms that were scaled to one limit, whose last bits may differ."""


def local_clipping(run: Run) -> list[Finding]:
    """Returns findings of kind `rank_divergence`, one per group. Raises NotApplicable."""
    need_ranks(run)
    need_backward(run)
    logged = {rank: _logged(run, rank) for rank in run.ranks}
    norms, limits = ({rank: of[side] for rank, of in logged.items()} for side in (0, 1))
    calls = collective_calls(run)
    within = calls["phase"] == schema.PhaseKind.backward.name
    scatters = calls["name"].str.startswith("reduce_scatter") | _shared_out(run, calls)
    calls = calls[within | scatters]
    found = _of_replicas(run, norms, limits)
    of_rank = cache(partial(_gradients, run))  # a rank is in a group of each dimension
    for group, own in calls.groupby("group", sort=True):
        ranks = tuple(rank for rank in group_members(run)[str(group)] if rank in run.ranks)
        if len(ranks) < 2 or _are_replicas(run, ranks):
            continue
        table = pd.DataFrame({rank: norms[rank] for rank in ranks}).dropna()
        if not any(len(norms[rank]) for rank in ranks):
            found += _by_hand(run, str(group), ranks, own, of_rank)
            continue
        together = own.groupby("step")["rank"].nunique() == len(ranks)
        scaled = _scaled(ranks, norms, limits).reindex(table.index, fill_value=False)
        exchanged = together.reindex(table.index).fillna(value=False)
        apart = table.nunique(axis=1) > 1
        if scaled.sum() >= _MIN_STEPS and exchanged.all() and apart.all():
            found.append(_finding(run, str(group), ranks, table[scaled]))
    return found or (held_alike(run, tuple(run.ranks)) if _in_passes(run) else [])


def _in_passes(run: Run) -> bool:
    """Whether ranks exchange activations or their gradients, as parts of one model do."""
    passes = schema.PhaseKind.forward.name, schema.PhaseKind.backward.name
    return bool(collective_calls(run)["phase"].isin(passes).any())


def held_alike(run: Run, ranks: tuple[int, ...]) -> list[Finding]:
    """Returns at most one finding about ranks with parts of one model: gradients of parameters that
    all of them hold, and that began equal, differ by one factor."""
    _, unequal = began_random(run, ranks)
    apart = first_apart(run, ranks)
    if not unequal or apart is None or replicas(run) or not wrapped(run).keys().isdisjoint(ranks):
        return []
    rows = hashes(run)
    rows = rows[rows["parameter"].isin(equal_at_first(run, ranks)) & rows["rank"].isin(ranks)]
    scaled = scaled_apart(run, rows[rows["step"] == rows["step"].min()])
    if scaled is None:
        return []
    return [
        finding_at(
            run,
            ranks[0],
            apart[1],
            kind="rank_divergence",
            confidence="likely",
            title=f"{units.sentence(ranks_in(run, ranks))} hold parts of one model, and "
            f"{apart[0]}, which all of them hold, began equal and differs since step {apart[1]}. "
            f"{scaled[0]}",
            ranks=ranks,
            where=scaled[1],
            evidence={"cause": "local_clipping", "parameter": apart[0]},
        )
    ]


def _shared_out(run: Run, calls: pd.DataFrame) -> pd.Series:
    """Whether a call reduces gradients in a step in which a rank reduces all of its own, and hands
    out parameters or gathers them in parts, as each rank updates a part of them."""
    rows = to_frame(run.events("parameter", columns=["rank", "parameter", "numel"]))
    sizes = rows.drop_duplicates(["rank", "parameter"]).groupby("rank")["numel"].sum()
    least = calls["rank"].map(sizes) * _LEAST_BYTES
    of_step = [calls[name] for name in ("group", "rank", "step")]
    sums = calls["name"] == "all_reduce"
    parts = calls["name"].str.startswith(("all_gather", "broadcast"))
    moved = [
        calls["bytes"].where(one, 0).groupby(of_step).transform("sum") for one in (sums, parts)
    ]
    whole, part = sums & (moved[0] >= least), parts & (moved[1] >= least / calls["group_size"])
    steps = calls[part].groupby(["group", "rank"])["step"].nunique()
    of_rank = pd.MultiIndex.from_frame(calls[["group", "rank"]])
    return whole & of_rank.isin(steps.index[steps >= _MIN_STEPS])


def _of_replicas(
    run: Run, norms: dict[int, pd.Series], limits: dict[int, pd.Series]
) -> list[Finding]:
    """Replicas that clip their own gradients, and reduce them later."""
    found = []
    for group, ranks in replicas(run).items():
        table = pd.DataFrame({rank: norms[rank] for rank in ranks}).dropna()
        scaled = _scaled(ranks, norms, limits).reindex(table.index, fill_value=False)
        least, most = table.min(axis=1), table.max(axis=1)
        if scaled.sum() >= _MIN_STEPS and (least < most * (1 - _AS_LARGE)).all():
            what = (
                "are replicas, and each clips the gradients of its own batch",
                "each is scaled by a factor of its own before they are averaged. Reduce gradients "
                "first, and clip the average.",
            )
            found.append(_finding(run, group, ranks, table[scaled], what))
    return found


def _scaled(
    ranks: tuple[int, ...], norms: dict[int, pd.Series], limits: dict[int, pd.Series]
) -> pd.Series:
    """By step, whether the norm of some rank is above its limit."""
    over = pd.DataFrame({rank: norms[rank] > limits[rank] for rank in ranks})
    return over.fillna(value=False).any(axis=1)


@per_rank
def _logged(run: Run, rank: int) -> tuple[pd.Series, pd.Series]:
    """Norms by which a rank clips, and their limits, by step."""
    return last_logged(run, rank, CLIP_NORM), last_logged(run, rank, CLIP_LIMIT)


def _gradients(run: Run, rank: int) -> tuple[pd.DataFrame, pd.Series]:
    """Norms of a rank's gradients, of shards its own part, and of all together by step and rank."""
    columns = ["rank", "thread", "time_ns", "step", "parameter", "norm"]
    rows = to_frame(run.events("gradient", rank, columns=columns))
    squares = (rows["norm"] ** 2).groupby([rows["step"], rows["rank"]]).sum(min_count=1)
    return rows, squares.pow(0.5)


def _by_hand(
    run: Run,
    group: str,
    ranks: tuple[int, ...],
    calls: pd.DataFrame,
    of_rank: Callable[[int], tuple[pd.DataFrame, pd.Series]],
) -> list[Finding]:
    """Clipping without clip_grad_norm_, at most one finding."""
    table = pd.concat([of_rank(rank)[1] for rank in ranks]).unstack().dropna()
    together = calls.groupby("step")["rank"].nunique() == len(ranks)
    if tuple(table.columns) != ranks or not together.reindex(table.index, fill_value=False).all():
        return []
    limit = table.max().max()
    clipped = table >= limit * (1 - _AS_LARGE)
    if limit <= 0 or not (clipped.sum() >= MIN_CLIPPED_BY_HAND).all():
        return []
    rows = pd.concat([of_rank(rank)[0] for rank in ranks])
    if not (rows.groupby(["step", "parameter"])["norm"].nunique() > 1).any():
        return []
    # The last that was done with gradients before the optimizer.
    first = rows[rows["rank"] == ranks[0]].sort_values("time_ns").iloc[0]
    where = place_before(run, ranks[0], str(first["thread"]), int(first["time_ns"]))
    return [_finding(run, group, ranks, table[clipped.all(axis=1)], where=where)]


def _are_replicas(run: Run, ranks: tuple[int, ...]) -> bool:
    return any(len(set(ranks) & set(same)) > 1 for same in replicas(run).values())


_OF_PARTS = (
    "hold parts of one model and clip each by its own norm",
    "the parts are scaled by different factors. Add up the squares of the norms over the ranks, "
    "and clip by the root with torch.nn.utils.clip_grads_with_norm_.",
)


def _finding(
    run: Run,
    group: str,
    ranks: tuple[int, ...],
    norms: pd.DataFrame,
    what: tuple[str, str] = _OF_PARTS,
    where: str | None = None,
) -> Finding:
    step, first = int(norms.index[0]), norms.iloc[0]
    low, high = first.min(), first.max()
    by = " to ".join(dict.fromkeys(map(units.number, (low, high))))
    return finding_at(
        run,
        ranks[0],
        step,
        kind="rank_divergence",
        confidence="likely",
        title=f"{units.sentence(ranks_in(run, ranks))} {what[0]}: norms of {by} at step {step}, so "
        f"{what[1]}",
        ranks=ranks,
        where=where or clip_place(run, ranks[0]),
        evidence={
            "group": group,
            "group_title": group_title(run, group),
            "cause": "local_clipping",
            "norms": {str(rank): float(first[rank]) for rank in ranks},
            "steps": len(norms),
        },
    )
