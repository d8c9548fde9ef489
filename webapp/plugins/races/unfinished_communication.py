"""Finds tensors that are used while a communication that reads or changes them is under way.

`work = dist.all_reduce(t, async_op=True)` returns at once, and so do isend and irecv. An operator
of the same thread that reads what it writes, or writes what it reads or writes, before the program
has asked for the end of that, and before it came, gets or leaves values of before, after, or of
both. After a send or a receive, any other blocking call may prove that the other rank has it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from lanescope.collector.format.names import WORK_ASKED, WORK_BEGUN
from lanescope.webapp.analysis.arrow_columns import stack_of, to_frame
from lanescope.webapp.analysis.fault_series import ranks_of
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import at_place, timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_accesses, need_collectives
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_CALLS = 2
_EXCHANGES = {"send": "isend", "recv": "irecv"}
"""What the program wrote, where that is not the name of the call with async_op=True."""

_PLACE = ["start_ns", "depth"]
_BYTES = ["storage", "offset", "bytes"]


def before_the_wait(run: Run) -> list[Finding]:
    """Returns findings of kind `race`, one per line. Raises NotApplicable."""
    need_collectives(run)
    need_accesses(run)
    uses = pd.DataFrame(use for rank in run.ranks for use in _uses(run, rank))
    if uses.empty:
        return []
    lines = [group for _, group in uses.groupby(["where", "op", "name"], sort=False)]
    return [_finding(run, own) for own in lines if len(own) >= _MIN_CALLS]


def _uses(run: Run, rank: int) -> Iterator[dict[str, object]]:
    """Operators that use the tensor of a reduction too early, the first of each."""
    marks = logged(run, rank, WORK_BEGUN, WORK_ASKED)
    begun = marks[marks["name"].astype("str") == WORK_BEGUN]
    if begun.empty:
        return
    calls = to_frame(run.events("collective", rank))
    calls = calls.assign(name=calls["name"].astype("str"))
    barriers = calls.loc[calls["name"] == "barrier", "start_ns"]
    asked = marks.loc[marks["name"].astype("str") == WORK_ASKED, "time_ns"]
    ends = np.sort(np.concatenate([asked.to_numpy(), barriers.to_numpy()]))
    pending = calls[calls["asynchronous"]]
    others = calls[~calls["asynchronous"] | (calls["name"] == "recv")]
    others = np.sort(others["start_ns"].to_numpy())
    for thread, own in begun.groupby(begun["thread"].astype("str")):
        mine = pending[pending["thread"].astype("str") == thread].sort_values("start_ns")
        starts = mine["start_ns"].to_numpy()
        for time in own["time_ns"]:
            at = int(np.searchsorted(starts, time)) - 1
            if at < 0 or pd.isna(mine["complete_ns"].iloc[at]):
                continue
            call = mine.iloc[at]
            after = ends[np.searchsorted(ends, time) :]
            if call["name"] in _EXCHANGES:
                after = np.sort(np.concatenate([after, others[others > time]]))
            until = min([int(call["complete_ns"]), *map(int, after[:1])])
            if until > time:
                yield from _first_use(run, rank, str(thread), call, (int(time), until))


def _first_use(
    run: Run, rank: int, thread: str, call: pd.Series, window: tuple[int, int]
) -> Iterator[dict[str, object]]:
    start = int(call["start_ns"])
    columns = [*_PLACE, *_BYTES, "write", "birth"]
    rows = to_frame(run.events("access", rank, thread, columns, (start, window[1])))
    inside = rows["start_ns"] <= start + int(call["duration_ns"])
    moved = rows.loc[inside, [*_BYTES, "write"]].drop_duplicates()
    rows = rows[(rows["start_ns"] > window[0]) & (rows["start_ns"] < window[1])]
    # An address that is used again is another tensor's: nothing holds the reduced one any more.
    born = rows[rows["birth"]].groupby("storage")["start_ns"].min().reindex(rows["storage"])
    rows = rows[~(born.to_numpy() <= rows["start_ns"].to_numpy())]
    both = rows.merge(moved, on="storage", suffixes=("", "_of"))
    both = both[both["write"] | both["write_of"]]
    apart = both["offset"] >= both["offset_of"] + both["bytes_of"]
    both = both[~apart & (both["offset"] + both["bytes"] > both["offset_of"])]
    if both.empty:
        return
    ops = to_frame(run.events("op", rank, thread, [*_PLACE, "name", "stack", "step"], window))
    for row in both.merge(ops, on=_PLACE).sort_values("start_ns").itertuples():
        if str(row.name).startswith("aten::"):
            yield {
                "call": start,
                "name": str(call["name"]),
                "called": call["stack"],
                "op": str(row.name),
                "time": int(row.start_ns),
                "where": own_place(run, rank, stack_of(row)) or "",
                "rank": rank,
                "step": int(row.step),
                "write": bool(both.loc[both["start_ns"] == row.start_ns, "write"].any()),
                "thread": thread,
            }
            return


def _finding(run: Run, uses: pd.DataFrame) -> Finding:
    first = uses.iloc[0]
    rank, ranks = int(first["rank"]), ranks_of(uses)
    where = first["where"] or None
    begun = own_place(run, rank, stack_of(first, "called"))
    of = f" (at {begun})" if begun else ""
    name, called = first["name"], _EXCHANGES.get(first["name"], first["name"])
    verb = "writes" if first["write"] else "reads"
    time, calls = int(first["time"]), len(uses)
    side = {"thread": first["thread"], "access": "write"}
    return Finding(
        kind="race",
        severity="error",
        title=f"{first['op']}{at_place(where)} {verb} the tensor of "
        f"{called}{'' if name in _EXCHANGES else ' with async_op=True'}{of} before that has ended, "
        f"{units.count(calls)} times: it may hold values of before, of after, or of both. Call "
        f"wait() on what {called} returned before the tensor is used.",
        rank=rank,
        ranks=ranks,
        thread=first["thread"],
        step=int(first["step"]),
        time_ns=time,
        where=where,
        evidence={
            "tensor": f"of {name}",
            "first": {**side, "op": name, "where": begun, "time_ns": int(first["call"])},
            "second": {
                **side,
                "op": first["op"],
                "where": where,
                "time_ns": time,
                "access": "write" if first["write"] else "read",
            },
            "calls": calls,
        },
        link=timeline_address(int(first["call"]), time, run.duration_ns),
    )
