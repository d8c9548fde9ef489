"""`python -m tests.harmless [UNIT...]`: runs tests plain and recorded, compares, prints a table."""

from __future__ import annotations

import json
import platform
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import click

from .differences import Difference, differences
from .page import PAGE, with_accepted, with_figures
from .processes import ENGINES, PLAIN, Result, run
from .table import Compared, summary
from .units import BUILD, Unit, chosen_units, prepared

HERE = BUILD / f"python{platform.python_version()}-torch{version('torch')}"
"""Results of this interpreter and torch: by unit, and one folder for each way of running it."""


@click.command()
@click.argument("names", nargs=-1, metavar="[UNIT]...")
@click.option(
    "--engine",
    "engines",
    multiple=True,
    type=click.Choice(ENGINES),
    help="Record with this engine. Default: each of them.",
)
@click.option("--jobs", default=2, show_default=True, help="Run this many units at a time.")
@click.option(
    "--keep-plain",
    is_flag=True,
    help="Use the plain results of an earlier run where they are there.",
)
@click.option("--list", "only_list", is_flag=True, help="List the units, run none.")
@click.option("--stored", is_flag=True, help="Print the table of stored results, run none.")
@click.option("--docs", is_flag=True, help="Write the table into docs/limits.md.")
def main(
    names: tuple[str, ...],
    engines: tuple[str, ...],
    jobs: int,
    keep_plain: bool,
    only_list: bool,
    stored: bool,
    docs: bool,
) -> None:
    """Run tests of CPython and of packages, plain and recorded, and compare their outcomes.

    UNIT is a unit, as in cpython.queue or queue, or a suite, as in numpy. Exit status 1 if a
    test differs that tests/harmless/accepted.toml does not list.
    """
    try:
        units = chosen_units(list(names))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    # A shell starts what goes on in the background with SIGINT ignored, which tests would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = engines or ENGINES
    if only_list:
        for unit in units:
            click.echo(f"{unit.name}  {unit.missing}")
        return
    if not stored:
        with ThreadPoolExecutor(jobs) as pool:
            for _ in pool.map(lambda unit: _run_unit(unit, chosen, keep_plain), units):
                pass
    compared = [one for unit in units for one in _stored(unit, chosen)]
    click.echo(summary(compared))
    if docs:
        PAGE.write_text(with_figures(with_accepted(PAGE.read_text()), compared))
    sys.exit(any(one.unlisted for one in compared))


def _run_unit(unit: Unit, engines: tuple[str, ...], keep_plain: bool) -> None:
    unit = prepared(unit)
    if unit.missing:
        click.echo(f"{unit.name}: not run: {unit.missing}")
        return
    plain_place = _place(unit, PLAIN)
    if keep_plain and plain_place.exists():
        plain = Result.load(plain_place)
    else:
        plain = run(unit, PLAIN, _log(unit, PLAIN))
        plain.save(plain_place)
    for engine in engines:
        log = _log(unit, engine)
        recorded = run(unit, engine, log)
        recorded.save(_place(unit, engine))
        found = differences(unit, plain, recorded, engine, log)
        _place(unit, f"{engine}-differences").parent.mkdir(exist_ok=True)
        _place(unit, f"{engine}-differences").write_text(json.dumps([asdict(d) for d in found]))
        click.echo(
            f"{unit.name} [{engine}]: {len(plain.outcomes)} tests, {plain.cpu_s:.0f} s plain, "
            f"{recorded.cpu_s:.0f} s recorded, {recorded.processes} processes recorded"
        )
        for one in found:
            click.echo(f"  {'unsteady: ' if one.unsteady else ''}{one}")
        for line in dict.fromkeys(recorded.said):
            click.echo(f"  {line}")


def _log(unit: Unit, way: str) -> Path:
    log = _place(unit, way).with_suffix(".log")
    log.unlink(missing_ok=True)
    return log


def _stored(unit: Unit, engines: tuple[str, ...]) -> list[Compared]:
    if not _place(unit, PLAIN).exists():
        return []
    plain = Result.load(_place(unit, PLAIN))
    found = []
    for engine in engines:
        place = _place(unit, f"{engine}-differences")
        if place.exists():
            recorded = Result.load(_place(unit, engine))
            differing = [Difference(**one) for one in json.loads(place.read_text())]
            found.append(Compared(unit, engine, plain, recorded, differing))
    return found


def _place(unit: Unit, way: str) -> Path:
    return HERE / way / f"{unit.name}.json"


if __name__ == "__main__":
    main()
