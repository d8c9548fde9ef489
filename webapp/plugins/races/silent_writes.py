"""Finds writes to what an operator saved for backward that autograd does not see.

`h.data.clamp_()` and the memory of a NumPy array have no version counter in common with `h`, and a
custom function that keeps a tensor as an attribute of ctx has none to compare. Backward then reads
the new numbers and raises nothing. Found in the first steps: a node of the backward reads memory
that its forward operator read or made, and that another operator wrote in between which made no
node.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.access_site import storage_names
from lanescope.webapp.analysis.arrow_columns import (
    frame_ends_ns,
    phases_of_kind,
    stack_of,
    to_frame,
)
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.forward_ops import BACKWARD, makers
from lanescope.webapp.analysis.links import at_place, timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_accesses, need_backward
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.runs.run import Run

_PASSES = 4
"""Passes of backward of a rank that are looked at, the first ones."""

_OTHERS = r"backward|.*\.step"
"""Names of phases of backward and of optimizers."""

_FILLS = r"aten::(bernoulli|copy|exponential|fill|log_normal|normal|random|uniform|zero)_"
"""Operators that write what they do not read. A tensor of torch.empty() or zeros_like() may begin
with one, where another one was before."""

_ROW = ["thread", "start_ns", "depth"]
_OPS = [*_ROW, "duration_ns", "name", "scope", "sequence", "step", "phase", "stack"]
_ACCESSES = [*_ROW, "storage", "offset", "bytes", "write", "birth"]


def silent_writes(run: Run) -> list[Finding]:
    """Returns findings of kind `inplace_modification`, one per line and rank. Raises
    NotApplicable."""
    need_backward(run)
    need_accesses(run)
    found: dict[tuple[int, str | None], Finding] = {}
    for rank in run.ranks:
        for _, row in _overwritten(run, rank).iterrows():
            finding = _finding(run, rank, row)
            found.setdefault((rank, finding.where), finding)
    return list(found.values())


def _overwritten(run: Run, rank: int) -> pd.DataFrame:
    """Writes to what a node reads later, one per line: columns of operators and accesses, with
    those of the operator that made the node as saved_name and saved_stack."""
    passes = phases_of_kind(run, schema.PhaseKind.backward, rank)
    window = (0, max([0, *frame_ends_ns(passes.head(_PASSES), run.duration_ns)]) + 1)
    ops = _texts(to_frame(run.events("op", rank, columns=_OPS, window=window)))
    ops["end_ns"] = frame_ends_ns(ops, run.duration_ns)
    accesses = _texts(to_frame(run.events("access", rank, columns=_ACCESSES, window=window)))
    accesses["until"] = accesses["offset"] + accesses["bytes"]
    saved = _saved(ops, accesses)
    writes = _unseen(ops).merge(accesses[accesses["write"] & ~accesses["birth"]], on=_ROW)
    both = saved.merge(writes, on=["storage", "thread"], suffixes=("_saved", ""))
    between = (both["start_ns"] > both["saved_end"]) & (both["start_ns"] < both["read_ns"])
    overlap = (both["offset"] < both["until_saved"]) & (both["offset_saved"] < both["until"])
    both = both[between & overlap]
    filled = ops.loc[ops["name"].str.fullmatch(_FILLS), "start_ns"]
    births = accesses[accesses["birth"] | (accesses["write"] & accesses["start_ns"].isin(filled))]
    made = [
        (
            (births["storage"] == row.storage)
            & births["start_ns"].between(row.saved_end, row.read_ns, inclusive="neither")
        ).any()
        for row in both.itertuples()
    ]
    return both[~np.array(made, bool)].drop_duplicates("stack")


def _saved(ops: pd.DataFrame, accesses: pd.DataFrame) -> pd.DataFrame:
    """What the operator of a node touched and the node reads: storage, offset, until, thread,
    made_ns, saved_end, saved_name, saved_stack and read_ns, the start of the node."""
    nodes = ops[(ops["scope"] == BACKWARD) & ops["sequence"].notna()].sort_values("start_ns")
    forward = ops[ops["sequence"].notna()].reset_index(drop=True)
    nodes = nodes.assign(place=makers(nodes, forward))
    nodes = nodes[nodes["place"] >= 0]
    made = forward.iloc[nodes["place"]].reset_index(drop=True)
    pairs = pd.DataFrame(
        {
            "thread": made["thread"],
            "made_ns": made["start_ns"],
            "saved_end": made["end_ns"],
            "saved_name": made["name"],
            "saved_stack": made["stack"],
            "node_thread": nodes["thread"].to_numpy("object"),
            "read_ns": nodes["start_ns"].to_numpy(),
            "read_end": nodes["end_ns"].to_numpy(),
        }
    )
    touched = _within(accesses, pairs, "thread", "made_ns", "saved_end")
    reads = _within(accesses[~accesses["write"]], pairs, "node_thread", "read_ns", "read_end")
    reads = reads[["storage", "read_ns", "node_thread"]].drop_duplicates()
    return touched.merge(reads, on=["storage", "read_ns", "node_thread"])


def _within(
    accesses: pd.DataFrame, pairs: pd.DataFrame, thread: str, start: str, end: str
) -> pd.DataFrame:
    """Accesses of a thread between start and end of a pair, with its columns."""
    left = accesses[["thread", "start_ns", "storage", "offset", "until"]]
    left = left.rename(columns={"thread": "by", "start_ns": "at"}).sort_values("at")
    right = pairs.sort_values(start).rename(columns={thread: "by"}).astype({"by": "object"})
    found = pd.merge_asof(left, right, left_on="at", right_on=start, by="by")
    found = found[found["at"] < found[end]]
    return found.rename(columns={"by": thread}).drop(columns="at")


def _unseen(ops: pd.DataFrame) -> pd.DataFrame:
    """Outermost operators outside of backward and optimizers that made no node."""
    outer = (ops["scope"] == "function") & (ops["depth"] == 0)
    outer &= ~ops["phase"].str.fullmatch(_OTHERS) & (ops["stack"].fillna(-1) >= 0)
    made = ops[(ops["scope"] == BACKWARD) & ops["sequence"].notna()]["sequence"]
    last = ops[ops["scope"] == "function"].drop_duplicates(["thread", "sequence"], keep="last")
    makes = last[last["sequence"].isin(made)]["start_ns"]
    rows = ops[outer & ops["end_ns"].gt(ops["start_ns"])]
    instants = np.sort(makes.to_numpy())
    inside = np.searchsorted(instants, rows["end_ns"]) - np.searchsorted(instants, rows["start_ns"])
    return rows[inside == 0]


def _texts(frame: pd.DataFrame) -> pd.DataFrame:
    columns = [one for one in ("thread", "name", "scope", "phase") if one in frame]
    return frame.assign(**{one: frame[one].astype("str").astype("object") for one in columns})


def _finding(run: Run, rank: int, row: pd.Series) -> Finding:
    where, saved_at = (own_place(run, rank, stack_of(row, one)) for one in ("stack", "saved_stack"))
    name = storage_names(run, rank).get(int(row["storage"])) or "a tensor"
    at, by = (at_place(one) for one in (where, saved_at))
    start = int(row["start_ns"])
    return finding_at(
        run,
        rank,
        row,
        kind="inplace_modification",
        severity="error",
        title=f"{row['name']}{at} changes {name} in place, which {row['saved_name']}{by} saved for "
        "backward, and autograd does not see it (.data, NumPy, or an attribute of ctx): backward "
        "computes gradients from the new numbers. Let the change make a new tensor, or move it "
        "behind backward.",
        where=where,
        evidence={"cause": "silent", "tensor": name, "saved_at": saved_at},
        link=timeline_address(start, start + 1, run.duration_ns),
    )
