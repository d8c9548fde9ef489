"""The first module whose output differs, from the norms that are recorded at some steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.plugins.diff.values.closeness import Mode, relative_of
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_KEYS = ["rank", "step", "module"]
_VALUES = ["time_ns", "norm", "dtype", "thread"]


@dataclass(frozen=True)
class ModuleSpan:
    """From the end of the module before to that of a module, in one run, nanoseconds."""

    rank: int
    thread: str
    module: str
    since_ns: int
    until_ns: int


@dataclass(frozen=True)
class FirstLayer:
    """Where the outputs of modules part; `module` is empty where all compared ones are equal."""

    rank: int
    step: int
    module: str
    base: float
    run: float
    before: str = ""  # the module that returned before it
    spans: tuple[ModuleSpan, ModuleSpan] | None = None  # of the run and the baseline

    @property
    def words(self) -> str:
        """The sentence of the verdict."""
        norms = [f"{norm:.9g}" for norm in (self.base, self.run)]
        if norms[0] == norms[1]:
            norms = [repr(self.base), repr(self.run)]
        return (
            f"the first module whose output differs is {units.printable(self.module)}, in step "
            f"{self.step}: its norm {norms[0]} became {norms[1]}"
        )


def first_layer(base: Run, run: Run, mode: Mode, least: float) -> FirstLayer | None:
    """Returns the first by rank, step and time, inner modules first; None: nothing to compare.

    A relative difference of `least` or less does not count, nor does one within the tolerance of
    the coarser dtype, except in mode bitwise.
    """
    sides = []
    for one in (base, run):
        rows = to_frame(one.events("activation", columns=[*_KEYS, *_VALUES]))
        rows = rows.sort_values("time_ns", kind="stable").astype({"module": "object"})
        sides.append(rows.assign(call=rows.groupby(_KEYS).cumcount()))
    both = sides[0].merge(sides[1], on=[*_KEYS, "call"], suffixes=("_base", "_run"))
    if both.empty:
        return None
    both = both.sort_values(["step", "time_ns_run"], kind="stable")
    low, high = both["norm_base"], both["norm_run"]
    allowed = 0.0 if mode == "bitwise" else _tolerances(both, least)
    far = (high - low).abs() > allowed * low.abs().combine(high.abs(), max)
    apart = both[far | (low.isna() != high.isna())]
    if apart.empty:
        last = both.iloc[-1]
        return FirstLayer(int(last["rank"]), int(last["step"]), "", 0.0, 0.0)
    first = apart.iloc[0]
    before = _before(both, first)
    return FirstLayer(
        int(first["rank"]),
        int(first["step"]),
        str(first["module"]),
        float(first["norm_base"]),
        float(first["norm_run"]),
        "" if before is None else str(before["module"]),
        None if before is None else (_span(before, first, "run"), _span(before, first, "base")),
    )


def _before(both: pd.DataFrame, first: pd.Series) -> pd.Series | None:
    """The module that returned last before another one, on its thread, in both runs."""
    same = both[(both["step"] == first["step"]) & (both["rank"] == first["rank"])]
    for side in ("_base", "_run"):
        earlier = same[f"time_ns{side}"] < first[f"time_ns{side}"]
        same = same[earlier & (same[f"thread{side}"] == first[f"thread{side}"])]
    if same.empty:
        return None
    ends = [same[f"time_ns{side}"].idxmax() for side in ("_base", "_run")]
    return same.loc[ends[0]] if ends[0] == ends[1] else None


def _span(before: pd.Series, first: pd.Series, side: str) -> ModuleSpan:
    return ModuleSpan(
        int(first["rank"]),
        str(first[f"thread_{side}"]),
        str(first["module"]),
        int(before[f"time_ns_{side}"]),
        int(first[f"time_ns_{side}"]),
    )


def _tolerances(both: pd.DataFrame, least: float) -> pd.Series:
    sides = [both[name].astype("object").map(relative_of) for name in ("dtype_base", "dtype_run")]
    return sides[0].combine(sides[1], max).clip(lower=least)


def first_gradient(differing: pd.DataFrame, layer: FirstLayer | None) -> pd.DataFrame:
    """Returns the row, of gradients that differ by step and rank, where the difference begins.

    `differing` is in the order in which parameters were recorded, and not empty. In the step of
    `layer` it is the first parameter of that module or of those that follow; where no output
    differs, the last one, as backward begins with it.
    """
    first = differing.iloc[0]
    same = differing[(differing["step"] == first["step"]) & (differing["rank"] == first["rank"])]
    if layer is None or layer.step != int(first["step"]):
        return same.iloc[[0]]
    if not layer.module:
        return same.iloc[[-1]]
    names: Sequence[str] = [str(name) for name in same["name"]]
    inside = [name.startswith(f"{layer.module}.") for name in names]
    return same.iloc[[inside.index(True)]] if any(inside) else same.iloc[[0]]
