"""Defines `lanescope import`, which makes a run of traces of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .limits import ImportRejected
from .run_writer import import_files


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
def import_(files: tuple[Path, ...], output: Path, ranks: str | None) -> None:
    """Make a RUN of traces of torch.profiler, VizTracer or Perfetto (JSON, also packed with gzip),
    and of flight-recorder dumps: one FILE for each rank.
    """
    numbers = None
    if ranks is not None:
        pieces = [piece.strip() for piece in ranks.split(",")]
        if not all(piece.isdecimal() and len(piece) < 7 for piece in pieces):
            raise click.UsageError(f"--ranks is {ranks!r}, expected numbers as in 0,1")
        numbers = [int(piece) for piece in pieces]
    try:
        import_files(files, output, numbers)
    except ImportRejected as error:
        raise _Rejection(str(error)) from None
    except OSError as error:
        raise _Rejection(f"{output}: cannot be written ({error.strerror or error})") from None
    click.echo(f"{output}")
