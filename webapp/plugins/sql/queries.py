"""SQL over a run's tables, for the page: what may be asked, and what comes of it.

The tables of `analysis.tables` are there under their names, in nanoseconds on the run's axis like
`Run.events`. A query runs in a process of its own (`query_process`) that sees only the tables it
names, as Arrow files that are mapped; it is ended when its time is over.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from lanescope.collector.format import schema
from lanescope.webapp.analysis.plugin import tables
from lanescope.webapp.analysis.tables import MAX_ANSWER_ROWS, table_pieces
from lanescope.webapp.plugins.sql import REFUSED
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.units import count

MAX_CHARACTERS = 20_000
MAX_AT_ONCE = 2


class QueryError(RunError):
    """The query has no answer; the sentence says why."""


@dataclass(frozen=True)
class Limits:
    """What a query may use."""

    seconds: int = 10
    memory_mb: int = 1024


class Queries:
    """Queries of one run. Tables are written when first named, and go with this object."""

    def __init__(self, run: Run, limits: Limits = Limits()) -> None:
        self._run = run
        self._limits = limits
        self._writing = threading.Lock()
        self._running = threading.BoundedSemaphore(MAX_AT_ONCE)

    def answer(self, query: str, most_rows: int) -> pa.Table:
        """Returns rows of one SELECT, at most `most_rows`. Raises QueryError in one sentence."""
        if not query.strip():
            raise QueryError("there is no query")
        if len(query) > MAX_CHARACTERS:
            raise QueryError(f"the query has more than {count(MAX_CHARACTERS)} characters")
        question = {
            "query": query,
            "tables": self._files(query),
            "rows": most_rows,
            "memory_mb": self._limits.memory_mb,
            "seconds": self._limits.seconds,
        }
        with self._running:
            return self._asked(json.dumps(question))

    @cached_property
    def _folder(self) -> str:
        folder = tempfile.mkdtemp(prefix="lanescope-sql-")
        weakref.finalize(self, shutil.rmtree, folder, True)
        return folder

    def _asked(self, question: str) -> pa.Table:
        # The same modules as here, and none of a folder that the server happens to stand in.
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
        command = [sys.executable, "-m", "lanescope.webapp.plugins.sql.query_process"]
        try:
            done = subprocess.run(
                command,
                input=question.encode(),
                capture_output=True,
                cwd=self._folder,
                timeout=self._limits.seconds,
                env=os.environ | {"PYTHONPATH": path},
            )
        except subprocess.TimeoutExpired:
            raise QueryError(
                f"stopped after {self._limits.seconds} s: narrow the query, or export the tables "
                "as Parquet and query them with DuckDB"
            ) from None
        if done.returncode == REFUSED:
            raise QueryError(done.stdout.decode(errors="replace").strip())
        if done.returncode != 0:
            raise QueryError(
                f"the query needs more than {self._limits.memory_mb} MB of memory, or more time "
                "than a query may have"
            )
        with pa.ipc.open_stream(done.stdout) as stream:
            return stream.read_all()

    def _files(self, query: str) -> dict[str, str]:
        """Path of each table. One of events that the query does not name is there without rows."""
        words = set(re.findall(r"\w+", query.lower()))
        analyses = [name for name in tables() if name in words]
        with self._writing:
            return {
                name: str(self._file(name, name in words)) for name in (*schema.TABLES, *analyses)
            }

    def _file(self, name: str, filled: bool) -> Path:
        path = Path(self._folder) / f"{name}{'' if filled else '-empty'}.arrow"
        if path.exists():
            return path
        if not filled:
            table = self._run.rows.read(name, (), None, None)
        elif (rows := self._run.counts.get(name, 0)) > MAX_ANSWER_ROWS:
            raise QueryError(
                f"{name} has {count(rows)} rows, the most here is {count(MAX_ANSWER_ROWS)}: "
                f"lanescope export RUN --to parquet --table {name} -o FILE, and query that with "
                "DuckDB"
            )
        else:
            table = pa.concat_tables(table_pieces(self._run, name), promote_options="permissive")
        unfinished = path.with_suffix(".tmp")
        with pa.ipc.new_file(str(unfinished), table.schema) as sink:
            sink.write_table(table.unify_dictionaries())
        return unfinished.rename(path)
