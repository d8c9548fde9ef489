"""`lanescope info`: what a run holds, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lanescope.collector.recorder.progress import working
from lanescope.collector.recorder.workers import cluster_option, connected
from lanescope.webapp.analysis.cluster import steps_ahead
from lanescope.webapp.commands.run_argument import next_command, run_argument, shell_word
from lanescope.webapp.commands.text_output import output_console, print_table
from lanescope.webapp.runs import units
from lanescope.webapp.runs.html_summary import EVENT_TABLES
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.runs.run_warnings import ranks_named

EACH = 64
"""Ranks up to which each has a line; more are summed up by host."""

HOSTS = 32
"""Hosts up to which each has a line; the others share one."""

_WIDE = 110
"""Characters of a line of a host."""


@click.command()
@run_argument()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@cluster_option
def info(run: str, as_json: bool, cluster: str | None) -> None:
    """Say what RUN holds: ranks, threads, steps, events, size, what was dropped.

    \b
    Examples:
      lanescope info runs/a
      lanescope info mine.lanes --json
    """
    with working("Opening the run"):
        opened = open_run(run)
        with connected(cluster) as workers:
            steps_ahead(opened, workers)
    if as_json:
        click.echo(json.dumps(summary(opened)))
    else:
        console = output_console()
        _show(opened, console)
        console.print(Text(f"next: lanescope view {shell_word(run)}"))
        console.print(Text(f"      {next_command(opened, run)}"))


def summary(run: Run) -> dict[str, Any]:
    """Returns the object that `info --json` prints."""
    became = imported(run)
    return {
        "format": run.manifest["format"],
        "run": run.title,
        "world_size": run.world_size,
        "ranks": list(run.ranks),
        "threads": len(run.threads),
        "steps": max(len(run.steps(rank)) for rank in run.ranks),
        "duration_ns": run.duration_ns,
        "events": {table: run.counts[table] for table in EVENT_TABLES},
        "dropped": run.dropped,
        "complete": run.complete,
        "clock": {
            "calibrated": run.clock_calibrated,
            "uncertainty_ns": run.clock_uncertainty_ns,
        },
        "engine": ", ".join(sorted({p["engine"] for p in run.manifest["processes"]})),
        "size_bytes": run.size_bytes,
        "missing_ranks": list(run.missing_ranks),
        "warnings": list(run.warnings),
        **({} if became is None else {"imported": became}),
    }


def imported(run: Run) -> dict[str, int] | None:
    """Returns what became of each event of the files that the run was made of; None: it was
    recorded."""
    words = ("read_", "imported_", "unused_", "unread_", "dropped_")
    found = {key: n for key, n in run.coverage.items() if key.startswith(words)}
    return found if run.imported else None


def _show(run: Run, console: Console) -> None:
    """Prints the run as a table with a line per rank, or per host."""
    about = summary(run)
    console.print(Text(units.printable(run.title), style="bold"))
    command = units.printable(" ".join(run.manifest["command"]))
    facts = [
        ("command", command or "-"),
        ("length", f"{units.duration(run.duration_ns)}, {units.counted(about['steps'], 'step')}"),
        ("engine", f"{units.printable(about['engine'])}, level {run.manifest['level']}"),
        ("on disk", units.stored(run.size_bytes)),
        ("clock", _clock(run)),
    ]
    became = imported(run)
    if became is not None:
        said = [
            f"{units.count(n)} {units.printable(key.replace('_', ' '))}"
            for key, n in became.items()
        ]
        facts.append(("events", ", ".join(said)))
    for name, value in facts:
        console.print(Text(f"  {name:<9}{value}"))
    table = Table(box=None, header_style="bold", pad_edge=True, padding=(0, 1, 0, 0))
    groups: Mapping[str, Sequence[int]] = {str(rank): [rank] for rank in run.ranks}
    if len(run.ranks) > EACH:
        groups = _hosts(run)
    first = "rank" if len(run.ranks) <= EACH else "host"
    for name in (first, "threads", "steps", *EVENT_TABLES, "dropped"):
        table.add_column(name, justify="right", no_wrap=True)
    for title, ranks in groups.items():
        counts = [run.counts_of(rank) for rank in ranks]
        numbers = [
            sum(len(run.threads_of(rank)) for rank in ranks),
            max(len(run.steps(rank)) for rank in ranks),
            *(sum(one[name] for one in counts) for name in EVENT_TABLES),
            sum(run.dropped_of(rank) for rank in ranks),
        ]
        table.add_row(units.printable(title), *(units.count(number) for number in numbers))
    if len(run.ranks) > 1:
        numbers = [len(run.threads), about["steps"], *about["events"].values(), run.dropped]
        table.add_section()
        table.add_row("all", *(units.count(number) for number in numbers), style="bold")
    if first == "host":
        console.width = max(console.width, _WIDE)
    print_table(console, table)
    for warning in run.warnings:
        console.print(Text(f"  ! {units.printable(warning)}", style="yellow"))


def _hosts(run: Run) -> dict[str, Sequence[int]]:
    """The first hosts with their ranks, and those of all others together."""
    found = {f"{host}, {ranks_named(of)}": of for host, of in run.ranks_by_host.items()}
    rest = [*found.values()][HOSTS:]
    shown: dict[str, Sequence[int]] = dict([*found.items()][:HOSTS])
    if rest:
        more = units.counted(len(rest), "more host")
        shown[more] = [rank for ranks in rest for rank in ranks]
    return shown


def _clock(run: Run) -> str:
    if len({process["clock"]["host"] for process in run.manifest["processes"]}) <= 1:
        return "one host, exact"
    word = "calibrated" if run.clock_calibrated else "not calibrated"
    return f"{word}, within {units.duration(run.clock_uncertainty_ns)}"
