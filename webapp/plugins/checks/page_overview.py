"""What was recorded, and what is wrong with it."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from lanescope.collector.format.names import MISSING, UNTESTED
from lanescope.webapp.analysis.checks import Check, Report, number
from lanescope.webapp.analysis.plugin import metric
from lanescope.webapp.plugins.checks import ids
from lanescope.webapp.runs import units
from lanescope.webapp.runs.growing import growing
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui import findings, widgets
from lanescope.webapp.ui.context import Context

EVENTS = ("op", "collective", "phase", "gradient", "sync", "value")
NAMES = {
    "op": "ops",
    "collective": "collectives",
    "phase": "phases",
    "gradient": "gradients",
    "sync": "thread events",
    "value": "logged values",
}


def layout(context: Context) -> Component:
    """Figures, findings, and one line per rank.

    What a finished run was found to have comes once all is asked, which takes a while of a long
    one. A growing one is asked before its page is renewed: the page would flicker otherwise.
    """
    run = context.run
    examined = _examined(context) if growing(run.title) else []
    return widgets.page(
        run.title,
        _lead(run),
        _figures(run),
        html.H2("Findings"),
        html.Div(examined) if examined else html.Div(id=ids.EXAMINED),
        html.H2("Ranks"),
        _ranks(run),
        html.H2("Threads"),
        _threads(run),
        html.H2("Recording"),
        _recording(run),
        widgets.downloads(*(name for name, rows in run.counts.items() if rows)),
    )


def _examined(context: Context) -> list[Component]:
    """What takes asking all questions of the run."""
    report = context.report()
    return [
        *_findings(context, report),
        html.H2("Health of the recording"),
        *_health(context.run, report),
    ]


_MAX_NAMES = 200
"""Characters of the names of imported files."""


def _lead(run: Run) -> list[Any]:
    command = " ".join(run.manifest["command"]) or "an unnamed program"
    engines = ", ".join(sorted({p["engine"] for p in run.manifest["processes"]})) or "unknown"
    if run.imported:
        names = run.manifest["options"]["imported"]
        files = ", ".join(map(str, names if isinstance(names, list) else [names]))
        files = files if len(files) <= _MAX_NAMES else f"{files[:_MAX_NAMES]}…"
        return [
            "Imported from ",
            html.Code(files),
            f", format {engines}. ",
            dcc.Link("Open the timeline", href="/timeline"),
            ".",
        ]
    return [
        "Recorded from ",
        html.Code(command),
        f" with the {engines} engine, level ",
        f"{run.manifest['level']}. ",
        dcc.Link("Open the timeline", href="/timeline"),
        ".",
    ]


def _figures(run: Run) -> Component:
    steps = max((len(run.steps(rank)) for rank in run.ranks), default=0)
    ranks = units.count(len(run.ranks))
    figures: list[tuple[str, Any, str]] = [
        ("length", widgets.duration(run.duration_ns), units.counted(steps, "step")),
        ("ranks", ranks, f"of a world size of {units.count(run.world_size)}"),
        ("threads", units.count(len(run.threads)), "in all processes"),
        *[(NAMES[table], units.count(run.counts[table]), "") for table in EVENTS],
        ("on disk", units.size(run.size_bytes), _per_op(run)),
    ]
    return html.Dl(
        [html.Div([html.Dt(t), html.Dd([v, html.Small(s)])]) for t, v, s in figures],
        className="figures",
    )


def _per_op(run: Run) -> str:
    ops = run.counts["op"]
    return f"{run.size_bytes / ops:.1f} bytes per op" if ops else ""


def _health(run: Run, report: Report) -> list[Component]:
    notes = [widgets.note(warning, "warn") for warning in run.warnings]
    notes += [widgets.note(text) for text in run.manifest["notes"] if text not in run.warnings]
    if not notes:
        notes.append(
            widgets.note("The recording is complete: every rank is there and closed.", "good")
        )
    notes += [_limit(one) for one in report.checks if one.passed]
    # What an engine or a version cannot see is among the warnings: these reasons count no events.
    uncounted = ("unseen_", MISSING, UNTESTED)
    coverage = {r: n for r, n in run.coverage.items() if n and not r.startswith(uncounted)}
    if not coverage:
        notes.append(widgets.note("Nothing was dropped, filtered or left out.", "good"))
    else:
        rows = [(reason, units.count(number)) for reason, number in sorted(coverage.items())]
        tone = "warn" if run.dropped else ""
        notes.append(
            widgets.note(widgets.plain_table(("not in the recording", "events"), rows, (1,)), tone)
        )
    return notes


def _limit(one: Check) -> Component:
    """A metric beside its limit."""
    limits = f"{number(one.name, one.value)}, limit {number(one.name, one.limit)}"
    tone, verdict = ("good", "within the limit") if one.passed else ("bad", "over the limit")
    return widgets.note(
        [
            html.B(verdict),
            f" · {metric(one.name).title}: {limits} · ",
            dcc.Link("show", href=metric(one.name).link),
            " · ",
            dcc.Link("all checks", href="/checks"),
        ],
        tone,
    )


def _findings(context: Context, report: Report) -> list[Component]:
    found = report.findings
    answered = sum(one.answered for one in report.examined)
    made = [_limit(one) for one in report.unexplained]
    if found:
        made.append(findings.cards(context, found))
    elif answered:
        nothing = "Nothing else was found." if made else "Nothing was found."
        words = f"{nothing} {units.count(answered)} questions were asked of the run."
        made.append(widgets.note(words, "good"))
    else:
        made.append(widgets.note("The run does not hold what the questions below are asked of."))
    omitted = sum(one.omitted for one in report.examined)
    if omitted:
        made.append(widgets.note(f"{units.count(omitted)} more of the same kinds are not listed."))
    return [*made, findings.asked(report.examined)]


def _ranks(run: Run) -> Component:
    rows = []
    for rank in run.ranks:
        own = [p for p in run.manifest["processes"] if p["rank"] == rank]
        first = next((p for p in own if p["role"] == "rank"), own[0] if own else None)
        counts = run.counts_of(rank)
        rows.append(
            (
                str(rank),
                first["host"] if first else "?",
                str(first["pid"]) if first else "?",
                units.count(len(own)),
                units.count(sum(t.rank == rank for t in run.threads)),
                units.count(len(run.steps(rank))),
                *[units.count(counts[table]) for table in EVENTS],
                units.count(run.dropped_of(rank)),
            )
        )
    rows += [(str(rank), "not recorded", *[""] * 11) for rank in run.missing_ranks]
    heads = ["rank", "host", "pid", "processes", "threads", "steps"]
    heads += [*[NAMES[table] for table in EVENTS], "dropped"]
    return widgets.plain_table(heads, rows, range(2, len(heads)))


def _threads(run: Run) -> Component:
    rows = [
        (
            str(t.rank),
            t.name,
            t.kind,
            t.process_name or t.role,
            str(t.pid),
            widgets.duration(t.start_ns),
            widgets.duration(t.end_ns - t.start_ns),
        )
        for t in run.threads
    ]
    heads = ("rank", "thread", "kind", "process", "pid", "first event", "alive")
    return widgets.plain_table(heads, rows, (4, 5, 6))


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
    return f"calibrated, ± {widgets.duration(run.clock_uncertainty_ns)}"


def register(app: Dash, context: Context) -> None:
    """Findings come after the rest."""

    @app.callback(Output(ids.EXAMINED, "children"), Input(ids.EXAMINED, "id"))
    def examined(_: str) -> list[Component]:
        return _examined(context)
