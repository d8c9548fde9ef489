"""A run in words, as Markdown: what was recorded, what was measured, what is wrong with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from lanescope.webapp import units
from lanescope.webapp.analysis.checks import Report, check
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.run import Run

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|~>:@])")
_MOST_EVIDENCE = 2000


def escaped(text: object) -> str:
    """Untrusted text as plain text of one line: no markup, no HTML, no link, no mention."""
    plain = units.printable(str(text)).replace("&", "&amp;").replace("<", "&lt;")
    return _SPECIAL.sub(r"\\\1", plain)


def markdown(run: Run, report: Report | None = None) -> str:
    """The report of a run; `report` where it was checked already."""
    return "\n".join(_lines(run, check(run) if report is None else report)) + "\n"


def _lines(run: Run, report: Report) -> Iterator[str]:
    yield f"# {escaped(run.title)}"
    yield ""
    steps = max(len(run.steps(rank)) for rank in run.ranks)
    processes = run.manifest["processes"]
    facts = {
        "command": " ".join(run.manifest["command"]) or "not known",
        "recorded": run.manifest["created"],
        "length": f"{units.duration(run.duration_ns)}, {steps} steps",
        "ranks": f"{len(run.ranks)} of {run.world_size}",
        "torch": ", ".join(sorted({process["torch"] for process in processes})) or "not known",
        "engine": ", ".join(sorted({process["engine"] for process in processes})) or "not known",
        "level": run.manifest["level"],
        "dropped events": units.count(run.dropped),
    }
    yield from _table(("", ""), [(name, escaped(value)) for name, value in facts.items()])
    for warning in run.warnings:
        yield f"> {escaped(warning)}"
        yield ""
    yield "## Findings"
    yield ""
    if not report.findings:
        yield "No findings."
        yield ""
    for finding in report.findings:
        yield from _finding(finding)
    yield "## Measured"
    yield ""
    done = {one.name: one for one in report.checks}
    rows = []
    for name, value in report.metrics.items():
        limit = ""
        if name in done:
            held = done[name]
            limit = f"{'passed' if held.passed else 'failed'}, {held.bound} {held.limit:g}"
        rows.append((escaped(name), escaped(_measured(value)), escaped(limit)))
    yield from _table(("metric", "value", "limit"), rows)
    yield "## Ranks"
    yield ""
    yield from _table(("rank", "threads", "steps", "operators", "collectives"), _ranks(run))
    unanswered = [one for one in report.examined if one.unanswered]
    if unanswered:
        yield "## What the run cannot answer"
        yield ""
        for one in unanswered:
            yield f"- {escaped(one.question)} {escaped(one.unanswered)}"
        yield ""


def _finding(finding: Finding) -> Iterator[str]:
    yield f"### {finding.severity}: {escaped(finding.title)}"
    yield ""
    place = {
        "kind": finding.kind,
        "rank": finding.rank,
        "thread": finding.thread,
        "step": finding.step,
        "at": None if finding.time_ns is None else units.duration(finding.time_ns),
        "where": finding.where,
        "in the page": finding.link,
    }
    for name, value in place.items():
        if value is not None:
            yield f"- {name}: {escaped(value)}"
    evidence = json.dumps(dict(finding.evidence), default=str)
    if finding.evidence:
        yield f"- evidence: {escaped(evidence[:_MOST_EVIDENCE])}"
    yield ""


def _ranks(run: Run) -> list[tuple[str, ...]]:
    rows = []
    for rank in run.ranks:
        counts = run.counts_of(rank)
        threads = sum(thread.rank == rank for thread in run.threads)
        numbers = (rank, threads, len(run.steps(rank)), counts["op"], counts["collective"])
        rows.append(tuple(units.count(number) for number in numbers))
    return rows


def _measured(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"rank {key}: {_measured(one)}" for key, one in value.items()) or "-"
    return "not measured" if value is None else f"{value:.4g}"


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""
