"""Is the run within the limits? The metrics, their limits, and all findings."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lanescope.webapp.analysis.findings import (
    SEVERITIES,
    Examined,
    Finding,
    Severity,
    Unanswered,
    acknowledged,
    answer,
    examine,
    fault,
    ranked,
)
from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.plugins.autograd_graph.traceability import graph_traceability
from lanescope.webapp.plugins.checks.overhead import memory_overhead
from lanescope.webapp.plugins.collectives.communication import comm_compute_overlap
from lanescope.webapp.plugins.diff.diff import compare
from lanescope.webapp.plugins.diff.repeats import gradient_fluctuation
from lanescope.webapp.plugins.diff.verdict_words import difference_address
from lanescope.webapp.plugins.threads.overlap import overlap_rate
from lanescope.webapp.runs import units
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.settings import Settings
from lanescope.webapp.runs.typed_json import plain_json

DEFAULTS = Settings()

BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "thread_overlap_rate": ("below", operator.lt),
    "gradient_fluctuation": ("at most", operator.le),
    "graph_traceability": ("at least", operator.ge),
    "memory_overhead": ("below", operator.lt),
}
"""Metrics that have a limit (`Settings.limits`): the word for it, and whether a value passes."""


TOLD_BY = {
    "thread_overlap_rate": "overlap",
    "gradient_fluctuation": "nondeterminism",
    "graph_traceability": "untraceable_graph",
}
"""The kind of finding that tells what is behind a metric beyond its limit."""


@dataclass(frozen=True)
class Check:
    """One metric held against its limit."""

    name: str
    value: float
    limit: float

    @property
    def bound(self) -> str:
        """On which side of the limit it passes: below, at most, at least."""
        return BOUNDS[self.name][0]

    @property
    def passed(self) -> bool:
        """Within the limit."""
        return BOUNDS[self.name][1](self.value, self.limit)

    def to_json(self) -> dict[str, Any]:
        """The check as `check --json` prints it."""
        return {
            "name": self.name, "value": self.value, "limit": self.limit, "passed": self.passed,
        }  # fmt: skip


@dataclass(frozen=True)
class Report:
    """What `check` has to say about a run. A metric that could not be measured is None."""

    run: str
    metrics: dict[str, Any]
    checks: tuple[Check, ...]
    examined: tuple[Examined, ...]
    unmeasured: Mapping[str, str] = field(default_factory=dict)  # metric -> fault of LaneScope

    @property
    def faults(self) -> dict[str, str]:
        """What a fault of LaneScope kept from an answer: metric or question -> the fault."""
        return {
            **self.unmeasured,
            **{one.question: one.failed for one in self.examined if one.failed},
        }

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, most severe first."""
        return tuple(ranked([finding for one in self.examined for finding in one.findings]))

    @property
    def untold(self) -> tuple[Check, ...]:
        """Checks that failed, and no finding that is an error tells of it."""
        told = {finding.kind for finding in self.findings if finding.severity == "error"}
        return tuple(
            one for one in self.checks if not one.passed and TOLD_BY.get(one.name) not in told
        )

    @property
    def errors(self) -> int:
        """Findings that are errors, failed checks of which none of them tells, and faults."""
        severe = sum(one.severity == "error" for one in self.findings)
        return severe + len(self.untold) + len(self.faults)

    def failed(self, least: Severity) -> bool:
        """Whether a check failed or could not be made, or a finding is at least that severe.

        What LaneScope failed to check has not passed.
        """
        severe = any(counts(finding, least) for finding in self.findings)
        return severe or bool(self.faults) or not all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The object that `check --json` prints."""
        found: dict[str, Any] = plain_json(
            {
                "run": self.run,
                "metrics": self.metrics,
                "checks": [check.to_json() for check in self.checks],
                "findings": [finding.to_json() for finding in self.findings],
                "examined": [one.to_json() for one in self.examined],
                "errors": [{"in": name, "error": error} for name, error in self.faults.items()],
            }
        )
        return found


def number(metric: str, value: float) -> str:
    """The value of a metric, for people: a share, but for the spread of norms."""
    return units.number(value) if metric == "gradient_fluctuation" else units.share(value)


def counts(finding: Finding, least: Severity) -> bool:
    """Whether a finding is `least` severe or worse."""
    return SEVERITIES.index(finding.severity) <= SEVERITIES.index(least)


def check(
    run: Run, baseline: Run | None = None, settings: Settings = DEFAULTS, noise: Run | None = None
) -> Report:
    """Measures what can be measured of the run and holds it against the limits of `settings`.

    With a baseline, a divergence from it (mode tolerance, `noise` as in `compare`) is a finding.
    Findings that are meant to be (`Settings.allowed`) are told as information, with the reason in
    their evidence. Others that tell of a metric are as severe as its check: errors where it failed.
    """
    metrics, unmeasured = _measured(run)
    checks = tuple(
        Check(name, metrics[name], getattr(settings.limits, name))
        for name in BOUNDS
        if metrics[name] is not None
    )
    examined = examine(run)
    if baseline is not None:
        examined = (against_baseline(baseline, run, noise), *examined)
    answers = [_as_checked(acknowledged(one, settings), checks) for one in examined]
    return Report(run.title, metrics, checks, tuple(answers), unmeasured)


def _measured(run: Run) -> tuple[dict[str, Any], dict[str, str]]:
    """The metrics, and those that a fault of LaneScope kept from being measured."""
    metrics: dict[str, Any] = {}
    unmeasured: dict[str, str] = {}
    for name, measure in METRICS.items():
        try:
            metrics[name] = measure(run)
        except (RunError, OSError):
            raise
        except Exception as error:
            metrics[name], unmeasured[name] = None, fault(name, error)
    return metrics, unmeasured


def _overlaps(run: Run) -> dict[str, float | None]:
    return {str(rank): comm_compute_overlap(run, rank) for rank in run.ranks}


METRICS: dict[str, Callable[[Run], Any]] = {
    "thread_overlap_rate": overlap_rate,
    "gradient_fluctuation": gradient_fluctuation,
    "graph_traceability": graph_traceability,
    "memory_overhead": memory_overhead,
    "comm_compute_overlap": _overlaps,
}
"""What is measured of every run."""


def _as_checked(examined: Examined, checks: tuple[Check, ...]) -> Examined:
    """The same, with findings of a metric as severe as its check."""
    severities: dict[str, Severity] = {
        TOLD_BY[one.name]: "warning" if one.passed else "error"
        for one in checks
        if one.name in TOLD_BY
    }
    findings = tuple(
        finding
        if finding.severity == "info" or finding.kind not in severities
        else replace(finding, severity=severities[finding.kind])
        for finding in examined.findings
    )
    return replace(examined, findings=findings)


def against_baseline(baseline: Run, run: Run, noise: Run | None = None) -> Examined:
    """What comes of asking for `divergence`."""
    question = "Do the gradients, and values where both have them, agree with the baseline's?"
    return answer(question, "divergence", lambda: divergence(baseline, run, noise))


def divergence(baseline: Run, run: Run, noise: Run | None = None) -> list[Finding]:
    """Findings of kind `divergence`, at most one: where the run parts from its baseline, by more
    than a second run of the baseline (`noise`) does. Unanswered where they have no value in common.
    """
    result = compare(baseline, run, "tolerance", noise)
    if result.verdict != "diverged":
        if result.norms + result.tensors == 0:
            raise Unanswered("neither gradients nor values of operators are in both runs")
        return []
    first = result.first or {}
    norm = not first or "parameter" in first
    what = "gradients" if norm else "values"
    place = first.get("parameter") or first.get("op")
    line = f" at {first['where']}" if first.get("where") else ""
    title = f"{what} differ from the baseline from step {first.get('step')}, {place}{line}"
    if not first:
        title = "other operators ran than in the baseline, and no values are in both runs"
    return [
        Finding(
            kind="divergence",
            severity="error",
            title=title,
            rank=first.get("rank"),
            ranks=(first["rank"],) if first else (),
            thread=first.get("thread"),
            step=first.get("step"),
            time_ns=None if norm else first["run"]["time_ns"],
            where=first.get("where"),
            evidence=result.to_json(),
            link=_step_address(run, first) if norm else difference_address(run, first),
        )
    ]


def _step_address(run: Run, first: dict[str, Any]) -> str:
    """Where the timeline shows the step in which a run first differs."""
    if first.get("rank") not in run.ranks:
        return "/timeline"
    steps = run.steps(first["rank"])
    for step, low, high in zip(steps.index, steps.start_ns, steps.end_ns, strict=True):
        if step == first["step"]:
            return timeline_address(int(low), int(high), run.duration_ns)
    return "/timeline"
