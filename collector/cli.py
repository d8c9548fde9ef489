"""Defines `lanescope record` and its settings, also for `-m lanescope.collector`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from .format.options import DEVICES, ENGINES, LEVELS, ON_HANG, STACKS, Options, default_run
from .journal.memory_limit import check_buffer
from .session.config_file import read_config

_NOT_IN_FILES = ("config", "command", "program", "arguments", "module", "help")
"""Parameters that a configuration file cannot hold."""


def _configure(ctx: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Takes the options of a file as defaults, so that the command line wins."""
    if path is None:
        return
    names = {str(one.name) for one in ctx.command.params} - set(_NOT_IN_FILES)
    several = {one.name for one in ctx.command.params if getattr(one, "multiple", False)}
    try:
        found = read_config(path, names)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    ctx.default_map = {
        name: [value] if name in several and isinstance(value, str) else value
        for name, value in found.items()
    }


_SETTINGS = (
    click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE.toml",
        is_eager=True,
        expose_value=False,
        callback=_configure,
        help='Read options from a file, for example level = "numerics"; those of the command '
        "line win.",
    ),
    click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        metavar="RUN",
        help="Folder to record into.  [default: runs/<date>-<time>]",
    ),
    click.option(
        "--level",
        type=click.Choice(LEVELS),
        default="access",
        show_default=True,
        help="How much to record; each level includes the one before.",
    ),
    click.option("--steps", metavar="A:B", help="Record training steps A to B-1 only."),
    click.option(
        "--keep-last",
        metavar="SIZE",
        help="Keep only the last records of each process, for example 64MB.",
    ),
    click.option(
        "--max-disk",
        metavar="SIZE",
        help="Most that the run may take on disk, for example 20GB; from 80 % of it on one step in "
        "ten is recorded, then none. Default: 80 % of the free space.",
    ),
    click.option(
        "--min-duration",
        default="0ns",
        metavar="TIME",
        show_default=True,
        help="Leave out ops shorter than this, for example 1ms or 250us; they are counted.",
    ),
    click.option(
        "--stacks",
        type=click.Choice(STACKS),
        default="auto",
        show_default=True,
        help="Where to capture Python stacks.",
    ),
    click.option(
        "--stack-depth",
        type=click.IntRange(min=1),
        default=15,
        show_default=True,
        metavar="FRAMES",
        help="Frames to keep of a stack, innermost first.",
    ),
    click.option(
        "--include",
        multiple=True,
        metavar="PATTERN",
        help="Record ops that are left out by default, for example 'aten::view*'.",
    ),
    click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave out matching ops."),
    click.option(
        "--hang-timeout",
        default="60",
        metavar="TIME",
        show_default=True,
        help="If nothing is recorded for this long (seconds, or for example 5m), dump all stacks; "
        "0: never.",
    ),
    click.option(
        "--on-hang",
        type=click.Choice(ON_HANG),
        default="report",
        show_default=True,
        help="On a hang: report it, also abort a process that certainly cannot continue (status "
        "1), or stay silent.",
    ),
    click.option(
        "--compile-backend",
        metavar="NAME",
        help="Compile with this backend; aot_eager shows single ops.",
    ),
    click.option(
        "--engine",
        type=click.Choice(ENGINES),
        default="auto",
        show_default=True,
        help="How to observe the dispatcher.",
    ),
    click.option(
        "--device",
        type=click.Choice(DEVICES),
        default="auto",
        show_default=True,
        help="Record kernels and copies on streams of a GPU; auto: with --steps only.",
    ),
    click.option(
        "--streams",
        is_flag=True,
        help="Record the streams of ops and their order, to find races between streams; each "
        "allocation on the device then takes Python's lock.",
    ),
    click.option(
        "--sample-every",
        type=click.IntRange(min=0),
        default=10,
        show_default=True,
        metavar="STEPS",
        help="Sample all parameters every N steps (norm, update, maximum and zeros of the "
        "gradient); 0: never.",
    ),
    click.option(
        "--activations-every",
        type=click.IntRange(min=0),
        default=100,
        show_default=True,
        metavar="STEPS",
        help="Sample the outputs of modules every N steps; 0: never.",
    ),
    click.option(
        "--source/--no-source",
        default=True,
        show_default=True,
        help="Keep the lines of the program that stacks name, and their neighbours.",
    ),
    click.option(
        "--trace-model",
        is_flag=True,
        help="Record the torch.fx graph of each model, traced once in a forked copy of the "
        "process.",
    ),
)


