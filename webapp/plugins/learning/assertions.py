"""Finds gradients that break what the program asserted of them
(`lanescope.collector.validation.assertions`).

Measured is what each optimizer step used, shards of all ranks put together; of a parameter that no
optimizer holds, its gradient at sampled steps. Parameters count while they are trainable.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lanescope.collector.format.marks import ExpectedGradient
from lanescope.webapp.analysis.arrow_columns import marks
from lanescope.webapp.analysis.fault_series import ranks_of
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import and_more, step_link
from lanescope.webapp.analysis.parameter_history import gradient_rows, samples
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.typed_json import json_number

_LISTED = 20  # parameters named in the evidence

_COLUMNS = ["rank", "parameter", "step", "norm", "missing"]


def assertions(run: Run) -> list[Finding]:
    """Returns findings of kind `validator`, one per assertion that does not hold."""
    expected = marks(run, ExpectedGradient.PREFIX)
    if not expected:
        return []
    rows = _measured(run)
    found = []
    for text in dict.fromkeys(row["name"] for row in expected):
        mark = ExpectedGradient.parse(text)
        if mark is not None:
            found += _judged(run, rows, mark.function, mark.bounds, mark.target)
    return found


def _measured(run: Run) -> pd.DataFrame:
    """One row per rank, step and parameter: rank, parameter, step, norm, missing, trainable."""
    taken, sampled = gradient_rows(run)[_COLUMNS], samples(run)
    alone = sampled[sampled["optimizer"] < 0]
    alone = alone.drop(columns="norm").rename(columns={"grad_norm": "norm"})[_COLUMNS]
    rows = pd.concat([taken, alone]).sort_values("step", kind="stable", ignore_index=True)
    flips = sampled[["rank", "parameter", "step", "trainable"]].sort_values("step", kind="stable")
    keys = ["rank", "parameter"]
    rows = pd.merge_asof(rows, flips, on="step", by=keys)
    rows["trainable"] = rows["trainable"].astype("boolean").fillna(value=True).astype(bool)
    return rows


def _judged(
    run: Run, rows: pd.DataFrame, function: str, bounds: dict[str, float], place: str
) -> list[Finding]:
    names = rows["parameter"].astype(str)
    within = names.str.startswith(place[:-1]) if place.endswith("*") else names == place
    mine = rows[within & (rows["step"] >= bounds["after"])]
    if mine.empty:
        return []
    own = mine[mine["trainable"]]
    if own.empty:
        own = mine  # what was to have a gradient is frozen
    wrong = own[_fails(own, function, bounds)]
    if wrong.empty:
        return []
    first = wrong[wrong["step"] == wrong["step"].iloc[0]]
    at, step = first.iloc[0], int(first["step"].iloc[0])
    parameters = list(dict.fromkeys(first["parameter"]))
    ranks = ranks_of(wrong)
    frozen = "; it is frozen" if not at["trainable"] else ""
    measured = "no gradient"
    if not at["missing"]:
        measured = f"a gradient of norm {units.number(at['norm'], 4)}"
    expected = _expected(function, bounds)
    failed, checked = wrong["step"].nunique(), own["step"].nunique()
    return [
        Finding(
            kind="validator",
            severity="error",
            title=f"Assertion {function} fails for {parameters[0]}"
            f"{and_more(len(parameters), 'parameter')} at step {step}: {measured}{frozen}, "
            f"expected {expected}; at {failed} of {checked} steps.",
            rank=ranks[0] if len(ranks) == 1 else None,
            ranks=ranks,
            step=step,
            evidence={
                "validator": function,
                "target": place,
                "verdict": "failed:",
                "times": len(wrong),
                "message": f"{measured}, expected {expected}",
                "measured": None if at["missing"] else json_number(float(at["norm"])),
                "expected": expected,
                "parameters": parameters[:_LISTED],
            },
            link=step_link(run, int(at["rank"]), step),
        )
    ]


def _fails(rows: pd.DataFrame, function: str, bounds: dict[str, float]) -> Any:
    norms, missing = rows["norm"].to_numpy(float), rows["missing"].to_numpy(bool)
    if function == "assert_finite_grad":
        return ~missing & ~np.isfinite(norms)
    if function == "assert_nonzero_grad":
        return missing | (norms == 0)
    inside = (norms >= bounds["least"]) & (norms <= bounds["most"])
    return np.where(missing, bounds["least"] > 0, ~inside)


def _expected(function: str, bounds: dict[str, float]) -> str:
    if function == "assert_finite_grad":
        return "a finite one"
    if function == "assert_nonzero_grad":
        return "more than 0"
    least, most = bounds["least"], bounds["most"]
    if most == np.inf:
        return f"at least {least:g}"
    return f"at most {most:g}" if least == 0 else f"{least:g} to {most:g}"
