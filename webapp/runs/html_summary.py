"""A run as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from lanescope.webapp.runs import units

EVENT_TABLES = ("op", "collective", "phase", "gradient", "sync", "value")
"""Tables of events whose rows a summary of a run counts."""

MAX_WARNINGS = 5


def escaped_html(value: object) -> str:
    """Returns the text of a stranger, safe within HTML and on one line."""
    return escape(units.printable(str(value)))


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Returns an HTML table; all cells are texts."""
    heads = "".join(f"<th>{escaped_html(cell)}</th>" for cell in head)
    lines = ("".join(f"<td>{escaped_html(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def run_html(
    title: str, ranks: Iterable[tuple[int, Sequence[int]]], warnings: Sequence[str]
) -> str:
    """Returns what a notebook shows of a run: a row per rank, and warnings.

    `ranks`: of each its numbers of threads and steps, and of rows of each of TABLES.
    """
    rows = ((rank, *map(units.count, numbers)) for rank, numbers in ranks)
    more = len(warnings) - MAX_WARNINGS
    said = [*warnings[:MAX_WARNINGS], *([f"and {more} more warnings"] if more > 0 else [])]
    listed = "".join(f"<li>{escaped_html(one)}</li>" for one in said)
    return (
        f"<div><b>{escaped_html(title)}</b>"
        f"{table(('rank', 'threads', 'steps', *EVENT_TABLES), rows)}"
        f"{f'<ul>{listed}</ul>' if listed else ''}"
        "<small>lw.view(run) shows the timeline here, lw.findings(run) what is wrong.</small></div>"
    )
