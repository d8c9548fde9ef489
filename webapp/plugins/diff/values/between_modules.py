"""Names the lines between two modules of two runs, where the first module returns the same."""

from __future__ import annotations

import pandas as pd

from lanescope.webapp.analysis.arrow_columns import stack_of, to_frame
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.diff.values.first_layer import FirstLayer, ModuleSpan
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run


def computed_between(base: Run, run: Run, layer: FirstLayer | None) -> str | None:
    """Returns a sentence with the lines of both runs, at the first operators that are not the same
    ones; None: the module gets what the one before it returned, or the lines are not known."""
    if layer is None or layer.spans is None:
        return None
    sides = [_operators(*side) for side in zip((run, base), layer.spans, strict=True)]
    if any(side.empty for side in sides):
        return None
    pairs = list(zip(sides[0]["name"], sides[1]["name"], strict=False))
    apart = next((place for place, (one, other) in enumerate(pairs) if one != other), 0)
    ops = [side.iloc[apart] for side in sides]
    where = [
        own_place(one, span.rank, stack_of(op))
        for one, span, op in zip((run, base), layer.spans, ops, strict=True)
    ]
    if None in where:
        return None
    words = [f"{op['name']} at {place}" for op, place in zip(ops, where, strict=True)]
    return (
        f"{units.printable(layer.before)} before it returns the same: compare the lines in "
        f"between, from {words[0]} on, with those of the baseline, from {words[1]} on"
    )


def _operators(run: Run, span: ModuleSpan) -> pd.DataFrame:
    """Outermost operators that belong to neither module."""
    columns = ["start_ns", "name", "depth", "module", "stack"]
    window = span.since_ns, span.until_ns
    ops = to_frame(run.events("op", span.rank, span.thread, columns=columns, window=window))
    ops = ops.astype({"name": "str", "module": "str"})
    inside = (ops["start_ns"] > window[0]) & (ops["start_ns"] < window[1]) & (ops["depth"] == 0)
    ops = ops[inside & ops["stack"].notna()].sort_values("start_ns")
    before = f"{span.module}."
    own = (ops["module"] == span.module) | ops["module"].str.startswith(before)
    return ops[~own]
