"""Is the run within the limits? The metrics, their limits, and all findings."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lanescope.webapp.analysis.check_limits import Settings
from lanescope.webapp.analysis.findings import (
    SEVERITIES,
    AnalysisResult,
    Finding,
    NotApplicable,
    Severity,
    acknowledged,
    fault,
    findings,
    known_before,
    ranked,
    run_question,
    run_questions,
)
from lanescope.webapp.analysis.plugin import load, metric, metrics, questions
from lanescope.webapp.runs import units
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.typed_json import plain_json

DEFAULTS = Settings()

BOUNDS: dict[str, Callable[[float, float], bool]] = {
    "below": operator.lt,
    "at most": operator.le,
    "at least": operator.ge,
}
"""How a limit has to be kept, and whether a value does."""


@dataclass(frozen=True)
class Check:
    """One metric held against its limit."""

    name: str
    value: float
    limit: float
    harmless: bool = False  # a finding shows that what it measures did no harm in this run

    @property
    def bound(self) -> str:
        """On which side of the limit it passes: below, at most, at least."""
        return metric(self.name).bound

    @property
    def within(self) -> bool:
        """Within the limit."""
        return BOUNDS[self.bound](self.value, self.limit)

    @property
    def passed(self) -> bool:
        """Within the limit, or known to do no harm."""
        return self.harmless or self.within

    @property
    def note(self) -> str:
        """What to add to the value of a check that passes outside of its limit; else empty."""
        return "" if self.within or not self.passed else "; over the limit, and harmless here"

    def to_json(self) -> dict[str, Any]:
        """Returns the check as `check --json` prints it."""
        return {
            "name": self.name,
            "value": self.value,
            "limit": self.limit,
            "passed": self.passed,
        }


@dataclass(frozen=True)
class Report:
    """What `check` has to say about a run. A metric that could not be measured is None."""

    run: str
    metrics: dict[str, Any]
    checks: tuple[Check, ...]
    examined: tuple[AnalysisResult, ...]
    unmeasured: Mapping[str, str] = field(default_factory=dict)  # metric -> fault of LaneScope
    warnings: tuple[str, ...] = ()  # what the run lacks, and how its processes ended

    @property
    def faults(self) -> dict[str, str]:
        """What a fault of LaneScope kept from an answer: metric or question -> the fault."""
        return {
            **self.unmeasured,
            **{one.question: one.failed for one in self.examined if one.failed},
        }

    def unanswered(self, *, recordable: bool) -> dict[str, list[str]]:
        """Returns the questions that this run does not answer, by reason.

        `recordable`: those that another recording answers; else those that do not apply.
        """
        found: dict[str, list[str]] = {}
        for one in self.examined:
            if one.unanswered and one.recordable == recordable:
                found.setdefault(one.unanswered, []).append(one.question)
        return found

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, most severe first."""
        return tuple(ranked([finding for one in self.examined for finding in one.findings]))

    @property
    def unexplained(self) -> tuple[Check, ...]:
        """Checks that failed without a finding that is an error and explains it."""
        explained = {finding.kind for finding in self.findings if finding.severity == "error"}
        return tuple(
            one for one in self.checks if not one.passed and metric(one.name).kind not in explained
        )

    @property
    def unchecked(self) -> int:
        """Limits and questions without an answer that another recording would give."""
        kept = {one.name for one in self.checks}
        limits = sum(bool(one.bound) and one.name not in kept for one in metrics())
        return limits + sum(one.applies and not one.answered for one in self.examined)

    @property
    def errors(self) -> int:
        """Findings that are errors, failed checks that none of them explains, and faults."""
        severe = sum(one.severity == "error" for one in self.findings)
        return severe + len(self.unexplained) + len(self.faults)

    def failed(self, least: Severity) -> bool:
        """Returns whether a check failed or could not be made, or a finding is at least that
        severe.

        What LaneScope failed to check has not passed.
        """
        severe = any(counts(finding, least) for finding in self.findings)
        return severe or bool(self.faults) or not all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `check --json` prints."""
        found: dict[str, Any] = plain_json(
            {
                "run": self.run,
                "metrics": self.metrics,
                "checks": [check.to_json() for check in self.checks],
                "findings": [finding.to_json() for finding in self.findings],
                "source": [finding.source for finding in self.findings],
                "examined": [one.to_json() for one in self.examined],
                "errors": [{"in": name, "error": error} for name, error in self.faults.items()],
                "warnings": self.warnings,
            }
        )
        return found


def metric_text(name: str, value: float) -> str:
    """Returns the value of a metric, for people."""
    return units.share(value) if metric(name).share else units.number(value)


def counts(finding: Finding, least: Severity) -> bool:
    """Returns whether a finding fails a check: it is `least` severe or worse, and certain."""
    severe = SEVERITIES.index(finding.severity) <= SEVERITIES.index(least)
    return severe and finding.confidence == "certain"


def check(
    run: Run,
    baseline: Run | None = None,
    settings: Settings = DEFAULTS,
    noise: Run | None = None,
    *,
    new: bool = False,
) -> Report:
    """Measures what can be measured of the run and holds it against the limits of `settings`.

    With a baseline, a divergence from it (mode tolerance, `noise` as in `compare`) is a finding;
    with `new`, findings that the baseline has as well are information.
    Accepted findings (`Settings.allowed`) are reported as information, with the reason
    in their evidence. Others that explain a metric are as severe as its check: errors where it
    failed. A metric whose findings are all information passes: what it measures
    does no harm here.
    """
    measured, unmeasured = _measured(run)
    examined = run_questions(run)
    severities: dict[str, set[Severity]] = {}
    for found in (finding for one in examined for finding in one.findings):
        severities.setdefault(found.kind, set()).add(found.severity)
    checks = tuple(
        Check(
            one.name,
            measured[one.name],
            settings.limit(one.name),
            harmless=severities.get(one.kind) == {"info"},
        )
        for one in metrics()
        if one.bound and measured[one.name] is not None
    )
    if baseline is not None:
        compared = (run_question(one, run, baseline, noise) for one in questions(baseline=True))
        examined = (*compared, *examined)
    answers = [_as_checked(acknowledged(one, settings), checks) for one in examined]
    if new and baseline is not None:
        before = findings(baseline)
        answers = [known_before(one, before) for one in answers]
    return Report(run.title, measured, checks, tuple(answers), unmeasured, run.warnings)


def _measured(run: Run) -> tuple[dict[str, Any], dict[str, str]]:
    """The metrics, and those that a fault of LaneScope kept from being measured."""
    measured: dict[str, Any] = {}
    unmeasured: dict[str, str] = {}
    for one in metrics():
        try:
            measured[one.name] = load(one.measure)(run)
        except NotApplicable:
            measured[one.name] = None
        except (RunError, OSError, ModuleNotFoundError):
            raise
        except Exception as error:
            measured[one.name], unmeasured[one.name] = None, fault(one.name, error)
    return measured, unmeasured


def _as_checked(examined: AnalysisResult, checks: tuple[Check, ...]) -> AnalysisResult:
    """The same, with findings of a metric as severe as its check."""
    severities: dict[str, Severity] = {
        kind: "warning" if one.passed else "error"
        for one in checks
        if (kind := metric(one.name).kind)
    }
    findings = tuple(
        finding
        if finding.severity == "info" or finding.kind not in severities
        else replace(finding, severity=severities[finding.kind])
        for finding in examined.findings
    )
    return replace(examined, findings=findings)
