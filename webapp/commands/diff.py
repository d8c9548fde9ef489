"""`lanescope diff`: do two runs compute the same?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lanescope.collector.recorder.progress import working
from lanescope.collector.recorder.workers import cluster_option, connected
from lanescope.webapp.analysis.cluster import is_large
from lanescope.webapp.commands.baselines import open_baseline
from lanescope.webapp.commands.run_argument import run_argument, run_option
from lanescope.webapp.commands.text_output import output_console, print_table
from lanescope.webapp.plugins.diff import verdict_words
from lanescope.webapp.plugins.diff.diff import Comparison, compare
from lanescope.webapp.plugins.diff.values.closeness import MODES, Mode
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import open_run

_SHOWN = 10
"""Rows of a table that people get to see; the JSON and the Python interface have all."""

_COLOURS = {"identical": "green", "within_tolerance": "yellow", "diverged": "red"}


@click.command()
@run_argument("base", metavar="RUN0")
@run_argument()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the verdict for an issue.")
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default="bitwise",
    show_default=True,
    help="bitwise: equal bits; tolerance: relative, by dtype; simple: 1e-4 absolute.",
)
@run_option(
    "--noise",
    metavar="RUN0B",
    help="A second recording of RUN0; differences between the two count as noise. Implies "
    "--mode tolerance.",
)
@cluster_option
@click.pass_context
def diff(
    ctx: click.Context,
    base: str,
    run: str,
    as_json: bool,
    as_markdown: bool,
    mode: Mode,
    noise: str | None,
    cluster: str | None,
) -> None:
    """Compare RUN with RUN0: gradient norms by step and parameter, and what was in the tensors of
    each op where both were recorded at level numerics, else calls of each op by step.

    Exit status 1 where they diverged.

    \b
    Examples:
      lanescope diff runs/base runs/a
      lanescope diff runs/base runs/a --mode tolerance --json
    """
    if noise is not None and ctx.get_parameter_source("mode") is ParameterSource.DEFAULT:
        mode = "tolerance"
    with working("Comparing the runs"):
        opened = open_run(run)
        again = None if noise is None else open_baseline(noise, opened)
        runs = open_baseline(base, opened), opened
        with connected(cluster, local=all(map(is_large, runs))) as workers:
            result = compare(*runs, mode, again, workers)
    if as_json:
        click.echo(json.dumps(result.to_json()))
    elif as_markdown:
        click.echo(verdict_words.verdict_markdown(result, base, run))
    else:
        show(result, output_console())
    ctx.exit(1 if result.verdict == "diverged" else 0)


def show(result: Comparison, console: Console) -> None:
    """Prints the verdict, the first difference and its origin, and what differs."""
    style = f"bold {_COLOURS[result.verdict]}"
    console.print(Text.assemble((verdict_words.headline(result), style), f"  (mode {result.mode})"))
    console.print(Text(f"  {verdict_words.compared_counts(result)}"))
    alone = verdict_words.uncompared(result)
    if alone is not None:
        console.print(Text(f"  {alone}"))
    if result.first is not None:
        console.print(Text(f"  first difference: {verdict_words.difference_place(result.first)}"))
        source = verdict_words.origin(result.first)
        if source:
            console.print(Text(f"  origin: {source}"))
        for line in verdict_words.inputs(result.first):
            console.print(Text(f"  input: {line}"))
        for number, frame in enumerate(verdict_words.stack(result.first)):
            console.print(Text(f"  {'stack: ' if not number else '       '}{frame}"))
    for note in result.notes:
        console.print(Text(f"  {units.printable(note)}"))
    table = result.table
    differs = table["state"] != "identical"
    _rows(table[table["kind"] == "tensor"], "means of tensors", console)
    _rows(table[(table["kind"] == "gradient") & differs], "gradient norms", console)
    _rows(table[(table["kind"] == "op") & differs], "calls of ops", console)
    if result.timing is not None and result.timing.steps:
        console.print(Text(f"\n{verdict_words.step_times(result.timing)}"))
        _timed(result.timing.changed, console)


def _rows(rows: Any, title: str, console: Console) -> None:
    if rows.empty:
        return
    console.print()
    table = _table(title, ("step", "rank", "thread", "name", "base", "run", "state"))
    for row in rows.head(_SHOWN).itertuples():
        place = (str(row.step), str(row.rank), row.thread, row.name)
        numbers = (_number(row.base), _number(row.run))
        _add(table, *place, *numbers, row.state.replace("_", " "))
    print_table(console, table)
    if len(rows) > _SHOWN:
        console.print(Text(f"  and {units.count(len(rows) - _SHOWN)} more"))


def _timed(rows: Any, console: Console) -> None:
    if rows.empty:
        return
    table = _table("self time per step", ("op", "module", "base", "run", "", "state"))
    for row in rows.head(_SHOWN).itertuples():
        times = (
            units.duration(row.base_ns),
            units.duration(row.run_ns),
            verdict_words.ratio_text(row),
        )
        _add(table, row.name, row.module, *times, row.state)
    print_table(console, table)


def _table(title: str, heads: Sequence[str]) -> Table:
    table = Table(box=None, header_style="bold", title=title, title_justify="left")
    for name in heads:
        text = name in ("op", "module", "thread", "name", "state")
        table.add_column(name, justify="left" if text else "right", overflow="fold")
    return table


def _add(table: Table, *texts: str) -> None:
    table.add_row(*(Text(units.printable(text)) for text in texts))


def _number(value: float) -> str:
    return "-" if value != value else units.number(value, 9)
