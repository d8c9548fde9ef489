"""Values that two programs logged, and what their models returned: where these differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import pandas as pd

from lanescope.collector.format.names import BATCH_HASH, BATCH_ROWS, BUFFER_HASH, LOSS_SCALE
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.links import and_more
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_OF_THE_MACHINE = re.compile(
    r"time|elapsed|second|speed|/s\b|per_s|(^|[^a-z])(s|ms|us|ns|eta|fps|tps|mfu|wall)($|[^a-z])"
    r"|throughput|latency|duration|memory|bytes|util",
    re.IGNORECASE,
)
"""Series that differ between two recordings of one program: they do not decide."""


_KEYS = ("rank", "step", "name")


def _beside(
    base: pd.DataFrame,
    run: pd.DataFrame,
    by: Sequence[str] = _KEYS,
    values: Sequence[str] = ("value",),
) -> pd.DataFrame:
    """Returns `values` of two runs that have the same keys `by`, and the same place among these."""
    keys = [*by]
    if base.empty or run.empty:
        none = base.iloc[:0].astype({"name": "object"})
        ends = {f"{name}_{side}": none[name] for name in values for side in ("base", "run")}
        return none[keys].assign(call=0, **ends)
    sides = []
    for one in (base, run):
        rows = one.sort_values("time_ns", kind="stable").astype({"name": "object"})
        rows["call"] = rows.groupby(keys).cumcount()
        sides.append(rows[[*keys, "call", *values]])
    return sides[0].merge(sides[1], on=[*keys, "call"], suffixes=("_base", "_run"))


@lru_cache(maxsize=2)
def batches_differ(base: Run, run: Run) -> pd.DataFrame:
    """Returns samples of batches, arguments and outputs that both runs hold and that differ, by
    step.

    rank, step, name (loaded/0, input/<class>/0, output/<class>/0), call, rows_base and rows_run
    (how many rows of it were looked at). Callers must not change it.
    """
    sides = _with_rows(base), _with_rows(run)
    # What one run alone loads beside them, as for an evaluation, shifts the others.
    same = _beside(*sides, (*_KEYS, "value"), ("rows",))
    was, now = (_without(one, same, (*_KEYS, "value")) for one in sides)
    alike = _beside(was, now, (*_KEYS, "rows"))
    alike = alike.assign(rows_base=alike["rows"], rows_run=alike["rows"]).drop(columns="rows")
    # Of another number of rows are those of another batch size.
    for pairs in (same, alike):
        was, now = (_without(one, pairs, _KEYS) for one in (was, now))
    others = _beside(was, now, values=("value", "rows"))
    apart = pd.concat([one for one in (alike, others) if len(one)] or [alike])
    return apart.sort_values(["step", "rank"], kind="stable", ignore_index=True)


def _without(rows: pd.DataFrame, pairs: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Returns the rows without those that `pairs` has: each of them, or all of these keys."""
    keys = [*by, *(["call"] if "value" in by else [])]
    numbered = rows.assign(call=rows.groupby([*by], dropna=False).cumcount())
    found = numbered.merge(pairs[keys].drop_duplicates(), "left", keys, indicator=True)
    return rows[(found["_merge"] == "left_only").to_numpy()]


def _with_rows(run: Run) -> pd.DataFrame:
    """Returns the hashes of batches with the number of rows that each was made of."""
    sides = []
    for prefix in (BATCH_HASH, BATCH_ROWS):
        rows = logged(run, None, prefix=prefix).sort_values("time_ns", kind="stable")
        rows = rows.astype({"name": "object"})
        sides.append(rows.assign(call=rows.groupby([*_KEYS]).cumcount()))
    counts = sides[1].assign(rows=sides[1]["value"].abs())[[*_KEYS, "call", "rows"]]
    return sides[0].merge(counts, "left", [*_KEYS, "call"])


def outputs_differ(base: Run, run: Run) -> str | None:
    """Returns the first step at which a model returned something else, or a buffer of it was
    something else; None where none was seen."""
    apart = batches_differ(base, run)
    made = apart[apart["name"].str.startswith("output/")]
    if made.empty:
        return _buffers_differ(base, run)
    first = made.iloc[0]
    model = units.printable(str(first["name"]).split("/")[1])
    return f"{model} returns other values since step {int(first['step'])} at the latest"


def _buffers_differ(base: Run, run: Run) -> str | None:
    both = _beside(*(logged(one, None, prefix=BUFFER_HASH) for one in (base, run)))
    apart = both[both["value_base"] != both["value_run"]].sort_values("step", kind="stable")
    if apart.empty:
        return None
    name, several = units.printable(str(apart.iloc[0]["name"])), apart["name"].nunique()
    return (
        f"buffer {name}{and_more(several, 'buffer')} differ{'s' * (several == 1)} since step "
        f"{int(apart.iloc[0]['step'])} at the latest: compare the settings of its module"
    )


def _values(run: Run) -> pd.DataFrame:
    rows = to_frame(run.events("value", columns=["rank", "step", "name", "value", "time_ns"]))
    rows = rows.assign(name=rows["name"].astype("object").astype("str"))
    names = rows["name"].drop_duplicates()
    known = {
        name
        for name in names
        if not name.startswith("lanescope/")
        and name != LOSS_SCALE
        and ("loss" in name.lower() or not _OF_THE_MACHINE.search(name))
    }
    return rows[rows["name"].isin(known)]


def values_differ(base: Run, run: Run, relative: float) -> str | None:
    """Returns the first value of the program's own series that differs; a loss comes first.

    By more than `relative` of the larger. Series of times, speeds and memory are left out. None: no
    such series, or all are equal.
    """
    both = _beside(_values(base), _values(run))
    low, high = both["value_base"], both["value_run"]
    far = (low - high).abs() > relative * low.abs().combine(high.abs(), max)
    apart = both[far | (low.isna() != high.isna())]
    if apart.empty:
        return None
    no_loss = ~apart["name"].str.contains("loss", case=False)
    first = apart.assign(no_loss=no_loss).sort_values(["step", "no_loss"], kind="stable").iloc[0]
    return (
        f"the logged value {units.printable(str(first['name']))} differs since step "
        f"{int(first['step'])}: {first['value_base']:.9g} became {first['value_run']:.9g}"
    )
