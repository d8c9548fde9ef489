"""`lanescope export`: a run, or a part of it, in another format."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from lanescope.webapp.analysis import tables
from lanescope.webapp.commands.pack import ranks_of
from lanescope.webapp.runs.errors import RunError, shown
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.runs.run_warnings import ranks_text

FORMATS = ("perfetto", "html", "csv", "parquet", "markdown")


@click.command()
@click.argument("run")
@click.option("--to", "kind", required=True, type=click.Choice(FORMATS), help="The format.")
@click.option("-o", "--output", required=True, metavar="FILE", help="The file to write.")
@click.option("--table", metavar="NAME", help="csv, parquet: which table (op by default).")
@click.option("--ranks", metavar="0,2-5", help="Only these ranks.")
@click.option("--window", metavar="T0-T1", help="html: only this time, in ns from the start.")
def export(
    run: str, kind: str, output: str, table: str | None, ranks: str | None, window: str | None
) -> None:
    """Write RUN as a Chrome trace, a page, a table or a report.

    The pictures of a report go to a folder beside it.
    """
    if table is not None and kind not in ("csv", "parquet"):
        raise RunError(f"--table is for csv and parquet, not for {kind}")
    if window is not None and kind != "html":
        raise RunError(f"--window is for html, not for {kind}")
    chosen, span = ranks_of(ranks), _window(window)
    opened = open_run(run)
    for rank in chosen or ():
        if rank not in opened.ranks:
            raise RunError(
                f"rank {rank}: no such rank; this run has {ranks_text(opened.ranks)} of "
                f"{opened.world_size}"
            )
    target = Path(output)
    try:
        # A file that is half written is worse than none.
        with tempfile.TemporaryDirectory(prefix=".lanescope-", dir=target.absolute().parent) as at:
            made = Path(at) / "made"
            if kind == "markdown":
                _report(opened, made, target)
            else:
                _write(opened, kind, made, table or "op", chosen, span)
            made.replace(target)
    except OSError as error:
        raise RunError(
            f"{output}: cannot be written ({error.strerror or error}); choose another place with -o"
        ) from None
    click.echo(f"{output}: {os.path.getsize(output):,} bytes")


def _write(
    run: Run,
    kind: str,
    path: Path,
    table: str,
    ranks: Sequence[int] | None,
    window: tuple[int, int] | None,
) -> None:
    if kind == "perfetto":
        from lanescope.webapp.exporters.perfetto import write_trace

        with path.open("w", encoding="utf-8") as text:
            write_trace(run, text, ranks)
    elif kind == "html":
        from lanescope.webapp.exporters.html_page import page_of

        path.write_text(page_of(run, window, ranks), encoding="utf-8")
    else:
        write = tables.write_csv if kind == "csv" else tables.write_parquet
        with path.open("wb") as data:
            write(tables.pieces_of(run, table, ranks), data)


def _report(run: Run, path: Path, target: Path) -> None:
    """The words to `path`, the pictures to a folder beside the target, which is named after it."""
    from lanescope.webapp.analysis.checks import check
    from lanescope.webapp.exporters.report import markdown, pictures_of

    report = check(run)
    pictures = pictures_of(run, report)
    folder = target.with_name(f"{target.stem}-pictures")
    folder.mkdir(exist_ok=True)
    for name, text in pictures.items():
        made = path.with_name(name)
        made.write_text(text, encoding="utf-8")
        made.replace(folder / name)
    path.write_text(markdown(run, report, pictures, folder.name), encoding="utf-8")


def _window(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,16})-([0-9]{1,16})", text, re.ASCII)
    if found is None or int(found[1]) >= int(found[2]):
        raise RunError(f"--window is {shown(text)}, expected T0-T1 in ns, as in the page's address")
    return int(found[1]), int(found[2])
