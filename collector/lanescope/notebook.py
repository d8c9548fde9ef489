"""The extension for notebooks: `%load_ext lanescope` gives `%%lanescope`, which records a cell."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lanescope.collector import api
from lanescope.collector.cli import options_from, recording_settings
from lanescope.collector.format.options import default_run
from lanescope.collector.session.launch import LaunchError, check_free
from lanescope.webapp.runs.run import Run, open_run

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_NAME = "run"
"""Variable that the run is put into, unless -n names another."""


class CellFailed(Exception):
    """A recorded cell ended with an exception, which the notebook has shown already, or there was
    no place for its run."""

    def _render_traceback_(self) -> list[str]:
        return [f"lanescope: {self}"]


@click.command("%%lanescope")
@recording_settings
@click.option("-n", "name", default=_NAME, show_default=True, help="Variable to put the run into.")
def _parse(output: Path | None, name: str, **settings: Any) -> tuple[Path, str, dict[str, Any]]:
    """Record the cell.

    \b
    Examples:
      %%lanescope
      %%lanescope -o runs/a --level numerics -n first
    """
    return output or default_run(), name, vars(options_from(settings))


def register(shell: InteractiveShell) -> None:
    """Adds the magic to a shell."""

    def lanescope(line: str, cell: str) -> Run | None:
        """Records the cell; `%%lanescope --help` lists the options."""
        return record_cell(shell, line, cell)

    shell.register_magic_function(lanescope, "cell")


def record_cell(shell: InteractiveShell, line: str, cell: str) -> Run | None:
    """Runs a cell under the recorder and returns its run; None where nothing can be recorded.

    Raises CellFailed for a cell that failed or has no place for its run, and click.UsageError for
    wrong options.
    """
    parsed = _parse.main(shlex.split(line), standalone_mode=False, prog_name="%%lanescope")
    if not isinstance(parsed, tuple):  # --help
        return None
    folder, name, settings = parsed
    if api.active() is not None:
        raise click.UsageError("this process is being recorded already, by lanescope record")
    try:
        check_free(folder)  # else what the cell did before would be in the run too
    except LaunchError as error:
        raise CellFailed(str(error)) from None
    with api.record(folder, **settings):
        result = shell.run_cell(cell)
    try:
        run = open_run(folder)
    except ValueError as error:  # nothing that torch does was in the cell
        raise CellFailed(str(error)) from None
    shell.push({name: run})
    if not result.success:
        raise CellFailed(f"the cell failed; what it did is in {folder}, and in {name}")
    return run
