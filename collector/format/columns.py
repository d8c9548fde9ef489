"""Defines tables and columns with units, and the columns that several tables share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from .record_kinds import FORMAT_VERSION


@dataclass(frozen=True)
class Column:
    """A column: meaning and unit are part of the contract."""

    name: str
    type: pa.DataType
    unit: str
    doc: str
    since: int = 1


@dataclass(frozen=True)
class Table:
    """A table. Files of `per_thread` tables are in a thread's folder, others in the rank's."""

    name: str
    per_thread: bool
    doc: str
    columns: tuple[Column, ...]

    def arrow(self) -> pa.Schema:
        """Returns the Arrow schema, with units in the field metadata."""
        return self._arrow

    @cached_property
    def _arrow(self) -> pa.Schema:
        fields = [
            pa.field(c.name, c.type, metadata={"unit": c.unit, "since": str(c.since)})
            for c in self.columns
        ]
        return pa.schema(fields, metadata={"lanescope.format": str(FORMAT_VERSION)})


TIME_COLUMNS = ("start_ns", "time_ns", "complete_ns", "end_ns", "launch_ns")
"""Columns that hold an instant, in whatever table."""

# Text that repeats (op names, modules, shapes) is dictionary-encoded: a few bytes per row.
TEXT = pa.dictionary(pa.int32(), pa.string())
INT64 = pa.int64()
INT32 = pa.int32()
FLOAT64 = pa.float64()

FRAME = pa.struct([("file", pa.string()), ("line", pa.int32()), ("function", pa.string())])

START = Column("start_ns", INT64, "ns", "start, monotonic clock of the recording process")
DURATION = Column("duration_ns", INT64, "ns", "duration; null: had not ended when the log ends")
TIME = Column("time_ns", INT64, "ns", "instant, monotonic clock of the recording process")
STEP = Column("step", INT32, "1", "training step, from 0; ends with the optimizer's step")
IN_PHASE = Column(
    "phase",
    TEXT,
    "",
    "innermost phase of the thread at the start; outside of phases, that in which the thread was "
    "started or the executor's task submitted; empty: none",
)
PID = Column("pid", INT64, "", "process")
THREAD_NAME = Column("name", pa.string(), "", "name in Python, or the operating system's")
OP_START = Column("start_ns", INT64, "ns", "start of the operator, as in its op row")
DTYPE = Column("dtype", TEXT, "", "dtype of the tensor")
DEVICE = Column("device", TEXT, "", "device of the tensor")
IN_MODULE = Column("module", TEXT, "", "path of the innermost torch.nn.Module, empty outside")
ARGS = Column(
    "args",
    pa.string(),
    "",
    "imported runs: further arguments of the event, as JSON; null: none. Recorded runs lack it",
    since=5,
)
STACK_ID = Column("stack", INT32, "", "id in the rank's stack table; null: not captured")
