"""A table of a run as CSV or Parquet; ops unless another one is named."""

from __future__ import annotations

from pathlib import Path

from lanescope.webapp.analysis.tables import table_pieces, write_csv, write_parquet
from lanescope.webapp.exporters.base import ExportRequest
from lanescope.webapp.runs.run import Run


def csv(run: Run, path: Path, wanted: ExportRequest) -> None:
    """Writes comma-separated text."""
    with path.open("wb") as sink:
        write_csv(table_pieces(run, wanted.table or "op", wanted.ranks, wanted.baseline), sink)


def parquet(run: Run, path: Path, wanted: ExportRequest) -> None:
    """Writes a Parquet file."""
    with path.open("wb") as sink:
        write_parquet(table_pieces(run, wanted.table or "op", wanted.ranks, wanted.baseline), sink)
