"""Finds replicas whose parameters hold the values of one another under other names.

Modules that are made in the order of a set, or of a listing of files, have another order on each
rank. What is drawn, broadcast and reduced one after the other then goes to other parameters there,
and a DistributedDataParallel does not see it where shapes are the same.

Found where ranks are replicas by the parameters that are equal, and others, two at least, are those
of another name on the first rank, which has theirs for another name in turn. Values that a rank has
for several names, as constants, are left out, and so are parameters that come to be equal by name.
"""

from __future__ import annotations

import pandas as pd

from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import and_more
from lanescope.webapp.analysis.nothing_to_check import need_at_access, need_ranks
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.learning.replicas import (
    common_hashes,
    gradient_reductions,
    hashes,
    replicas,
)
from lanescope.webapp.runs.run import Run

_MIN_EXCHANGED = 2
_LISTED = 20


def exchanged_values(run: Run) -> list[Finding]:
    """Returns findings of kind `rank_divergence`, one per group. Raises NotApplicable."""
    need_ranks(run)
    hashed = need_at_access(run, hashes(run), "nothing was hashed")
    found = []
    for group, ranks in replicas(run).items():
        rows = hashed[hashed["rank"].isin(ranks) & hashed["param_hash"].notna()]
        common = common_hashes(rows, ranks, "param_hash").reset_index()
        equal = set(common.loc[common["equal"], "parameter"])
        for rank in ranks[1:]:
            pairs = _exchanged(rows, ranks[0], rank)
            pairs = {name: other for name, other in pairs.items() if name not in equal}
            if len(pairs) >= _MIN_EXCHANGED and {*pairs} == {*pairs.values()}:
                found.append(_finding(run, group, (ranks[0], rank), pairs))
                break
    return found


def _exchanged(rows: pd.DataFrame, first: int, rank: int) -> dict[str, str]:
    """Parameters of a rank -> those of the first rank that have their values, under another
    name, at the first hashed step."""
    known = rows.drop_duplicates(["rank", "parameter"])
    known = known[~known.duplicated(["rank", "param_hash"], keep=False)]
    sides = [known.loc[known["rank"] == one, ["parameter", "param_hash"]] for one in (rank, first)]
    pairs = sides[0].merge(sides[1], on="param_hash", suffixes=("", "_first"))
    pairs = pairs[pairs["parameter"] != pairs["parameter_first"]]
    return dict(zip(pairs["parameter"], pairs["parameter_first"], strict=True))


def _finding(run: Run, group: str, ranks: tuple[int, int], pairs: dict[str, str]) -> Finding:
    first, rank = ranks
    name, other = next(iter(pairs.items()))
    reduced = gradient_reductions(run, group, first)
    stacks = reduced["stack"].dropna()
    where = own_place(run, first, int(stacks.iloc[-1])) if len(stacks) else None
    return finding_at(
        run,
        rank,
        0,
        kind="rank_divergence",
        severity="error",
        title=f"Ranks {first} and {rank} have the same parameters in different orders: {name} of "
        f"rank {rank} holds the values of {other} of rank {first}"
        f"{and_more(len(pairs), 'parameter')}. What is broadcast and reduced in order mixes "
        "parameters of different names, so each is trained for two things. Make the modules in the "
        "same order on all ranks: do not iterate over a set, or sort it.",
        ranks=ranks,
        where=where,
        evidence={
            "cause": "other_names",
            "parameters": list(pairs)[:_LISTED],
            "differing": len(pairs),
        },
    )
