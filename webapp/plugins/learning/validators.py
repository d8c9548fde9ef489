"""What the user's own validators had to say, and which of its assertions do not hold."""

from __future__ import annotations

from typing import Any

from lanescope.collector.format.marks import ExpectedGradient, ValidatorVerdict
from lanescope.webapp.analysis.arrow_columns import marks
from lanescope.webapp.analysis.findings import Finding, NotApplicable, Severity
from lanescope.webapp.analysis.links import thread_lane, timeline_address
from lanescope.webapp.plugins.learning.assertions import assertions
from lanescope.webapp.runs.run import Run


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
    severity: Severity = "error"
    if verdict == "idle":
        severity = "info"
        title = f"Validator {name} was never called: the run has no {place}. Check that name."
    elif verdict == "compiled":
        severity = "info"
        title = _passed_over(name, place, first["message"])
    else:
        what = "failed" if verdict == "failed" else "itself raised"
        times = "once" if len(marks) == 1 else f"{len(marks)} times"
        title = f"Validator {name} of {place} {what} {times}"
        title += f", first: {first['message']}" if first["message"] else ""
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
        evidence={
            "validator": name,
            "target": place,
            "verdict": f"{verdict}:",
            "times": len(marks),
            "message": first["message"],
        },
        link=timeline_address(start, start, run.duration_ns, (lane, start)),
    )
