"""`lanescope record`: the settings, once, for the command and for `-m lanescope.collector`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .format.options import (
    DEVICES,
    ENGINES,
    LEVELS,
    ON_HANG,
    STACKS,
    Options,
    default_run,
)


def recording_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that make up `Options`, and -o."""
    for decorate in reversed(
        (
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
                help="How much is recorded; each level holds the one before.",
            ),
            click.option("--steps", metavar="A:B", help="Record the training steps A to B-1 only."),
            click.option(
                "--keep-last",
                metavar="SIZE",
                help="Keep the last records of each process only, as in 64MB of journals.",
            ),
            click.option(
                "--min-duration",
                default="0ns",
                metavar="TIME",
                show_default=True,
                help="Leave out ops shorter than this, as in 1ms; they are counted.",
            ),
            click.option(
                "--stacks",
                type=click.Choice(STACKS),
                default="auto",
                show_default=True,
                help="Where Python stacks are captured.",
            ),
            click.option(
                "--stack-depth",
                type=click.IntRange(min=1),
                default=15,
                show_default=True,
                metavar="FRAMES",
                help="Frames kept of a stack, innermost first.",
            ),
            click.option(
                "--include",
                multiple=True,
                metavar="PATTERN",
                help="Record ops of this name after all, as in 'aten::view*'.",
            ),
            click.option(
                "--exclude", multiple=True, metavar="PATTERN", help="Leave out ops of this name."
            ),
            click.option(
                "--hang-timeout",
                default="60",
                metavar="TIME",
                show_default=True,
                help="Without a record for this long (seconds, or as in 5m) all stacks are "
                "written down; 0: never.",
            ),
            click.option(
                "--on-hang",
                type=click.Choice(ON_HANG),
                default="report",
                show_default=True,
                help="Then say so, also end a process that certainly cannot go on (status 1), or "
                "continue in silence.",
            ),
            click.option(
                "--compile-backend",
                metavar="NAME",
                help="Compile with this backend, as in aot_eager, which shows single ops.",
            ),
            click.option(
                "--engine",
                type=click.Choice(ENGINES),
                default="auto",
                show_default=True,
                help="What observes the dispatcher.",
            ),
            click.option(
                "--device",
                type=click.Choice(DEVICES),
                default="auto",
                show_default=True,
                help="Kernels and copies on streams of a GPU; auto: with --steps only.",
            ),
            click.option(
                "--streams",
                is_flag=True,
                help="Which streams of a GPU ops go to and what orders these, to find races "
                "between them; each allocation on the device then takes Python's lock.",
            ),
            click.option(
                "--sample-every",
                type=click.IntRange(min=0),
                default=10,
                show_default=True,
                metavar="STEPS",
                help="Steps from one full look at all parameters to the next "
                "(their norm and update, their gradient's maximum and zeros); 0: never.",
            ),
            click.option(
                "--activations-every",
                type=click.IntRange(min=0),
                default=100,
                show_default=True,
                metavar="STEPS",
                help="Steps from one look at what modules return to the next; 0: never.",
            ),
            click.option(
                "--trace-model",
                is_flag=True,
                help="Record the torch.fx graph of each model, traced once in a forked copy of the "
                "process.",
            ),
        )
    ):
        command = decorate(command)
    return command


def options_from(settings: dict[str, Any]) -> Options:
    """The settings as `Options`. Raises click.UsageError, exit status 2."""
    try:
        return Options.of(**settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@recording_settings
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def record(output: Path | None, command: tuple[str, ...], **settings: Any) -> None:
    """Run COMMAND and record every Python process of it that uses torch.

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
