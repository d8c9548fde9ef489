"""Finds recurrences that begin with the state of another sample: a DataLoader shuffles, and each
batch gets the state that the batch before it left.

Read from the bytes that the operators of recurrences read, and when these were allocated.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.loader_names import LOADER_ORDER
from lanescope.collector.format.names import IN_ORDER
from lanescope.webapp.analysis.arrow_columns import (
    ops_named,
    phases_of_kind,
    stack_of,
)
from lanescope.webapp.analysis.cluster import found_per_rank
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_accesses, need_backward, of_operators
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.losses.tensor_reads import OPERATOR_KEY, READ_COLUMNS, TensorReads
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray

_RECURRENCE = re.compile(r"aten::(gru|lstm|rnn_tanh|rnn_relu)(_cell)?(\.\w+)?")
_COUNTED, _MIN_CARRIED = 24, 4
"""Calls that are looked at, and those among them that begin with the state of another batch."""


@of_operators(_RECURRENCE, "calls no recurrent layer")
@found_per_rank(need_accesses, need_backward)
def carried_states(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `mixed_samples`, at most one per rank. Raises NotApplicable."""
    if logged(run, rank, prefix=LOADER_ORDER).empty:
        return None  # nothing shuffles
    orders = logged(run, rank, IN_ORDER).sort_values("time_ns")
    for thread in run.threads_of(rank):
        columns = [*OPERATOR_KEY, "duration_ns", "name", "step", "stack", "sequence"]
        ops = ops_named(run, rank, thread.thread, columns, _RECURRENCE.fullmatch)
        ops = ops[ops["sequence"].notna()].head(_COUNTED)
        ops = ops.assign(thread=thread.thread, end=ops["start_ns"] + ops["duration_ns"])
        if len(ops) <= _MIN_CARRIED:
            continue
        shuffled = [not _in_order(orders, one) for one in ops["start_ns"]]
        carries = _that_carry(run, rank, thread.thread, ops)
        carried = ops[np.array(shuffled) & carries]
        if len(carried) >= _MIN_CARRIED:
            return _finding(run, rank, carried, len(ops))
    return None


def _in_order(orders: pd.DataFrame, time_ns: int) -> bool:
    """Whether the DataLoader that is in use goes through its data in their order."""
    before = orders.loc[orders["time_ns"] < time_ns, "value"]
    return before.empty or bool(before.iloc[-1])


def _that_carry(run: Run, rank: int, thread: str, ops: pd.DataFrame) -> BoolArray:
    """Which calls read what an earlier call made, before another batch was loaded."""
    starts, ends = ops["start_ns"].to_numpy(), ops["end"].to_numpy()
    window = int(starts[0]), int(ends[-1]) + 1
    memory = TensorReads(run.events("access", rank, thread, READ_COLUMNS, window))
    loaded = phases_of_kind(run, schema.PhaseKind.data, rank, thread)["start_ns"].to_numpy()
    found = np.zeros(len(ops), bool)
    for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
        births = np.array([birth for _, birth in memory.read(int(start), int(end))], np.int64)
        makers = np.searchsorted(starts[:at], births, "right") - 1
        within = (makers >= 0) & (births < ends[makers])
        since = np.searchsorted(loaded, births[within])
        found[at] = (since < np.searchsorted(loaded, start)).any()
    return found


def _finding(run: Run, rank: int, carried: pd.DataFrame, calls: int) -> Finding:
    first = carried.iloc[0]
    where = own_place(run, rank, stack_of(first))
    name = str(first["name"]).removeprefix("aten::").partition(".")[0]
    return finding_at(
        run,
        rank,
        first,
        kind="mixed_samples",
        severity="warning",
        confidence="likely",
        title=f"{name}{at_place(where)} begins with the state that the "
        f"batch before left, in {units.count(len(carried))} of {units.count(calls)} calls that "
        "were looked at, and the DataLoader shuffles: the state is that of other samples. Begin "
        "each batch without a state, or leave out shuffle and let batches go on where the last one "
        "ended.",
        where=where,
        evidence={"cause": "carried_state", "calls": calls, "carried": len(carried)},
    )
