"""What is wrong with a run, in words: one shape for the findings of every analysis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from lanescope.webapp.run import Run

Severity = Literal["error", "warning", "info"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""Most severe first."""

KINDS = (
    "race", "concurrent_backward", "inplace_modification", "deadlock", "hang",
    "collective_mismatch", "straggler", "rank_divergence", "nan", "divergence", "nondeterminism",
    "unrecorded_write", "vanishing_gradient", "exploding_gradient", "dead_parameter",
    "lora_inactive", "scaler_skips", "cuda_context", "lost_context", "untraceable_graph",
    "overlap", "validator", "environment",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: what, since when, where, with its evidence.

    `time_ns` counts from the start of the run. `evidence` holds plain JSON values only; what it
    holds depends on the kind. `link` leads to the place in the page.
    """

    kind: str
    severity: Severity
    title: str
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    thread: str | None = None
    step: int | None = None
    time_ns: int | None = None
    where: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    link: str = "/timeline"

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.severity not in SEVERITIES:
            raise ValueError(f"no finding of kind {self.kind!r} and severity {self.severity!r}")

    def to_json(self) -> dict[str, Any]:
        """The finding as `check --json` prints it."""
        return {**asdict(self), "ranks": list(self.ranks), "evidence": dict(self.evidence)}


Analysis = Callable[[Run], list[Finding]]

ANALYSES: tuple[Analysis, ...] = ()
"""Every analysis that can find something wrong, in the order of their cost."""


def findings(run: Run) -> list[Finding]:
    """What all analyses find, most severe first, then by time. Empty: nothing was found."""
    found = [finding for analysis in ANALYSES for finding in analysis(run)]
    return sorted(found, key=lambda f: (SEVERITIES.index(f.severity), f.time_ns or 0))
