"""Finds operators of a training whose result a line of the program throws away.

`F.relu(x)`, `self.dropout(x)` or `x + self.positions` as a statement: tensors stay as they are, and
what the line computes has no name. Found where the text of the line is such a statement, _MIN_STEPS
steps or more run it in forward or with a gradient, and no operator reads the result before its
memory holds another one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import ops_of_stacks, to_frame
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.source_lines import whole_files
from lanescope.webapp.analysis.stack_frames import own_frames, place_of
from lanescope.webapp.plugins.training_loop.dropped_updates import dropped_updates, unused
from lanescope.webapp.runs.run import Run

_MIN_STEPS, _STEPS = 5, 16
_MIN_SHARE = 0.5
"""Of the calls: those whose result nothing reads."""

_FORWARD = schema.PhaseKind.forward.name
_OPS = ["start_ns", "duration_ns", "depth", "name", "step", "phase", "module", "sequence", "stack"]


def unread_results(run: Run) -> list[Finding]:
    """Returns findings of kind `dead_parameter`, one per line and rank. Raises NotApplicable."""
    found = dropped_updates(run)
    return found + [one for rank in run.ranks for one in _of_rank(run, rank)]


@per_rank
def _of_rank(run: Run, rank: int) -> list[Finding]:
    lines = {
        (file, line): called
        for file, text in whole_files(run, rank).items()
        for line, called in _discarding("\n".join(text))
    }
    stacks = {}
    for stack in run.events("stack", rank, columns=["stack"])["stack"].to_pylist() if lines else ():
        for frame in own_frames(run, rank, stack)[:1]:
            if (frame["file"], frame["line"]) in lines:
                stacks[stack] = place_of(frame), lines[frame["file"], frame["line"]]
    found = []
    for thread in run.threads_of(rank) if stacks else ():
        ops = ops_of_stacks(run, rank, thread.thread, _OPS, list(stacks))
        phases = ops["phase"].astype("str")
        trains = (phases == _FORWARD) | ((phases == "") & ops["sequence"].notna())
        ops = ops[trains].astype({"stack": "int64"})
        for (stack, name), own in ops.groupby(["stack", "name"], sort=False, observed=True):
            where, called = stacks[int(str(stack))]
            own = own[own["step"].isin(own["step"].drop_duplicates().iloc[:_STEPS])]
            if own["step"].nunique() < _MIN_STEPS or not _calls(called, str(name), own):
                continue
            results = _results(run, rank, thread.thread, own)
            # Memory may go to an operator that is left out; a hook may read a result.
            if len(unused(run, rank, results)) >= _MIN_SHARE * len(own):
                first = own.iloc[0].copy()
                first["thread"] = thread.thread
                found.append(_finding(run, rank, first, where))
    return found


def _discarding(text: str) -> Iterator[tuple[int, str]]:
    """Yields lines of statements that throw away a result, with the last name of the function
    that is called ("relu" of F.relu(x), "self.relu" of self.relu(x)); empty: an operator as +."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr):
            continue
        called = ""
        if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
            of = node.value.func.value
            own = isinstance(of, ast.Name) and of.id == "self"
            called = "self." * own + node.value.func.attr
        elif not isinstance(node.value, ast.BinOp):
            continue
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            yield line, called


def _calls(called: str, name: str, ops: pd.DataFrame) -> bool:
    """Whether the statement calls the operator itself, or a module of `self` that does."""
    if called.startswith("self."):
        paths = "." + ops["module"].astype("str")
        return bool(paths.str.endswith(called.removeprefix("self")).all())
    return not called or name.rpartition("::")[2] == called


def _results(run: Run, rank: int, thread: str, ops: pd.DataFrame) -> pd.DataFrame:
    """Operators that made a tensor, with `storage` and `end_ns`."""
    ends = ops["start_ns"] + ops["duration_ns"].fillna(0).astype("int64")
    window = int(ops["start_ns"].min()), int(ends.max()) + 1
    table = run.events("access", rank, thread, ["start_ns", "storage", "birth"], window)
    born = to_frame(table.filter(table["birth"])).sort_values("start_ns", kind="stable")
    # Of what it and the operators within it made, the last one is the result.
    last = born["start_ns"].searchsorted(ends, side="right") - 1
    ops = ops.assign(end_ns=ends, made=last)[last >= 0]
    found = born.iloc[ops["made"]]
    within = found["start_ns"].to_numpy() >= ops["start_ns"].to_numpy()
    return ops.assign(storage=found["storage"].to_numpy())[within]


def _finding(run: Run, rank: int, first: pd.Series, where: str) -> Finding:
    return finding_at(
        run,
        rank,
        first,
        kind="dead_parameter",
        confidence="likely",
        title=f"What {where} computes ({first['name']}) is never used: the line is a statement "
        "that gives its result no name, so tensors stay as they are. Write x = ... there, or "
        "remove the line.",
        where=where,
        evidence={"cause": "discarded_result", "op": first["name"]},
    )
