"""`lanescope pack` and `lanescope verify`: a run as one file, and whether it is whole."""

from __future__ import annotations

import json
import re

import click

from lanescope.collector.format.options import parse_steps
from lanescope.collector.recorder.progress import working
from lanescope.webapp.bundles.verify import problems_of
from lanescope.webapp.bundles.writer import pack as pack_run
from lanescope.webapp.commands.run_argument import run_argument
from lanescope.webapp.runs import units
from lanescope.webapp.runs.errors import RunError, shown
from lanescope.webapp.runs.run import open_run
from lanescope.webapp.runs.run_warnings import ranks_text

_MAX_RANKS = 1_000_000


@click.command()
@run_argument()
@click.option("-o", "--output", required=True, metavar="FILE.lanes", help="The file to write.")
@click.option("--ranks", metavar="0,2-5", help="Only these ranks.")
@click.option("--steps", metavar="A:B", help="Only steps A to B-1.")
@click.option(
    "--redact",
    is_flag=True,
    help="Leave out hosts, users, paths outside the program's folder, arguments, messages.",
)
def pack(run: str, output: str, ranks: str | None, steps: str | None, redact: bool) -> None:
    """Put RUN into one file that the other commands open as it is.

    \b
    Examples:
      lanescope pack runs/a -o a.lanes
      lanescope pack runs/a -o part.lanes --ranks 0,2-3 --steps 10:20 --redact
    """
    chosen, window = ranks_of(ranks), _steps_of(steps)
    with working("Opening the run"):
        opened = open_run(run)
    for warning in opened.warnings:
        click.echo(f"lanescope: {units.printable(warning)}", err=True)
    with working(f"Writing {output}"):
        pack_run(opened, output, ranks=chosen, steps=window, redact=redact)
        made = open_run(output)
    about = f"ranks {ranks_text(made.ranks)} of {made.world_size}, {units.size(made.size_bytes)}"
    click.echo(f"{output}: {about} of events")


@click.command()
@run_argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def verify(ctx: click.Context, file: str, as_json: bool) -> None:
    """Check FILE, a bundle or a run directory, against its checksums.

    \b
    Examples:
      lanescope verify a.lanes
      lanescope verify runs/a --json
    """
    with working("Reading all of it"):
        opened, problems = problems_of(file)
    if as_json:
        verdict = {"run": file, "whole": not problems, "problems": problems}
        click.echo(json.dumps(verdict | {"missing_ranks": list(opened.missing_ranks)}))
    else:
        for problem in problems:
            click.echo(units.printable(problem))
        if not problems:
            present = f"ranks {ranks_text(opened.ranks)} of {opened.world_size}"
            click.echo(f"{units.printable(file)}: whole, {present}")
    ctx.exit(1 if problems else 0)


def ranks_of(text: str | None) -> list[int] | None:
    """Returns the ranks of a list such as 0,2-5. Raises RunError for any other text."""
    if text is None:
        return None
    ranks: set[int] = set()
    for piece in text.split(","):
        found = re.fullmatch(r"\s*([0-9]{1,7})(?:-([0-9]{1,7}))?\s*", piece, re.ASCII)
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if low > high or high >= _MAX_RANKS:
            raise RunError(f"--ranks is {shown(text)}, expected ranks such as 0,2-5")
        ranks.update(range(low, high + 1))
    return sorted(ranks)


def _steps_of(text: str | None) -> tuple[int, int] | None:
    """Returns the window of steps of a text such as 10:20. Raises RunError for any other text."""
    if text is None:
        return None
    try:
        first, last = parse_steps(text)
    except ValueError:
        first, last = 0, 0
    if not 0 <= first < last:
        raise RunError(f"--steps is {shown(text)}, expected A:B with A before B, such as 10:20")
    return first, last
