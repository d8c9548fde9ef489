"""The forward that made the recorded autograd graph: its operators, each with those it called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import having, to_frame
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array

DETACH = ("detach", "aten::detach", "aten::detach_")

NUMBERS = ("aten::item", "aten::_local_scalar_dense")
"""Operators that make a Python number of a tensor."""

DROPOUT = ("aten::dropout", "aten::native_dropout", "aten::feature_dropout")
DROPOUT_DRAWS = ("aten::bernoulli_", "aten::native_dropout")
"""What draws: aten::dropout itself does not where its probability is 0."""


@dataclass
class Operator:
    """An operator that no other called, with what those that it called did."""

    row: int
    name: str
    start: int
    end: int
    made: set[int] = field(default_factory=set)  # sequence numbers
    dtypes: list[str] = field(default_factory=list)
    copies: str = ""  # dtypes of a copy inside of it: of the result, then of the source
    reads: set[int] = field(default_factory=set)  # storages
    writes: set[int] = field(default_factory=set)
    born: set[int] = field(default_factory=set)  # storages that it made


def forward_rows(run: Run, rank: int, nodes: pd.DataFrame) -> pd.DataFrame:
    """Returns operators of the forward, on the thread of the backward, sorted."""
    thread, before = str(nodes["thread"].iloc[0]), int(nodes["time_ns"].iloc[0])
    columns = [
        "start_ns",
        "duration_ns",
        "name",
        "scope",
        "depth",
        "step",
        "module",
        "sequence",
        "dtypes",
        "stack",
    ]
    rows = to_frame(run.events("op", rank, thread, columns=columns, window=(0, before)))
    rows = rows[(rows["scope"] == "function") & (rows["step"] == nodes["step"].iloc[0])]
    within = np.flatnonzero(rows["module"] != "")
    rows = rows.iloc[int(within[0]) if len(within) else len(rows) :]
    return rows.assign(end_ns=rows["start_ns"] + rows["duration_ns"].fillna(0)).reset_index()


def outermost(rows: pd.DataFrame) -> list[Operator]:
    """Returns the operators of some rows that no other called, detaches left out."""
    ops: list[Operator] = []
    for row in rows.itertuples():
        if str(row.name) in DETACH:
            continue
        if not ops or row.start_ns >= ops[-1].end:
            ops.append(Operator(int(row.Index), str(row.name), int(row.start_ns), int(row.end_ns)))
            ops[-1].dtypes = str(row.dtypes).split()
        elif row.name == "aten::copy_" and not ops[-1].copies:
            ops[-1].copies = str(row.dtypes)
        if row.sequence == row.sequence:
            ops[-1].made.add(int(row.sequence))
    return ops


def add_accesses(run: Run, rank: int, nodes: pd.DataFrame, ops: list[Operator]) -> None:
    """Gives the operators their reads and writes."""
    if not ops or not run.counts_of(rank)["access"]:
        return
    columns = ["start_ns", "storage", "write", "birth"]
    table = run.events(
        "access",
        rank,
        str(nodes["thread"].iloc[0]),
        columns=columns,
        window=(ops[0].start, ops[-1].end + 1),
    )
    starts = np.array([op.start for op in ops])
    at = np.searchsorted(starts, table["start_ns"].to_numpy(), side="right") - 1
    rows = zip(at.tolist(), *(table[column].to_pylist() for column in columns), strict=True)
    for number, start, storage, write, birth in rows:
        if number < 0 or start >= max(ops[number].end, ops[number].start + 1):
            if not birth or number + 1 == len(ops):
                continue
            number += 1  # made for it, by an operator that was left out
        op = ops[number]
        (op.writes if write or birth else op.reads).add(storage)
        if birth:
            op.born.add(storage)


BACKWARD = schema.OpScope.backward.name


def maker(node: dict[str, Any], rows: Sequence[dict[str, Any]]) -> int | None:
    """Returns the position of a node's maker among `rows` of the op table with its sequence number.

    Sequence numbers count per forward thread, and an operator that makes no node may carry the
    number of the next one. The maker is the operator with the node's name (AddmmBackward0:
    aten::addmm) that began last before it, on the node's thread if one did.
    """
    fitting = [
        (row["thread"] != node["thread"], node["start_ns"] - row["start_ns"], k)
        for k, row in enumerate(rows)
        if row["scope"] != BACKWARD
        and row["start_ns"] <= node["start_ns"]
        and shared_stem(row["name"]) == shared_stem(node["name"])
    ]
    return min(fitting)[2] if fitting else None


def makers(nodes: pd.DataFrame, rows: pd.DataFrame) -> Int64Array:
    """Returns `maker` of many nodes at once: a position among `rows` for each, -1 for none.

    Both have thread, start_ns, name and sequence, `rows` also scope; neither lacks a sequence
    number. Nodes are sorted by start.
    """
    on_thread = ["sequence", "stem", "thread"]
    rows = rows.assign(stem=_stems(rows["name"]), position=np.arange(len(rows)))
    rows = rows[rows["scope"] != BACKWARD].sort_values("start_ns", kind="stable")
    rows = rows[["start_ns", "position", *on_thread]]
    wanted = nodes.assign(stem=_stems(nodes["name"]))[["start_ns", *on_thread]]
    near, far = (
        pd.merge_asof(wanted, rows.drop_duplicates([*by, "start_ns"]), on="start_ns", by=by)[
            "position"
        ]
        for by in (on_thread, on_thread[:2])
    )
    found: Int64Array = near.fillna(far).fillna(-1).to_numpy(np.int64)
    return found


def _stems(names: pd.Series) -> pd.Series:
    return names.map({name: shared_stem(name) for name in names.unique()}).astype("object")


def shared_stem(name: str) -> str:
    """Returns what the names of an op and its node share: nllloss of aten::nll_loss_forward."""
    bare = re.sub(r"Backwards?[0-9]*$", "", name.rpartition("::")[2])
    return re.sub(r"_forward$", "", bare).replace("_", "").lower()


def dropout_ops(run: Run, rank: int, columns: list[str]) -> pd.DataFrame:
    """Returns the operators of dropout, and those that draw its numbers; `columns` with `name`."""
    table = run.events("op", rank, columns=columns)
    return to_frame(table.filter(having(table["name"], {*DROPOUT, *DROPOUT_DRAWS}.__contains__)))
