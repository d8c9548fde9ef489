"""Records small programs for real: a child process under `lanescope record`."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanescope.collector import schema
from lanescope.collector.options import SUPERVISOR_VARIABLE

BIN = Path(sys.executable).parent


UNCOMPACTED = {SUPERVISOR_VARIABLE: str(os.getpid())}
"""Environment in which journals stay as they are, to be read by whoever opens the run: a program
that makes ten runs need not wait for ten compactions."""

_PORTABLE = pytest.param("portable", marks=pytest.mark.slow)
SLOW_ON_PORTABLE = ("auto", _PORTABLE)
OBSERVERS = ("native", _PORTABLE)
"""Engines, for tests that start a process with each: in `make soak` with both. What both see alike
is tested with both at once, in test_conformance.py."""


@dataclass(frozen=True)
class Recorded:
    """What came of a recorded program."""

    run: Path
    status: int
    stdout: str
    stderr: str

    def table(self, name: str, rank: int = 0, thread: str | None = None) -> pa.Table:
        """All rows of a table of a rank (and of a thread, by its name), sorted by time."""
        table = schema.TABLES[name]
        folder = self.run / schema.rank_folder(rank)
        if not table.per_thread:
            return pq.read_table(folder / f"{name}.parquet", partitioning=None)
        ids = [
            row["thread"]
            for row in self.table("thread", rank).to_pylist()
            if thread is None or row["name"] == thread
        ]
        parts = [
            pq.read_table(path, partitioning=None)
            for one in ids
            for path in sorted((folder / schema.thread_folder(one)).glob(f"{name}-*.parquet"))
        ]
        whole = pa.concat_tables(parts) if parts else table.arrow().empty_table()
        return whole.sort_by(table.columns[0].name)

    def rows(self, name: str, rank: int = 0, thread: str | None = None) -> list[dict[str, object]]:
        """The same as dicts."""
        found: list[dict[str, object]] = self.table(name, rank, thread).to_pylist()
        return found

    def op_names(self, rank: int = 0, thread: str | None = None) -> list[str]:
        """Names of the ops that are inside no other: the same with every engine."""
        return [str(r["name"]) for r in self.rows("op", rank, thread) if r["depth"] == 0]


def run_program(
    command: list[str], *, environment: dict[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end with one OpenMP thread, its output captured."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=timeout, check=False
    )


def write_program(folder: Path, source: str, name: str = "program.py") -> Path:
    """The dedented source as a file."""
    path = folder / name
    path.write_text(textwrap.dedent(source))
    return path


def record_program(
    folder: Path,
    source: str,
    *options: str,
    ranks: int = 0,
    arguments: tuple[str, ...] = (),
) -> Recorded:
    """Record `source`, under torchrun where `ranks` are given."""
    program = write_program(folder, source)
    run = folder / "run"
    launcher = (
        [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={ranks}"]
        if ranks
        else [sys.executable]
    )
    done = run_program(
        [str(BIN / "lanescope"), "record", "-o", str(run), *options, "--", *launcher,
         str(program), *arguments]
    )  # fmt: skip
    return Recorded(run, done.returncode, done.stdout, done.stderr)
