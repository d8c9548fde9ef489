"""Finds samplers that shuffle with another seed, in another epoch, or another subset on each rank.

A DistributedSampler gives each rank its part of one common order, which its seed and epoch decide.
Where they differ by rank, the ranks take parts of different orders: some samples are used by
several ranks, and some by none. So it is where the dataset is a Subset with other indices on each
rank, as random_split makes them from the random numbers of a rank.
"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.loader_names import SAMPLED_SUBSET
from lanescope.collector.format.names import SAMPLER_EPOCH, SAMPLER_SEED
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.nothing_to_check import need_ranks
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.process_exits import of_last_attempt
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_ATTRIBUTES = (("subset", SAMPLED_SUBSET), ("seed", SAMPLER_SEED), ("epoch", SAMPLER_EPOCH))

_ADVICE = {
    "seed": "Give DistributedSampler the same seed on all ranks.",
    "epoch": "Call sampler.set_epoch with the same epoch on all ranks.",
}


def sampler_seeds(run: Run) -> list[Finding]:
    """Returns findings of kind `repeated_data`, one per sampler. Raises NotApplicable."""
    need_ranks(run)
    found: dict[str, Finding] = {}
    seen = False
    for what, prefix in _ATTRIBUTES:
        rows = of_last_attempt(run, logged(run, None, prefix=prefix))
        seen |= rows["rank"].nunique() > 1
        rows = rows.sort_values(["rank", "name", "time_ns"], kind="stable")
        rows["iteration"] = rows.groupby(["rank", "name"]).cumcount()
        if what == "subset" and _in_another_order(rows):
            continue
        for name, own in rows.groupby("name", sort=True):
            apart = own.groupby("iteration")["value"].nunique() > 1
            if apart.any() and str(name) not in found:
                found[str(name)] = _finding(run, what, own, int(apart.idxmax()))
    if not seen:
        raise NotApplicable("no shuffling DistributedSampler was iterated at level access")
    return list(found.values())


def _in_another_order(rows: pd.DataFrame) -> bool:
    """Whether all ranks have the same subsets, and only begin with another one."""
    return len({tuple(sorted(own["value"])) for _, own in rows.groupby("rank")}) == 1


def _finding(run: Run, what: str, own: pd.DataFrame, iteration: int) -> Finding:
    rows = own[own["iteration"] == iteration]
    ranks = tuple(sorted(int(rank) for rank in rows["rank"]))
    mine = rows.iloc[0]
    if what == "subset":
        title = (
            f"The datasets of {ranks_in(run, ranks)} are split differently: their "
            "DistributedSamplers deal out Subsets with other indices on each rank. Some samples "
            "are used by several ranks and some by none, and a rank may train on what another one "
            "keeps for validation. Split alike on all ranks: random_split(data, lengths, "
            "generator=torch.Generator().manual_seed(0))."
        )
    else:
        values = ", ".join(f"{int(row.value)} on rank {row.rank}" for row in rows.itertuples())
        title = (
            f"The DistributedSamplers of {ranks_in(run, ranks)} shuffle differently: their "
            f"{what} is {values}. Some samples are used by several ranks, and some by none. "
            f"{_ADVICE[what]}"
        )
    return finding_at(
        run,
        int(mine["rank"]),
        mine,
        kind="repeated_data",
        title=title,
        ranks=ranks,
        where=phase_place(run, int(mine["rank"]), schema.PhaseKind.data.name, None),
        evidence={"cause": f"sampler_{what}", "steps": len(rows)},
    )
