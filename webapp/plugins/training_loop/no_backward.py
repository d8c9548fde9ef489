"""Finds training without a single backward: each step fails before, and what it raises is caught.

A model is called in training mode with gradients, time and again, and the loss of its output is
computed, or raises. Nowhere in the run is there a backward pass, and nothing reads the loss: a
search without gradients compares it, an evaluation writes it down.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import having, phases_of_kind, texts_of, to_frame
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.forward_ops import BACKWARD
from lanescope.webapp.analysis.links import at_place, timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_models
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_CALLS, _LOOKED_AT = 8, 32
_LOSS = re.compile(r"aten::(cross_entropy_loss|nll_loss|\w+_loss|kl_div|binary_cross_entropy\w*)")


def no_backward(run: Run) -> list[Finding]:
    """Returns findings of kind `dead_parameter`, at most one per rank. Raises NotApplicable."""
    modes = need_models(run)
    scopes = texts_of(run, "op", "scope")
    backward = schema.PhaseKind.backward.name in texts_of(run, "phase", "kind")
    if backward or BACKWARD in scopes or schema.OpScope.compiled.name in scopes:
        return []
    found = []
    for rank in run.ranks:
        own = modes[modes["rank"] == rank]
        losses = _losses(run, rank)
        enough = len(own) and own["value"].all() and len(losses) >= _MIN_CALLS
        # A search and an evaluation read all; of the others memory that is used again looks so.
        if enough and _share_read(run, rank, losses.head(_LOOKED_AT)) < 0.5:
            found.append(_finding(run, rank, losses))
    return found


def _losses(run: Run, rank: int) -> pd.DataFrame:
    """The first loss after each call of a model with gradients: start_ns, duration_ns, thread,
    step, stack."""
    found = []
    for thread in run.threads_of(rank):
        calls = phases_of_kind(run, schema.PhaseKind.forward, rank, thread.thread)["start_ns"]
        if len(calls) < _MIN_CALLS:
            continue
        columns = ["start_ns", "duration_ns", "depth", "name", "step", "stack"]
        ops = run.events("op", rank, thread.thread, columns)
        outer = pc.equal(ops["depth"], 0).to_numpy() & having(ops["name"], _LOSS.fullmatch)
        losses = to_frame(ops.filter(pa.array(outer))).sort_values("start_ns")
        after = calls.searchsorted(losses["start_ns"])
        first = losses.assign(call=after, thread=thread.thread).drop_duplicates("call")
        found.append(first[first["call"] > 0])
    return pd.concat(found or [pd.DataFrame(columns=["start_ns"])])


def _share_read(run: Run, rank: int, losses: pd.DataFrame) -> float:
    columns = ["start_ns", "storage", "bytes", "write", "birth"]
    found = []
    for thread, own in losses.groupby("thread"):
        rows = to_frame(run.events("access", rank, str(thread), columns))
        found += [_is_read(rows, loss) for _, loss in own.iterrows()]
    return float(np.mean(found))


def _is_read(rows: pd.DataFrame, loss: pd.Series) -> bool:
    """Whether an operator reads what a loss wrote, before another tensor takes its memory."""
    begin = int(loss["start_ns"])
    end = begin + int(loss["duration_ns"])
    own = rows["start_ns"].between(begin, end)
    made = rows.loc[own & rows["birth"] & (rows["bytes"] <= 8), "storage"]
    later = rows[(rows["start_ns"] > end) & rows["storage"].isin(made)]
    born_again = later[later["birth"]].groupby("storage")["start_ns"].min()
    until = later["storage"].map(born_again).fillna(np.inf)
    return bool((~later["write"] & ~later["birth"] & (later["start_ns"] < until)).any())


def _finding(run: Run, rank: int, losses: pd.DataFrame) -> Finding:
    first, stacks = losses.iloc[0], losses["stack"].dropna()
    where = own_place(run, rank, int(stacks.iloc[0])) if len(stacks) else None
    start = int(first["start_ns"])
    return finding_at(
        run,
        rank,
        first,
        kind="dead_parameter",
        confidence="likely",
        title="Nothing is trained: a model is called in training mode and its loss computed"
        f"{at_place(where)}, {units.count(len(losses))} times, but backward() "
        "never runs, and nothing reads the loss. Look for an exception of each step that is caught "
        "and passed over.",
        where=where,
        evidence={"cause": "no_backward", "losses": len(losses)},
        link=timeline_address(start, start + 1, run.duration_ns),
    )
