"""Findings as HTML, for notebooks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lanescope.webapp.analysis.source_lines import named_line
from lanescope.webapp.runs import units
from lanescope.webapp.runs.html_summary import text

if TYPE_CHECKING:
    from lanescope.webapp.analysis.findings import Finding

COLOURS = {"error": "#c5221f", "warning": "#b06000", "info": "#1a73e8"}
"""Of a severity; each has a contrast of 4.5 on white, and the word is always beside it."""


def html_of(finding: Finding) -> str:
    """One finding: severity, title, place, lines of the program, and its evidence to unfold."""
    since = [] if finding.time_ns is None else [f"since {units.duration(finding.time_ns)}"]
    step = [] if finding.step is None else [f"step {finding.step}"]
    place = ", ".join([*since, *step, *([f"at {finding.where}"] if finding.where else [])])
    lines = "".join(f"<code>{text(named_line(one))}</code><br>" for one in finding.source)
    evidence = json.dumps(dict(finding.evidence), indent=1)
    # Of several lines, so line by line.
    shown = "\n".join(text(line) for line in evidence.splitlines())
    colour = COLOURS[finding.severity]
    return (
        f'<div><b style="color:{colour}">{finding.severity}</b> {text(finding.kind)}: '
        f"{text(finding.title)}<br>{f'<small>{text(place)}</small><br>' if place else ''}{lines}"
        f"<details><summary>evidence</summary><pre>{shown}</pre></details></div>"
    )


def html_of_all(findings: Sequence[Finding]) -> str:
    """A list of findings; says so where it is empty."""
    if not findings:
        return "<div>no findings</div>"
    return "".join(html_of(one) for one in findings)
