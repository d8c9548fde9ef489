"""The memory of tensors: how large each storage is, how long it lives, and what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lanescope.webapp.analysis.arrow_columns import ends_ns, having
from lanescope.webapp.analysis.stack_frames import where_of
from lanescope.webapp.plugins.time.breakdown import phases_of, training_thread
from lanescope.webapp.runs.intervals import Intervals, enclosing
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray, Int64Array, Window

STORAGE_CATEGORIES: Mapping[str, str] = {
    "parameters": "parameters and buffers",
    "optimizer_state": "optimizer state",
    "gradients": "gradients",
    "activations": "activations",
    "temporary": "temporary",
    "other": "other",
    "before": "allocated before the trace",
}
"""Name -> what people read, in the order in which charts stack them."""

PHASES = ("forward", "backward", "optimizer")

_NODE = "autograd::engine::evaluate_function"
"""Begins the operators of backward in traces of torch.profiler."""


@dataclass(frozen=True, eq=False)
class Storages:
    """Storages of a rank's process, by no order. Times are ns from the start of the run.

    A storage is in use from `born_ns` to `end_ns`, and is freed no later than `freed_ns`. Of
    recorded accesses the last one ends the use, and the next storage at the address shows that it
    was freed; of allocator events both are the instant when it was freed.
    """

    rank: int
    window: Window  # what was read of the run
    size: Int64Array  # bytes
    born_ns: Int64Array
    end_ns: Int64Array
    freed_ns: Int64Array
    device: np.ndarray  # text: cpu, cuda:0
    category: np.ndarray  # text, of CATEGORIES
    name: np.ndarray  # text: of the parameter or buffer; "" of others
    op: np.ndarray  # text: operator that allocated it; "" where none was recorded
    module: np.ndarray  # text
    where: np.ndarray  # text: file.py:12, line of the program that allocated it

    def __len__(self) -> int:
        return len(self.size)


def phase_spans(run: Run, rank: int) -> dict[str, Intervals]:
    """Returns when a rank is in each of PHASES.

    Imported traces state the optimizer at most: there backward is where its nodes run, and forward
    the rest of the steps.
    """
    found = {
        name: spans
        for name, spans in phases_of(run, training_thread(run, rank)).items()
        if name in PHASES
    }
    if "backward" not in found:
        ops = run.events("op", rank, columns=["start_ns", "duration_ns", "name"])
        nodes = having(ops["name"], lambda one: one.startswith(_NODE))
        found["backward"] = Intervals.of(
            ops["start_ns"].to_numpy()[nodes], ends_ns(ops, run)[nodes]
        )
    if "forward" not in found:
        steps = run.steps(rank)
        forward = Intervals.of(steps.start_ns, steps.end_ns)
        for other in found.values():
            forward = forward.subtraction(other)
        found["forward"] = forward
    return found


def phase_at(spans: Mapping[str, Intervals], instants: Int64Array) -> np.ndarray:
    """Returns the phase of each instant; "" outside of all."""
    found = np.full(len(instants), "", dtype=object)
    for name, span in spans.items():
        found[enclosing(span.start, span.end, instants) >= 0] = name
    return found


def storage_categories(
    named: BoolArray,
    born: np.ndarray,
    used: Mapping[str, BoolArray],
    again: BoolArray,
    reduced: BoolArray,
) -> np.ndarray:
    """Returns the category of each storage; the first rule that applies decides.

    parameters        holds a parameter or buffer that the recording names
    optimizer_state   only the optimizer uses it (`again`: at a later step than the first)
    gradients         backward made it and the optimizer uses it; or it was there before, or for
                      steps, and backward writes it (`reduced`), as into a bucket of
                      DistributedDataParallel
    activations       forward made it, and backward uses it
    temporary         made within a phase, and used by no later one
    other             made outside of all phases, as inputs are

    `born`: the phase in which it was made. `used`: by phase, whether that uses it.
    """
    nowhere_else = ~used["forward"] & ~used["backward"]
    rules = [
        (named, "parameters"),
        (again & nowhere_else & ((born == "optimizer") | (born == "")), "optimizer_state"),
        ((born == "backward") & used["optimizer"] | reduced, "gradients"),
        ((born == "forward") & used["backward"], "activations"),
        (born != "", "temporary"),
    ]
    found = np.select([flags for flags, _ in rules], [name for _, name in rules], "other")
    return found.astype(object)


def allocation_sites(
    run: Run, rank: int, thread: str, instants: Int64Array, window: Window
) -> dict[str, np.ndarray]:
    """Returns op, module, where and device (texts) of the operators of a thread that run at given
    instants: of operators within each other the innermost that has one."""
    columns = ["start_ns", "duration_ns", "name", "module", "stack", "depth", "device"]
    ops = run.events("op", rank, thread, columns, window)
    start, end = ops["start_ns"].to_numpy(), ends_ns(ops, run)
    depth = ops["depth"].to_numpy()
    stacks = ops["stack"].fill_null(-1).to_numpy()
    texts = {
        key: np.array(ops[column].cast(pa.string()).fill_null("").to_pylist(), dtype=object)
        for key, column in (("op", "name"), ("module", "module"), ("device", "device"))
    }
    found = {key: np.full(len(instants), "", dtype=object) for key in (*texts, "where")}
    stack = np.full(len(instants), -1)
    for level in np.unique(depth):
        rows = np.flatnonzero(depth == level)
        rows = rows[np.argsort(start[rows], kind="stable")]
        at = enclosing(start[rows], end[rows], instants)
        inside = np.flatnonzero(at >= 0)
        around = rows[at[inside]]
        for key, column in texts.items():
            known = column[around] != ""
            found[key][inside[known]] = column[around[known]]
        known = stacks[around] >= 0
        stack[inside[known]] = stacks[around[known]]
    for one in np.unique(stack[stack >= 0]).tolist():
        found["where"][stack == one] = where_of(run, rank, one) or ""
    return found
