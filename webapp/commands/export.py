"""`lanescope export`: a run, or a part of it, in another format."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from lanescope.collector.format.durations import parse_window
from lanescope.collector.recorder.progress import working
from lanescope.webapp.commands.baselines import open_baseline
from lanescope.webapp.commands.pack import ranks_of
from lanescope.webapp.commands.run_argument import run_argument
from lanescope.webapp.exporters.base import EXPORTERS, ExportRequest
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import open_run
from lanescope.webapp.runs.run_warnings import ranks_text

FOLDED = ("nesting", "stack", "module")
FORMATS = tuple(one.name for one in EXPORTERS)


@click.command()
@run_argument()
@click.option("--to", "kind", required=True, type=click.Choice(FORMATS), help="The format.")
@click.option("-o", "--output", required=True, metavar="FILE", help="The file to write.")
@click.option("--table", metavar="NAME", help="csv, parquet: which table (op by default).")
@click.option(
    "--baseline",
    metavar="RUN0",
    help="csv, parquet: the run that tables such as memory_changes compare with.",
)
@click.option("--ranks", metavar="0,2-5", help="Only these ranks.")
@click.option(
    "--window",
    metavar="T0-T1",
    help="Only this time from the start, for example 1.2ms-1.8ms; numbers alone are ns (html, "
    "speedscope, collapsed).",
)
@click.option(
    "--by",
    type=click.Choice(FOLDED),
    help="speedscope, collapsed: frames by nesting on the lanes (default), Python stack or module.",
)
def export(
    run: str,
    kind: str,
    output: str,
    table: str | None,
    baseline: str | None,
    ranks: str | None,
    window: str | None,
    by: str | None,
) -> None:
    """Write RUN as a Chrome trace, a page, a table, a report or a flame graph.

    The pictures of a report go to a folder beside it.

    \b
    Examples:
      lanescope export runs/a --to perfetto -o a.json
      lanescope export runs/a --to csv -o peak.csv --table memory_changes --baseline runs/before
    """
    exporter = next(one for one in EXPORTERS if one.name == kind)
    target = Path(output)
    with working("Opening the run"):
        opened = open_run(run)
        base = None if baseline is None else open_baseline(baseline, opened)
    wanted = ExportRequest(target, ranks_of(ranks), table, _window(window), base, by)
    exporter.check(wanted)
    for rank in wanted.ranks or ():
        if rank not in opened.ranks:
            raise RunError(
                f"rank {rank}: no such rank; this run has {ranks_text(opened.ranks)} of "
                f"{opened.world_size}"
            )
    try:
        # A file that is half written is worse than none.
        with tempfile.TemporaryDirectory(prefix=".lanescope-", dir=target.absolute().parent) as at:
            made = Path(at) / "made"
            with working(f"Writing {output}"):
                exporter.write(opened, made, wanted)
            made.replace(target)
    except OSError as error:
        raise RunError(
            f"{output}: cannot be written ({error.strerror or error}); choose another place with -o"
        ) from None
    click.echo(f"{output}: {os.path.getsize(output):,} bytes")


def _window(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    try:
        return parse_window(text)
    except ValueError as error:
        raise RunError(f"--window: {error}") from None
