"""Options that commands share, and what to do with a run next."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_Command = TypeVar("_Command", bound=Callable[..., Any])


class RunPath(click.Path):
    """A run directory, a bundle or an address; shells complete it as a path."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Leaves the text as it is: opening the run says what is wrong with it."""
        return str(value)


def run_argument(name: str = "run", **options: Any) -> Callable[[_Command], _Command]:
    """Returns an argument that is a run."""
    return click.argument(name, type=RunPath(), **options)


def run_option(*names: str, **options: Any) -> Callable[[_Command], _Command]:
    """Returns an option whose value is a run."""
    return click.option(*names, type=RunPath(), **options)


def settings_option(command: _Command) -> _Command:
    """Adds `--settings` to a command."""
    return click.option(
        "--settings",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Limits and accepted findings. [default: lanescope.toml in the run or here]",
    )(command)


def shell_word(address: str) -> str:
    """Returns the address of a run as it is pasted into a shell."""
    return shlex.quote(units.printable(address))


def next_command(run: Run, address: str) -> str:
    """Returns the command that usually follows a first look at a run, and what it shows."""
    address = shell_word(address)
    if not run.complete:
        return f"lanescope check {address}   (the run is not complete: hangs, exits, what is wrong)"
    if max(len(run.steps(rank)) for rank in run.ranks) > 1:
        return f"lanescope time {address}   (where a step goes, what limits it)"
    return f"lanescope check {address}   (what is wrong with the run)"
