"""What the user's own validators had to say, and which of its assertions do not hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lanescope.collector.format.marks import ExpectedGradient, ValidatorVerdict
from lanescope.webapp.analysis.arrow_columns import marks
from lanescope.webapp.analysis.fault_series import ranks_of
from lanescope.webapp.analysis.findings import Finding, NotApplicable, Severity
from lanescope.webapp.analysis.links import and_more, step_link, thread_lane, timeline_address
from lanescope.webapp.analysis.parameter_history import gradient_rows, samples
from lanescope.webapp.analysis.stack_frames import place_before
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.typed_json import json_number

_LISTED = 20  # parameters, or modules, named in the evidence

_COLUMNS = ["rank", "parameter", "step", "norm", "missing"]


def validators(run: Run) -> list[Finding]:
    """Returns findings of kind `validator`: one per validator and verdict, where it first came, and
    one per assertion that gradients do not hold. Raises NotApplicable."""
    verdicts = marks(run, ValidatorVerdict.PREFIX)
    if not verdicts and not marks(run, ExpectedGradient.PREFIX):
        raise NotApplicable("the program has no validator and no assertion of gradients")
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in verdicts:
        mark = ValidatorVerdict.parse(row["name"])
        if mark is not None and mark.verdict != "called":
            key = mark.verdict, mark.name, mark.target
            found.setdefault(key, []).append({**row, "message": mark.message})
    return [_finding(run, key, marks) for key, marks in found.items()] + assertions(run)


def _passed_over(name: str, place: str, message: str) -> str:
    """What a validator did not see of compiled code. `message` is the module, and the reason."""
    if "::" in place:
        return (
            f"Validator {name} does not see {place} where torch.compile fuses it with other "
            "operators. Record with --compile-backend aot_eager, which runs each on its own."
        )
    module, _, reason = message.partition(": ")
    if not reason:
        return (
            f"Validator {name} does not look at {place} inside of compiled code ({module}). "
            "Register it with compiled=True."
        )
    return (
        f"Validator {name} cannot look at {place} inside of compiled code ({module}: {reason}). "
        "Set TORCH_COMPILE_DISABLE=1 to run it uncompiled."
    )


def _finding(run: Run, key: tuple[str, str, str], marks: list[dict[str, Any]]) -> Finding:
    verdict, name, place = key
    first = marks[0]
    ranks = tuple(sorted({int(mark["rank"]) for mark in marks}))
    modules = list(dict.fromkeys(m["module"] for m in marks if m["module"] not in ("", place)))
    severity: Severity = "error"
    where = None
    if verdict == "idle":
        severity = "info"
        title = f"Validator {name} was never called: the run has no {place}. Check that name."
    elif verdict == "compiled":
        severity = "info"
        title = _passed_over(name, place, first["message"])
    else:
        what = "failed" if verdict == "failed" else "itself raised"
        times = "once" if len(marks) == 1 else f"{len(marks)} times"
        within = f" (module {modules[0]}{and_more(len(modules), 'module')})" if modules else ""
        title = f"Validator {name} of {place}{within} {what} {times}"
        title += f", first: {first['message']}" if first["message"] else ""
        where = place_before(run, int(first["rank"]), first["thread"], int(first["start_ns"]) + 1)
    start = int(first["start_ns"])
    lane = thread_lane(first["rank"], first["thread"])
    return Finding(
        kind="validator",
        severity=severity,
        title=title,
        rank=ranks[0] if len(ranks) == 1 else None,
        ranks=ranks,
        thread=first["thread"],
        step=first["step"],
        time_ns=start,
        where=where,
        evidence={
            "validator": name,
            "target": place,
            "modules": modules[:_LISTED],
            "verdict": f"{verdict}:",
            "times": len(marks),
            "message": first["message"],
        },
        link=timeline_address(start, start, run.duration_ns, (lane, start)),
    )


def assertions(run: Run) -> list[Finding]:
    """Returns findings of kind `validator`, one per assertion of the program about its gradients
    (`lanescope.collector.validation.assertions`) that does not hold.

    Measured is what each optimizer step used, shards of all ranks put together; of a parameter that
    no optimizer holds, its gradient at sampled steps. Parameters count while they are trainable.
    """
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
