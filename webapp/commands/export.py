"""`lanescope export`: a run, or a part of it, in another format."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import click

from lanescope.webapp.commands.pack import ranks_of
from lanescope.webapp.exporters.base import EXPORTERS, Wanted
from lanescope.webapp.runs.errors import RunError, shown
from lanescope.webapp.runs.run import open_run
from lanescope.webapp.runs.run_warnings import ranks_text

FOLDED = ("nesting", "stack", "module")
FORMATS = tuple(one.name for one in EXPORTERS)


@click.command()
@click.argument("run")
@click.option("--to", "kind", required=True, type=click.Choice(FORMATS), help="The format.")
@click.option("-o", "--output", required=True, metavar="FILE", help="The file to write.")
@click.option("--table", metavar="NAME", help="csv, parquet: which table (op by default).")
@click.option("--ranks", metavar="0,2-5", help="Only these ranks.")
@click.option(
    "--window",
    metavar="T0-T1",
    help="Only this time, in ns from the start (html, speedscope, collapsed).",
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
    ranks: str | None,
    window: str | None,
    by: str | None,
) -> None:
    """Write RUN as a Chrome trace, a page, a table, a report or a flame graph.

    The pictures of a report go to a folder beside it.
    """
    exporter = next(one for one in EXPORTERS if one.name == kind)
    target = Path(output)
    wanted = Wanted(target, ranks_of(ranks), table, _window(window), by)
    exporter.check(wanted)
    opened = open_run(run)
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
    found = re.fullmatch(r"([0-9]{1,16})-([0-9]{1,16})", text, re.ASCII)
    if found is None or int(found[1]) >= int(found[2]):
        raise RunError(f"--window is {shown(text)}, expected T0-T1 in ns, as in the page's address")
    return int(found[1]), int(found[2])
