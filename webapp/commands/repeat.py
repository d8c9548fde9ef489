"""`lanescope repeat`: the same command several times. Does it compute the same, with how many
threads does it cease to, and where?
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from lanescope.collector.recorder.progress import working
from lanescope.webapp.analysis.check_limits import load_settings
from lanescope.webapp.plugins.diff.repeats import FILE, Repeats, repeats
from lanescope.webapp.runs import units
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import open_run

PLACEHOLDER = "{threads}"


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "-n",
    "count",
    type=click.IntRange(min=2),
    default=10,
    show_default=True,
    help="Number of recordings.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the runs.  [default: runs/repeat-<date>-<time>]",
)
@click.option(
    "--threads",
    metavar="1,2,4",
    help="Repeat with each number of threads: OMP_NUM_THREADS, and {threads} in COMMAND.",
)
@click.option(
    "--level",
    type=click.Choice(["timing", "access", "numerics"]),
    default="numerics",
    show_default=True,
    help="How much to record; numerics finds the operator that differs first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
@click.pass_context
def repeat(
    ctx: click.Context,
    count: int,
    output: Path | None,
    threads: str | None,
    level: str,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    """Record COMMAND several times and compare the runs. Seeds are left as they are.

    Exit status: that of COMMAND where it fails; 1 where gradients fluctuate beyond the limit.

    \b
    Examples:
      lanescope repeat -n 10 -- python train.py
      lanescope repeat -o runs/seeds --threads 1,2,4 -- python train.py --threads {threads}
    """
    folder = output or Path("runs") / f"repeat-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} is there already and is not empty; choose another with -o")
    limit = load_settings(folder).limit("gradient_fluctuation")
    found: list[Repeats] = []
    for number in _numbers(threads):
        places = [folder / f"threads-{number}" / f"run-{k:02d}" for k in range(count)]
        for k, place in enumerate(places, 1):
            said = f"{units.counted(number, 'thread')}, run {k} of {count}"
            click.echo(f"lanescope: {said}", err=True)
            status = _record(place, command, number, level, substituted=threads is not None)
            if status:
                click.echo(f"lanescope: the command ended with {status} in {place}", err=True)
                ctx.exit(status)
        with working("Comparing the runs"):
            found.append(repeats([open_run(place) for place in places], number))
        _write(folder / FILE, count, found)
        if not as_json:
            click.echo(words(found[-1], limit))
    if as_json:
        click.echo(json.dumps(_answer(count, found)))
    else:
        click.echo(_verdict(found, limit))
    ctx.exit(0 if all(_within(one, limit) for one in found) else 1)


def words(one: Repeats, limit: float) -> str:
    """Returns one line about one number of threads."""
    size = "no gradients" if one.fluctuation is None else units.number(one.fluctuation)
    same = "bitwise identical" if one.identical else "not bitwise identical"
    threads = units.counted(one.threads, "thread")
    text = f"{threads}: {same}, gradient fluctuation {size} (limit {units.number(limit)})"
    return text if one.first is None else f"{text}; first difference: {_place(one.first)}"


def _verdict(found: list[Repeats], limit: float) -> str:
    """Returns how far the command can be trusted to repeat itself."""
    beyond = next((one for one in found if not _within(one, limit)), None)
    if beyond is not None:
        place = f", first at {_place(beyond.first)}" if beyond.first else ""
        threads = units.counted(beyond.threads, "thread")
        return f"gradients fluctuate beyond the limit from {threads} on{place}"
    differs = next((one for one in found if not one.identical), None)
    if differs is not None:
        return f"within the limit; bits differ from {units.counted(differs.threads, 'thread')} on"
    return "bitwise identical every time"


def _place(first: dict[str, Any]) -> str:
    name = first.get("parameter") or first["op"]
    where = f" at {first['where']}" if first.get("where") else ""
    return f"step {first['step']}, rank {first['rank']}, {name}{where}"


def _within(one: Repeats, limit: float) -> bool:
    return one.identical or (one.fluctuation is not None and one.fluctuation <= limit)


def _numbers(threads: str | None) -> list[int]:
    if threads is None:
        own = os.environ.get("OMP_NUM_THREADS", "")
        return [int(own) if own.isdigit() and int(own) else len(os.sched_getaffinity(0))]
    texts = threads.split(",")
    if not all(text.strip().isdigit() and int(text) for text in texts):
        raise click.UsageError(f"--threads is {threads!r}, expected numbers such as 1,2,4")
    return sorted({int(text) for text in texts})


def _record(
    place: Path, command: tuple[str, ...], number: int, level: str, *, substituted: bool
) -> int:
    """Records the command once; returns its exit status."""
    environment = dict(os.environ)
    if substituted:
        environment["OMP_NUM_THREADS"] = str(number)
    own = (
        [word.replace(PLACEHOLDER, str(number)) for word in command]
        if substituted
        else list(command)
    )
    recorder = [sys.executable, "-m", "lanescope", "record"]
    # The output of the command is not ours to mix with the answer.
    return subprocess.run(
        [*recorder, "-o", str(place), "--level", level, "--", *own],
        env=environment,
        stdout=sys.stderr,
        check=False,
    ).returncode


def _answer(count: int, found: list[Repeats]) -> dict[str, Any]:
    return {"runs": count, "by_threads": [one.to_json() for one in found]}


def _write(path: Path, count: int, found: list[Repeats]) -> None:
    try:
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps(_answer(count, found), indent=1), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror})") from None
