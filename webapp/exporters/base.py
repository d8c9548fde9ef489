"""What an exporter is, and which there are.

A new one is a module with a function as `Exporter.write` describes it, and a line in EXPORTERS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lanescope.webapp.analysis.plugin import load
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run


@dataclass(frozen=True)
class ExportRequest:
    """What of a run is to be written, and where it will be found."""

    target: Path
    ranks: Sequence[int] | None = None  # None: all
    table: str | None = None
    window: tuple[int, int] | None = None  # [t0, t1), ns from the start of the run
    baseline: Run | None = None  # for tables that compare
    by: str | None = None  # what a flame graph's frames are


@dataclass(frozen=True)
class Exporter:
    """A format that a run can be written in."""

    name: str  # as --to names it
    entry: str  # "module:function" below this folder, imported when it is used
    options: tuple[str, ...] = ()  # fields of Wanted that it heeds beside ranks and target

    def write(self, run: Run, path: Path, wanted: ExportRequest) -> None:
        """Writes one file to `path`, a temporary one that is moved to the target afterwards.

        Raises RunError where the run cannot be written so, OSError where the file cannot.
        """
        written: Callable[[Run, Path, ExportRequest], None] = load(f"{__package__}.{self.entry}")
        written(run, path, wanted)

    def check(self, wanted: ExportRequest) -> None:
        """Raises RunError for an option that is given and not heeded."""
        for option in ("table", "window", "by", "baseline"):
            if getattr(wanted, option) is not None and option not in self.options:
                known = [one.name for one in EXPORTERS if option in one.options]
                raise RunError(f"--{option} is for {' and '.join(known)}, not for {self.name}")


EXPORTERS = (
    Exporter("perfetto", "perfetto:export"),
    Exporter("chrome", "perfetto:export"),  # the same file, by the name of its format
    Exporter("html", "html_page:export", ("window",)),
    Exporter("csv", "table_files:csv", ("table", "baseline")),
    Exporter("parquet", "table_files:parquet", ("table", "baseline")),
    Exporter("markdown", "report:export"),
    Exporter("speedscope", "speedscope:export", ("window", "by")),
    Exporter("collapsed", "collapsed_stacks:export", ("window", "by")),
)


def window_within(run: Run, window: tuple[int, int] | None) -> tuple[int, int]:
    """Returns the window, without one the whole run. Raises RunError where it is not within."""
    end = max(run.duration_ns, 1)
    t0, t1 = (0, end) if window is None else window
    if t0 >= end or t1 > end:
        raise RunError(f"the window is {t0}-{t1} ns, expected one within 0-{end}, the run")
    return t0, t1
