"""Compares the parts of an all-to-all: what each rank sends with what the other one expects."""

from __future__ import annotations

from itertools import product

import pandas as pd

from lanescope.webapp.analysis.collective_calls import group_members
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run


def unlike_parts(run: Run, rows: pd.DataFrame) -> str:
    """Returns that a rank sends a part of another size than its receiver expects, from the rows of
    one call; empty where none does."""
    members = group_members(run)[str(rows["group"].iloc[0])]
    parts = {
        int(rank): [[*map(int, filter(None, side.split(",")))] for side in splits.split(">")]
        for rank, splits in zip(rows["rank"], rows["splits"].astype("str"), strict=True)
        if splits
    }
    # What a rank keeps for itself comes last: it differs where another part does.
    for sender, receiver in sorted(product(parts, repeat=2), key=lambda pair: pair[0] == pair[1]):
        sent, expected = parts[sender][0], parts[receiver][1]
        if not len(sent) == len(expected) == len(members):
            continue
        one, other = sent[members.index(receiver)], expected[members.index(sender)]
        if one != other:
            to = "itself" if sender == receiver else ranks_in(run, (receiver,))
            return (
                f"{ranks_in(run, (sender,))} sends {units.count(one)} to {to}, which expects "
                f"{units.count(other)}"
            )
    return ""
