"""Shows the run in one line that opens: ranks, threads, and gaps of the recording."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from lanescope.collector.format.names import MISSING, UNTESTED
from lanescope.webapp.analysis.source_lines import source_coverage
from lanescope.webapp.plugins.overview import ids
from lanescope.webapp.runs import units
from lanescope.webapp.runs.html_summary import EVENT_TABLES
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui import grids, widgets

NAMES = {
    "op": "ops",
    "collective": "collectives",
    "phase": "phases",
    "gradient": "gradients",
    "sync": "thread events",
    "value": "logged values",
}

_LISTED = 40
"""Ranks, and threads, that are listed: a run may have thousands, each row of many elements."""


def section(run: Run) -> Component:
    """Returns the recording in one line; `contents` comes when it is opened."""
    return html.Details(
        [
            html.Summary(_line(run), id=ids.RECORDING_LINE),
            html.Div(id=ids.RECORDING),
        ],
        className="recording",
    )


def contents(run: Run) -> list[Component]:
    """Returns everything about the recording: with many ranks more than a page should begin
    with."""
    return [
        html.H3("Not in the recording"),
        *_missing(run),
        html.H3("Ranks"),
        html.Div(_ranks(run), className="wide-table"),
        html.H3("Threads"),
        html.Div(_threads(run), className="wide-table"),
        html.H3("Versions"),
        _recording(run),
        widgets.downloads(*(name for name, rows in run.counts.items() if rows)),
    ]


def _line(run: Run) -> str:
    """Whether it is whole, and how much there is."""
    state = "complete" if run.complete and not run.warnings else "incomplete"
    events = [f"{units.count(run.counts[table])} {NAMES[table]}" for table in ("op", "collective")]
    words = [state, *events, units.stored(run.size_bytes)]
    elsewhere = ("dropped", "read_", "imported_", "unused_")
    left_out = sum(n for reason, n in _left_out(run).items() if not reason.startswith(elsewhere))
    words += [f"{units.counted(left_out, 'event')} left out"] if left_out else []
    words += [f"{units.count(run.dropped)} dropped"] if run.dropped else []
    return f"Recording: {' · '.join(words)}"


def _left_out(run: Run) -> dict[str, int]:
    """Reason -> events that are not in the recording. What an engine or a version cannot see is
    among the warnings: those reasons count no events."""
    uncounted = ("unseen_", MISSING, UNTESTED)
    return {r: n for r, n in run.coverage.items() if n and not r.startswith(uncounted)}


def _missing(run: Run) -> list[Component]:
    notes = [widgets.note(text) for text in run.manifest["notes"] if text not in run.warnings]
    left_out = _left_out(run)
    if left_out:
        rows = [(reason, units.count(number)) for reason, number in sorted(left_out.items())]
        notes.append(widgets.plain_table(("reason", "events"), rows, (1,)))
    else:
        notes.append(widgets.note("No event was dropped, filtered or left out."))
    if run.counts["stack"]:
        notes.append(widgets.note(_source(run)))
    return notes


def _source(run: Run) -> str:
    if run.counts["source"]:
        return source_coverage(run)
    return "The lines of the program are not in this run: no stack or finding shows them."


def _ranks(run: Run) -> Component:
    rows = [(str(rank), "not recorded", *[""] * 11) for rank in run.missing_ranks[:_LISTED]]
    for rank in run.ranks[: _LISTED - len(rows)]:
        own = [p for p in run.manifest["processes"] if p["rank"] == rank]
        first = next((p for p in own if p["role"] == "rank"), own[0] if own else None)
        counts = run.counts_of(rank)
        rows.append(
            (
                str(rank),
                first["host"] if first else "?",
                str(first["pid"]) if first else "?",
                units.count(len(own)),
                units.count(len(run.threads_of(rank))),
                units.count(len(run.steps(rank))),
                *[units.count(counts[table]) for table in EVENT_TABLES],
                units.count(run.dropped_of(rank)),
            )
        )
    heads = ["rank", "host", "pid", "processes", "threads", "steps"]
    heads += [*[NAMES[table] for table in EVENT_TABLES], "dropped"]
    table = widgets.plain_table(heads, rows, range(2, len(heads)))
    rest = len(run.ranks) + len(run.missing_ranks) - len(rows)
    words: list[widgets.Child] = [
        f"and {units.counted(rest, 'more rank')}: ",
        html.Code("lanescope info"),
        " lists all",
    ]
    return html.Div([table, html.P(words, className="muted")] if rest else table)


def _threads(run: Run) -> Component:
    listed = run.threads[:_LISTED]
    first, starts = grids.in_unit("first event", [t.start_ns for t in listed])
    lasting, alive = grids.in_unit("alive", [t.end_ns - t.start_ns for t in listed])
    rows = [
        (
            str(t.rank),
            t.name,
            t.kind,
            t.process_name or t.role,
            str(t.pid),
            start,
            lasted,
        )
        for t, start, lasted in zip(listed, starts, alive, strict=True)
    ]
    heads = ("rank", "thread", "kind", "process", "pid", first, lasting)
    return widgets.head_of_table(heads, rows, (4, 5, 6), len(run.threads))


def _recording(run: Run) -> Component:
    manifest = run.manifest
    versions = sorted({(p["torch"], p["python"]) for p in manifest["processes"]})
    status = manifest["exit_status"]
    facts = [
        ("created", manifest["created"]),
        ("torch, Python", "; ".join(f"{torch}, {python}" for torch, python in versions)),
        ("exit status", "not known" if status is None else str(status)),
        ("format", str(manifest["format"])),
        ("clock", _clock(run)),
        ("path", run.files.place),
    ]
    return widgets.plain_table(("", ""), facts)


def _clock(run: Run) -> str:
    if not run.clock_calibrated:
        return "not calibrated between hosts"
    return f"calibrated, ± {widgets.duration_text(run.clock_uncertainty_ns)}"
