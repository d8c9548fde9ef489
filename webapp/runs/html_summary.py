"""A run as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from lanescope.webapp.runs import units

if TYPE_CHECKING:
    from lanescope.webapp.runs.run import Run

TABLES = ("op", "collective", "phase", "gradient", "sync", "value")
MAX_WARNINGS = 5


def text(value: object) -> str:
    """Text of a stranger, safe within HTML and on one line."""
    return escape(units.printable(str(value)))


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """An HTML table; all cells are texts."""
    heads = "".join(f"<th>{text(cell)}</th>" for cell in head)
    lines = ("".join(f"<td>{text(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def title_of(run: Run) -> str:
    """`runs/a: 4 ranks, 12 steps, 1.24 s`; of an incomplete run says so."""
    steps = max((len(run.steps(rank)) for rank in run.ranks), default=0)
    facts = [
        units.counted(len(run.ranks), "rank"),
        units.counted(steps, "step"),
        units.duration(run.duration_ns),
    ]
    return f"{run.title}: {', '.join([*facts, *([] if run.complete else ['not complete'])])}"


def html_of(run: Run) -> str:
    """What a notebook shows of a run: a table with a row per rank, and warnings."""
    rows = []
    for rank in run.ranks:
        counts = run.counts_of(rank)
        numbers = (
            len(run.threads_of(rank)),
            len(run.steps(rank)),
            *(counts[name] for name in TABLES),
        )
        rows.append((rank, *map(units.count, numbers)))
    warnings = run.warnings[:MAX_WARNINGS]
    more = len(run.warnings) - len(warnings)
    said = [*warnings, *([f"and {more} more warnings"] if more else [])]
    listed = "".join(f"<li>{text(one)}</li>" for one in said)
    return (
        f"<div><b>{text(title_of(run))}</b>"
        f"{table(('rank', 'threads', 'steps', *TABLES), rows)}"
        f"{f'<ul>{listed}</ul>' if listed else ''}"
        "<small>lw.view(run) shows the timeline here, lw.findings(run) what is wrong.</small></div>"
    )
