"""Is the run within the limits? The metrics, their limits, and all findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lanescope.webapp.analysis.diff import compare
from lanescope.webapp.analysis.findings import SEVERITIES, Finding, Severity, findings
from lanescope.webapp.analysis.overlap import overlap_rate
from lanescope.webapp.run import Run

LIMITS: dict[str, float] = {"thread_overlap_rate": 0.05}
"""A metric passes below its limit."""


@dataclass(frozen=True)
class Check:
    """One metric held against its limit."""

    name: str
    value: float
    limit: float

    @property
    def passed(self) -> bool:
        """Below the limit."""
        return self.value < self.limit

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
    findings: tuple[Finding, ...]

    def failed(self, least: Severity) -> bool:
        """Whether a check failed, or a finding is at least that severe."""
        limit = SEVERITIES.index(least)
        severe = any(SEVERITIES.index(f.severity) <= limit for f in self.findings)
        return severe or not all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The object that `check --json` prints."""
        return {
            "run": self.run,
            "metrics": self.metrics,
            "checks": [check.to_json() for check in self.checks],
            "findings": [finding.to_json() for finding in self.findings],
        }


def check(run: Run, baseline: Run | None = None) -> Report:
    """Measures what can be measured of the run and holds it against LIMITS.

    With a baseline, a divergence from it (mode tolerance) is a finding.
    """
    metrics: dict[str, Any] = {
        "thread_overlap_rate": overlap_rate(run),
        "gradient_fluctuation": None,
        "graph_traceability": None,
        "memory_overhead": None,
        "comm_compute_overlap": {str(rank): None for rank in run.ranks},
    }
    checks = tuple(
        Check(name, metrics[name], limit)
        for name, limit in LIMITS.items()
        if metrics[name] is not None
    )
    found = findings(run)
    if baseline is not None:
        found = [*_divergence(baseline, run), *found]
    return Report(run.title, metrics, checks, tuple(found))


def _divergence(baseline: Run, run: Run) -> list[Finding]:
    result = compare(baseline, run, "tolerance")
    if result.verdict != "diverged":
        return []
    first = result.first or {}
    where = f" from step {first['step']}, {first['parameter']}" if first else ""
    return [
        Finding(
            kind="divergence",
            severity="error",
            title=f"gradients differ from the baseline{where}",
            rank=first.get("rank"),
            ranks=(first["rank"],) if first else (),
            thread=first.get("thread"),
            step=first.get("step"),
            evidence=result.to_json(),
        )
    ]
