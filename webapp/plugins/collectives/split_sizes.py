"""Compares the parts of an all-to-all: what each rank sends with what the other one expects."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.collective_calls import group_members
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run


def unlike_calls(run: Run, rows: pd.DataFrame) -> list[tuple[str, int]]:
    """Returns group and sequence of the calls in which a rank sends a part of another size than its
    receiver expects. `rows`: of calls with split sizes."""
    found = _unlike(run, rows)[["group", "sequence"]].drop_duplicates()
    return [(str(row.group), int(row.sequence)) for row in found.itertuples()]


def unlike_parts(run: Run, rows: pd.DataFrame) -> str:
    """Returns the first part of one call whose receiver expects another size, in words; empty where
    all sizes agree."""
    found = _unlike(run, rows)
    # What a rank keeps for itself comes last: it differs where another part does.
    own = found["sender"] == found["receiver"]
    for row in found.assign(own=own).sort_values(["own", "sender", "receiver"]).itertuples():
        to = "itself" if row.own else ranks_in(run, (int(row.receiver),))
        return (
            f"{ranks_in(run, (int(row.sender),))} sends {units.count(int(row.sent))} to {to}, "
            f"which expects {units.count(int(row.expected))}"
        )
    return ""


def _unlike(run: Run, rows: pd.DataFrame) -> pd.DataFrame:
    """Parts whose sizes differ: group, sequence, sender, receiver (ranks), sent, expected."""
    keys = ["group", "sequence", "sender", "receiver"]
    tables = []
    for group, same in rows.groupby("group", observed=True):
        sides = same["splits"].astype("str").str.partition(">")
        members = group_members(run)[str(group)]
        sent = _sizes(same, sides[0], members, ["sender", "receiver"], "sent")
        expected = _sizes(same, sides[2], members, ["receiver", "sender"], "expected")
        tables.append(sent.merge(expected, on=keys))
    table = pd.concat(tables) if tables else pd.DataFrame(columns=[*keys, "sent", "expected"])
    return table[table["sent"] != table["expected"]]


def _sizes(
    rows: pd.DataFrame, texts: pd.Series, members: tuple[int, ...], ends: list[str], name: str
) -> pd.DataFrame:
    """A row for each part. `texts`: 3,5 with a size for each member. `ends`: the names of the rank
    that says so, and of the other one. Calls of even parts say nothing."""
    whole = (texts.str.count(",") + 1 == len(members)) & (texts != "")
    rows, texts = rows[whole], texts[whole]
    sizes = np.array(",".join(texts).split(",") if len(texts) else [], np.int64)
    count = len(members)
    made = {
        "group": np.repeat(rows["group"].astype("str").to_numpy(), count),
        "sequence": np.repeat(rows["sequence"].to_numpy(), count),
        ends[0]: np.repeat(rows["rank"].to_numpy(), count),
        ends[1]: np.tile(np.array(members, np.int64), len(rows)),
        name: sizes,
    }
    return pd.DataFrame(made)
