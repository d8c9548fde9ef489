"""Finds the run that `lanescope view` shows where none is named, or a folder of runs is."""

from __future__ import annotations

import datetime
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lanescope.collector.format.file_names import MANIFEST
from lanescope.webapp.plugins.diff.repeats import FILE as REPETITION
from lanescope.webapp.runs import units
from lanescope.webapp.runs.errors import RunError

_FOLDER = "runs"
"""Where `lanescope record` puts runs by default."""

_SHOWN = 20


@dataclass(frozen=True)
class Known:
    """A run in a folder, as far as it is known without opening it."""

    path: Path
    changed: float  # Unix time, seconds

    @property
    def about(self) -> str:
        """Ranks and command, from the manifest; empty for a bundle and an unreadable manifest."""
        try:
            manifest = json.loads((self.path / MANIFEST).read_bytes())
            command = " ".join(map(str, manifest["command"]))
            return f"{units.counted(int(manifest['world_size']), 'rank')}, {command}"
        except (OSError, ValueError, LookupError, TypeError):
            return ""


def runs_in(folder: Path) -> list[Known]:
    """Returns the runs, bundles and repetitions right below a folder, the newest first."""
    found = []
    for path in _entries(folder):
        file = next(
            (path / name for name in (MANIFEST, REPETITION) if (path / name).is_file()), None
        )
        if file is None and path.suffix == ".lanes" and path.is_file():
            file = path
        if file is not None:
            found.append(Known(path, file.stat().st_mtime))
    return sorted(found, key=lambda one: (-one.changed, one.path))


def chosen_run(given: str | None) -> str:
    """Returns the run to show: the given one, the newest below `runs`, or one chosen of a folder.

    RunError without any, and for a folder of several runs unless standard input is a terminal.
    """
    if given is None:
        known = runs_in(Path(_FOLDER))
        if not known:
            raise RunError(
                f"there is no run in ./{_FOLDER}; name one, or record one with: "
                "lanescope record -- COMMAND"
            )
        click.echo(f"lanescope: the newest run, {units.printable(str(known[0].path))}", err=True)
        return str(known[0].path)
    folder = Path(given)
    if not os.path.isdir(folder) or any((folder / n).exists() for n in (MANIFEST, REPETITION)):
        return given
    known = runs_in(folder)
    return str(_asked(folder, known)) if known else given  # opening it says what is wrong


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _asked(folder: Path, known: list[Known]) -> Path:
    """Lists the runs and asks for one of them."""
    if len(known) == 1:
        return known[0].path
    console = Console(stderr=True, highlight=False)
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("", "run", "changed", "of"):
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    for number, one in enumerate(known[:_SHOWN], 1):
        when = datetime.datetime.fromtimestamp(one.changed)
        texts = (str(number), one.path.name, f"{when:%Y-%m-%d %H:%M}", one.about)
        table.add_row(*(Text(units.printable(text)) for text in texts))
    console.print(table)
    if len(known) > _SHOWN:
        console.print(Text(f"and {units.count(len(known) - _SHOWN)} older ones"))
    if not sys.stdin.isatty():
        raise RunError(
            f"{folder} holds {len(known)} runs; name one of them, as in: "
            f"lanescope view {known[0].path}"
        )
    among = click.IntRange(1, min(_SHOWN, len(known)))
    number = click.prompt("Which run?", type=among, default=1, err=True)
    return known[int(number) - 1].path
