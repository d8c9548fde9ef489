"""Writes figures and findings of a run to TensorBoard and Weights & Biases.

Each step's length and its parts, in milliseconds, means over ranks, by step; and the findings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from lanescope.webapp.analysis.findings import Finding, NotApplicable, findings
from lanescope.webapp.plugins.time.breakdown import CATEGORIES, step_time
from lanescope.webapp.runs.run import open_run

PREFIX = "lanescope"
_MAX_FINDINGS = 20


class Writer(Protocol):
    """Where figures and findings go."""

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the figures of a step, ms."""

    def findings(self, found: Sequence[Finding]) -> None:
        """Takes the most severe findings."""


def report(folder: Path, writers: Sequence[Writer], first: int = 0) -> None:
    """Reads a run, which may still be recorded, and writes about it.

    Steps are numbered as trainers do, from `first` + 1. Raises RunError.
    """
    run = open_run(folder)
    names = {"duration_ns": "step", **{f"{one}_ns": one for one in CATEGORIES}}
    try:
        steps = step_time(run).groupby("step")[list(names)].mean()
    except NotApplicable:
        steps = None
    found = findings(run)[:_MAX_FINDINGS]
    for writer in writers:
        for step, row in steps.iterrows() if steps is not None else ():
            values = {f"{PREFIX}/{names[key]}_ms": float(ns) / 1e6 for key, ns in row.items()}
            writer.figures(first + int(step) + 1, values)
        writer.findings(found)


class TensorBoard:
    """Writes to a `SummaryWriter`, of torch or of tensorboardX."""

    def __init__(self, summary: Any) -> None:
        self._summary = summary

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        """Writes scalars."""
        for name, value in values.items():
            self._summary.add_scalar(name, value, step)

    def findings(self, found: Sequence[Finding]) -> None:
        """Writes a text."""
        lines = [f"- **{one.severity}** {one.title} {one.where or ''}" for one in found]
        self._summary.add_text(f"{PREFIX}/findings", "\n".join(lines) or "no findings")
        self._summary.flush()


class WeightsAndBiases:
    """Writes to a run of `wandb`, online or offline."""

    def __init__(self, run: Any) -> None:
        self._run = run
        # Steps are over when these are written, and wandb's own step only grows.
        run.define_metric(f"{PREFIX}/global_step", hidden=True)
        run.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/global_step")

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the figures by a step of their own."""
        self._run.log({**values, f"{PREFIX}/global_step": step})

    def findings(self, found: Sequence[Finding]) -> None:
        """Logs a table."""
        import wandb

        rows = [[one.severity, one.kind, one.title, one.where or ""] for one in found]
        columns = ["severity", "kind", "finding", "where"]
        self._run.log({f"{PREFIX}/findings": wandb.Table(columns=columns, data=rows)})
