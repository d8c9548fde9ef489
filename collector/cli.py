"""Defines `lanescope record` and its settings, also for `-m lanescope.collector`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .format.options import DEVICES, ENGINES, LEVELS, ON_HANG, STACKS, Options, default_run
from .journal.limits import check_buffer

_SETTINGS = (
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
        "--min-duration",
        default="0ns",
        metavar="TIME",
        show_default=True,
        help="Leave out ops shorter than this, for example 1ms; they are counted.",
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
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def record(output: Path | None, command: tuple[str, ...], **settings: Any) -> None:
    """Run COMMAND and record each of its Python processes that uses torch.

    \b
    lanescope record -o runs/a -- torchrun --nproc-per-node 4 train.py --epochs 3

    The exit status is that of COMMAND.
    """
    from .session.launch import LaunchError, run_recorded

    run = output or default_run()
    try:
        status, sentence = run_recorded(run, options_from(settings), command)
    except LaunchError as error:
        raise click.UsageError(str(error)) from error
    click.echo(f"lanescope: {sentence}", err=True)
    sys.exit(status)
