"""Names the lines between two modules of two runs, where the first module returns the same."""

from __future__ import annotations

from itertools import zip_longest

import pandas as pd

from lanescope.collector.format.names import SETTINGS
from lanescope.webapp.analysis.arrow_columns import stack_of, to_frame
from lanescope.webapp.analysis.parameter_history import logged
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
    names = [list(side["name"]) for side in sides]
    if not any(names) or (names[0] == names[1] and _other_settings(base, run, layer.module)):
        return None
    apart = next((at for at, (a, b) in enumerate(zip_longest(*names)) if a != b), 0)
    words = []
    for one, span, side in zip((run, base), layer.spans, sides, strict=True):
        op = side.iloc[apart] if apart < len(side) else None
        place = None if op is None else own_place(one, span.rank, stack_of(op))
        if op is not None and place is None:
            return None
        words.append("" if op is None else f"{op['name']} at {place}")
    start = f"{units.printable(layer.before)} before it returns the same: "
    if not all(words):
        side, other = ("baseline", "run") if words[1] else ("run", "baseline")
        return f"{start}in between, the {side} alone calls {''.join(words)}: the {other} lacks it"
    return (
        f"{start}compare the lines in between, from {words[0]} on, with those of the baseline, "
        f"from {words[1]} on"
    )


def _other_settings(base: Run, run: Run, module: str) -> bool:
    """Whether a setting of the module itself differs, which explains its output."""
    sides = [logged(one, min(one.ranks), prefix=f"{SETTINGS}{module}.") for one in (base, run)]
    return dict(zip(sides[0]["name"], sides[0]["value"], strict=True)) != dict(
        zip(sides[1]["name"], sides[1]["value"], strict=True)
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
