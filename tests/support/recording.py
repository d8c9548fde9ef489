"""Records small programs: in a process forked for each, or for real under `lanescope record`."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lanescope.collector.cli import options_from, record
from lanescope.collector.format import schema
from lanescope.collector.format.options import SUPERVISOR_VARIABLE, Options
from lanescope.collector.session import launch, outcome
from lanescope.webapp.analysis.findings import Finding, run_question
from lanescope.webapp.analysis.plugin import questions
from lanescope.webapp.runs.run import open_run
from tests.support import ROOT
from tests.support.kept_runs import recorded_once
from tests.support.processes import Ended, fork_program, run_program

BIN = Path(sys.executable).parent


UNCOMPACTED = {SUPERVISOR_VARIABLE: str(os.getpid())}
"""Environment in which journals stay as they are, to be read when the run is opened: a program
that makes ten runs need not wait for ten compactions."""

_PATHS = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
WITH_TESTS = {"PYTHONPATH": os.pathsep.join(_PATHS)}
"""Environment in which a program can import `tests`."""

WATCHED = """
    def watched():
        import os, pathlib, time
        run, looks = pathlib.Path(os.environ["LANESCOPE_RECORD"]), f"journal/{os.getpid()}-*/alive"
        while not any(sum(path.read_bytes()) for path in run.glob(looks)):
            time.sleep(0.01)
"""
"""Beginning of a recorded program: a function that waits for the watchdog's first look, which comes
once something was recorded."""

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
        for path in sorted(folder.glob(f"thread=*-short/{name}-*.parquet")):
            shared = pq.read_table(path, partitioning=None)
            owned = pc.is_in(shared[schema.SHORT_THREAD].cast(pa.string()), pa.array(ids))
            parts.append(shared.filter(owned).drop_columns(schema.SHORT_THREAD))
        whole = pa.concat_tables(parts) if parts else table.arrow().empty_table()
        return whole.sort_by(table.columns[0].name)

    def rows(self, name: str, rank: int = 0, thread: str | None = None) -> list[dict[str, object]]:
        """The same as dicts."""
        found: list[dict[str, object]] = self.table(name, rank, thread).to_pylist()
        return found

    def op_names(self, rank: int = 0, thread: str | None = None) -> list[str]:
        """Names of the ops that are inside no other: the same with every engine."""
        return [str(r["name"]) for r in self.rows("op", rank, thread) if r["depth"] == 0]

    def findings(self, kind: str) -> list[Finding]:
        """Findings of a kind. No other question is asked: all of them take longer to answer than
        a small program takes to record."""
        run = open_run(self.run)
        asked = [run_question(one, run) for one in questions() if kind in one.kinds]
        assert not (failed := [one.failed for one in asked if one.failed]), failed
        return [found for answer in asked for found in answer.findings if found.kind == kind]


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
    real: bool = False,
) -> Recorded:
    """Record `source`, written to a file of the folder; see `record_script`."""
    program = write_program(folder, source)
    run = folder / "run"
    return record_script(run, program, *arguments, options=options, ranks=ranks, real=real)


def record_script(
    run: Path,
    program: Path,
    *arguments: str,
    options: tuple[str, ...] = (),
    ranks: int = 0,
    environment: Mapping[str, str] | None = None,
    real: bool = False,
) -> Recorded:
    """Record a program into `run`, with `ranks` as torchrun would start them.

    The program is forked from a process that has imported torch, and the run prepared and finished
    by what `lanescope record` does before and after. `real`: by the command itself and torchrun,
    for tests of how a recording is started, followed and finished. What was recorded once for a
    test that reads runs is copied: see kept_runs.py.
    """
    if real:
        return _record_for_real(run, [str(program), *arguments], options, ranks, environment)
    settings = arguments, options, ranks, environment
    done = recorded_once(run, program, settings, lambda: _record_forked(run, program, *settings))
    return Recorded(run, done.returncode, done.stdout, done.stderr)


def record_into(folder: Path, program: Path, *arguments: str, ranks: int = 0) -> Ended:
    """Run a program that records into the folder, its first argument; or copy what it recorded.

    Its journals stay as they are.
    """

    def record() -> Ended:
        return fork_program(
            program, str(folder), *arguments, ranks=ranks, environment=UNCOMPACTED | WITH_TESTS
        )

    return recorded_once(folder, program, (arguments, ranks), record)


def _record_forked(
    run: Path,
    program: Path,
    arguments: tuple[str, ...],
    options: tuple[str, ...],
    ranks: int,
    environment: Mapping[str, str] | None,
) -> Ended:
    settings = launch.with_engine(_options(options))
    command = [sys.executable, str(program), *arguments]
    launch.prepare_run(run, settings, command)
    recorder = launch.environment_for(run, settings)
    paths = [recorder["PYTHONPATH"], (environment or {}).get("PYTHONPATH", "")]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = fork_program(
        program, *arguments, ranks=ranks, environment={**recorder, **(environment or {}), **path}
    )
    status = 128 - done.returncode if done.returncode < 0 else done.returncode
    launch.finish(run, exit_status=status, stopped="")
    _, sentence = outcome.conclude(run, settings, command[0], status)
    return Ended(done.args, status, done.stdout, f"{done.stderr}lanescope: {sentence}\n")


def _options(given: tuple[str, ...]) -> Options:
    """What the command line makes of them."""
    with record.make_context("record", [*given, "--", "program"]) as context:
        settings = dict(context.params)
    for name in ("output", "command", "quiet", "findings"):
        settings.pop(name)
    return options_from(settings)


def _record_for_real(
    run: Path,
    command: list[str],
    options: tuple[str, ...],
    ranks: int,
    environment: Mapping[str, str] | None,
) -> Recorded:
    launcher = (
        [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={ranks}"]
        if ranks
        else [sys.executable]
    )
    done = run_program(
        [str(BIN / "lanescope"), "record", "-o", str(run), *options, "--", *launcher, *command],
        environment=environment,
    )
    return Recorded(run, done.returncode, done.stdout, done.stderr)
