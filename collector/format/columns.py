"""What tables are made of: columns with their units, and those that many tables share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from .record_kinds import FORMAT_VERSION


@dataclass(frozen=True)
class Column:
    """One column: its meaning and unit are part of the contract, not a comment."""

    name: str
    type: pa.DataType
    unit: str
    doc: str
    since: int = 1


@dataclass(frozen=True)
class Table:
    """One table. `per_thread` tables live in a thread's folder, the others in the rank's."""

    name: str
    per_thread: bool
    doc: str
    columns: tuple[Column, ...]

    def arrow(self) -> pa.Schema:
        """The Arrow schema, units in the field metadata."""
        return self._arrow

    @cached_property
    def _arrow(self) -> pa.Schema:
        fields = [
            pa.field(c.name, c.type, metadata={"unit": c.unit, "since": str(c.since)})
            for c in self.columns
        ]
        return pa.schema(fields, metadata={"lanescope.format": str(FORMAT_VERSION)})


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
    (
        "innermost phase of the thread at the start; outside, that in which the thread was started "
        "or the executor's task submitted, empty without"
    ),
)
IN_MODULE = Column("module", TEXT, "", "path of the innermost torch.nn.Module, empty outside")
STACK_ID = Column("stack", INT32, "", "id in the rank's stack table; null: not captured")
