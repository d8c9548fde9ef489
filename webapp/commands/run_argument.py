"""The argument RUN of the commands, and what to do with that run next."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from lanescope.webapp.runs.run import Run


class RunPath(click.ParamType):
    """A run directory, a bundle or an address; shells complete it as a path."""

    name = "run"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Leaves it to the shell to complete paths."""
        return [CompletionItem(incomplete, type="file")]


def run_argument(name: str = "run", **options: Any) -> Any:
    """An argument that is a run."""
    return click.argument(name, type=RunPath(), **options)


def run_option(*names: str, **options: Any) -> Any:
    """An option whose value is a run."""
    return click.option(*names, type=RunPath(), **options)


def next_command(run: Run, address: str) -> str:
    """Returns the command that usually follows a first look at a run, and what it shows."""
    if not run.complete:
        return f"lanescope check {address}   (the run is not complete: hangs, exits, what is wrong)"
    if max(len(run.steps(rank)) for rank in run.ranks) > 1:
        return f"lanescope time {address}   (where a step goes, what limits it)"
    return f"lanescope check {address}   (what is wrong with the run)"
