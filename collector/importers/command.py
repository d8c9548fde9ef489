"""Defines `lanescope import`, which makes a run of traces of other tools."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from ..recorder.progress import working
from ..recorder.workers import cluster_option, connected
from .import_limits import ImportRejected
from .run_writer import import_files
from .workers import Fields

LARGE_BYTES = 20_000_000
"""Size of all files from which on local processes read them side by side."""

_FIELD = re.compile(r"pid|tid|args\..+")


def _size(path: Path) -> int:
    """Bytes of a file; 0 where reading it will say what is wrong."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


class _Rejection(click.ClickException):
    exit_code = 2

    def show(self, file: Any = None) -> None:
        """Prints the sentence."""
        text = "".join(c if c.isprintable() else "?" for c in self.format_message())
        click.echo(f"lanescope: {text}", file=file, err=file is None)


@click.command("import")
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path)
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="RUN",
    required=True,
    help="Folder to make.",
)
@click.option(
    "--ranks", metavar="0,1,...", help="Ranks of the files, in their order, where they do not say."
)
@click.option(
    "--rank-from",
    metavar="pid|tid|args.NAME",
    help="Field of the events that says the rank, for a FILE that holds several workers.",
)
@click.option(
    "--step-from",
    metavar="args.NAME",
    help="Argument of the events that says the training step, as in --step-from args.step.",
)
@cluster_option
def import_(
    files: tuple[Path, ...],
    output: Path,
    ranks: str | None,
    rank_from: str | None,
    step_from: str | None,
    cluster: str | None,
) -> None:
    """Make a RUN of traces of torch.profiler, VizTracer or Perfetto (JSON, also packed with gzip),
    and of flight-recorder dumps: one FILE for each rank.

    \b
    Examples:
      lanescope import trace_rank0.json.gz trace_rank1.json.gz -o runs/imported
      lanescope import workers.json -o runs/imported --rank-from pid --step-from args.step
    """
    numbers = None
    if ranks is not None:
        pieces = [piece.strip() for piece in ranks.split(",")]
        if not all(piece.isdecimal() and len(piece) < 7 for piece in pieces):
            raise click.UsageError(f"--ranks is {ranks!r}, expected numbers as in 0,1")
        numbers = [int(piece) for piece in pieces]
    if rank_from is not None and not _FIELD.fullmatch(rank_from):
        raise click.UsageError(f"--rank-from is {rank_from!r}, expected pid, tid or args.NAME")
    if step_from is not None and not step_from.startswith("args."):
        raise click.UsageError(f"--step-from is {step_from!r}, expected args.NAME")
    try:
        large = sum(map(_size, files)) >= LARGE_BYTES
        with working("Reading the traces"), connected(cluster, local=large) as workers:
            import_files(files, output, numbers, Fields(rank_from, step_from), workers)
    except ImportRejected as error:
        raise _Rejection(str(error)) from None
    except OSError as error:
        raise _Rejection(f"{output}: cannot be written ({error.strerror or error})") from None
    click.echo(f"{output}")
