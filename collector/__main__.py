"""`torchrun ... -m lanescope.collector [options] train.py args`: records from inside a launcher."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import click

from .cli import options_from, recording_settings
from .format.options import SUPERVISOR_VARIABLE, default_run
from .inject import bootstrap
from .session.launch import environment_for


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@recording_settings
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as with python -m.")
@click.argument("program", type=click.UNPROCESSED)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _parse(
    output: Path | None, module: bool, program: str, arguments: tuple[str, ...], **settings: Any
) -> tuple[bool, str, tuple[str, ...]]:
    """Record PROGRAM (a script, or with -m a module) and the processes it starts."""
    options = options_from(settings)
    if output is None and os.environ.get("WORLD_SIZE", "1") != "1":
        raise click.UsageError("several ranks need one place to record into; give it with -o RUN")
    if not module and not Path(program).is_file():
        raise click.UsageError(f"{program}: no such file")
    environment = environment_for(output or default_run(), options)
    # Ranks of one launcher share the run, and each finishes its own part.
    environment.pop(SUPERVISOR_VARIABLE, None)
    os.environ.update(environment)
    return module, program, arguments


def main() -> None:
    """Parse, then run the program outside of click, which would catch its Ctrl-C."""
    try:
        parsed = _parse.main(standalone_mode=False, prog_name="python -m lanescope.collector")
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    if not isinstance(parsed, tuple):  # --help
        return
    module, program, arguments = parsed
    bootstrap()
    sys.argv = [program, *arguments]
    if module:
        with contextlib.suppress(OSError):  # the folder was removed
            sys.path[0] = os.getcwd()
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(program).resolve().parent)
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