def recording_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the command-line options that make up `Options`, and -o."""
    for decorate in reversed(_SETTINGS):
        command = decorate(command)
    return command


def options_from(settings: dict[str, Any]) -> Options:
    """Returns the settings as `Options`. Raises click.UsageError, exit status 2."""
    try:
        options = Options.of(**settings)
        check_buffer(options.keep_last_bytes)
        return options
    except ValueError as error:
        raise click.UsageError(str(error)) from error


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@recording_settings
@click.option("-q", "--quiet", is_flag=True, help="Print nothing unless something is wrong.")
@click.option(
    "--findings/--no-findings",
    default=None,
    help="Check the run at the end and print the most severe finding, within 20 s.  [default: on "
    "terminals]",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def record(
    output: Path | None,
    quiet: bool,
    findings: bool | None,
    command: tuple[str, ...],
    **settings: Any,
) -> None:
    """Run COMMAND and record each of its Python processes that uses torch.

    The exit status is that of COMMAND.

    \b
    Examples:
      lanescope record -o runs/a -- torchrun --nproc-per-node 4 train.py --epochs 3
      lanescope record --level numerics --steps 10:20 -- python train.py
    """
    from .session.launch import LaunchError, run_recorded

    run = output or default_run()
    try:
        ended = run_recorded(run, options_from(settings), command, quiet=quiet)
    except LaunchError as error:
        raise click.UsageError(str(error)) from error
    if ended.sentence and not (quiet and ended.recorded):
        click.echo(f"lanescope: {ended.sentence}", err=True)
    if ended.recorded and not quiet and (sys.stderr.isatty() if findings is None else findings):
        _show_worst(run)
    sys.exit(ended.status)


@click.command()
@recording_settings
@click.option("--stop", is_flag=True, help="End the recording that an attach began.")
@click.argument("pid", type=click.IntRange(min=1))
def attach(output: Path | None, stop: bool, pid: int, **settings: Any) -> None:
    """Record the running process PID, which must run Python 3.14 or newer and torch.

    It is recorded until it ends, or until --stop. Processes that it starts are not.

    \b
    Examples:
      lanescope attach 4711 -o runs/a --level timing
      lanescope attach 4711 --stop
    """
    from .session.attach import AttachError, remote_exec
    from .session.attach import attach_process as attach_to
    from .session.launch import LaunchError, with_engine

    run = output or default_run()
    try:
        options = options_from(settings)
        remote_exec()  # raises before an engine is built
        options = options if stop else with_engine(options)
        attach_to(pid, run, asdict(options), stop=stop)
    except (AttachError, LaunchError) as error:
        click.echo(f"lanescope: {error}", err=True)
        sys.exit(2)
    if stop:
        click.echo(f"lanescope: process {pid} is no longer recorded", err=True)
    else:
        click.echo(
            f"lanescope: recording process {pid} into {run}; end that with: "
            f"lanescope attach {pid} --stop; see it with: lanescope view {shlex.quote(str(run))}",
            err=True,
        )


def _show_worst(run: Path) -> None:
    from .recorder.progress import working
    from .session.worst_finding import worst_finding

    with working("Checking the run"):
        sentence = worst_finding(run)
    if sentence:
        click.echo(f"lanescope: {sentence}", err=True)
