"""`lanescope merge`: the ranks of several runs in one."""

from __future__ import annotations

from pathlib import Path

import click

from lanescope.collector.recorder.progress import working
from lanescope.webapp.bundles.merge_ranks import merge as merge_runs
from lanescope.webapp.commands.run_argument import run_argument
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import open_run
from lanescope.webapp.runs.run_warnings import ranks_text


@click.command()
@run_argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("-o", "--output", required=True, metavar="RUN", help="The directory to make.")
def merge(runs: tuple[str, ...], output: str) -> None:
    """Merge RUN..., different ranks of one job, into one run.

    \b
    Examples:
      lanescope merge host-a/run host-b/run -o runs/job
      lanescope merge rank0.lanes rank1.lanes -o runs/job
    """
    with working("Merging the runs"):
        merge_runs([open_run(run) for run in runs], Path(output))
        made = open_run(output)
    for warning in made.warnings:
        click.echo(f"lanescope: {units.printable(warning)}", err=True)
    click.echo(f"{output}: ranks {ranks_text(made.ranks)} of {made.world_size}")
