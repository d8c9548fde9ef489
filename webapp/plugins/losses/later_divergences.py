"""Finds calls of kl_div in any backward whose first argument holds probabilities.

kl_div consists of operators: one of them multiplies its arguments. Where that reads what a softmax
or a sigmoid with a gradient made, the first argument holds probabilities: targets have no gradient.
Seen in the bytes that operators read, so the graph of the first backward need not hold the loss.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pandas as pd

from lanescope.webapp.analysis.arrow_columns import ops_named, stack_of, texts_of
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.losses.tensor_reads import (
    OPERATOR_KEY,
    READ_COLUMNS,
    Tensor,
    TensorReads,
)
from lanescope.webapp.runs.run import Run

_KL_DIV = "aten::kl_div"
_MADE = {"aten::_softmax": "Softmax", "aten::sigmoid": "Sigmoid"}
_TARGETS = ("aten::exp", "aten::xlogy")
"""Operators of kl_div on its target."""
_WANTED = re.compile(r"aten::(kl_div|_softmax|sigmoid|mul|exp|xlogy|log_)")
_CALLS = 4

Divergence = tuple[str | None, tuple[str, str | None]]
"""Place of kl_div; name of the node that made its first argument, and its place."""


def later_divergences(run: Run, rank: int) -> Iterator[Divergence]:
    """Yields what is wrong with the first calls of kl_div of each thread."""
    if _KL_DIV not in texts_of(run, "op", "name", rank) or not run.counts_of(rank)["access"]:
        return
    columns = [*OPERATOR_KEY, "duration_ns", "name", "stack", "sequence"]
    for thread in run.threads_of(rank):
        ops = ops_named(run, rank, thread.thread, columns, _WANTED.fullmatch)
        calls = ops[(ops["name"] == _KL_DIV)].head(_CALLS)
        if calls.empty or (ops["name"] == "aten::log_").any():  # of probabilities, in place
            continue
        ends = calls["start_ns"] + calls["duration_ns"].fillna(0)
        window = int(ops["start_ns"].min()), int(ends.max()) + 1
        memory = TensorReads(run.events("access", rank, thread.thread, READ_COLUMNS, window))
        made = _made(ops[ops["start_ns"] < window[1]], memory)
        for start, end, stack in zip(calls["start_ns"], ends, calls["stack"], strict=True):
            own = ops[(ops["start_ns"] > start) & (ops["start_ns"] < end)]
            own = own[own["sequence"].notna()]
            products = own[own["name"] == "aten::mul"]
            if len(products) != 1 or own["name"].isin(_TARGETS).any():
                continue
            key = int(products["start_ns"].iloc[0]), int(products["depth"].iloc[0])
            for tensor in memory.read_by(memory.at(*key)):
                if tensor in made:
                    op = made[tensor]
                    where = own_place(run, rank, None if pd.isna(stack) else int(stack))
                    yield where, (_MADE[str(op["name"])], own_place(run, rank, stack_of(op)))


def _made(ops: pd.DataFrame, memory: TensorReads) -> dict[Tensor, pd.Series]:
    """Tensors that a softmax or a sigmoid with a gradient made, and the operator."""
    found = {}
    for _, op in ops[ops["name"].isin(_MADE) & ops["sequence"].notna()].iterrows():
        accesses = memory.at(int(op["start_ns"]), int(op["depth"]))
        end = int(op["start_ns"] + op["duration_ns"])
        for at in accesses[memory.write[accesses]]:
            found[memory.tensor(int(memory.storage[at]), end)] = op
    return found
