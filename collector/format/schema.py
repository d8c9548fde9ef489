"""Contract between recorder and reader: tables, columns, units, kinds, file names.

The two sides share nothing else. A run on disk is

    RUN/manifest.json
    RUN/rank=00000/{thread,module,stack}.parquet
    RUN/rank=00000/thread=<pid>-<ordinal>/<table>-00000.parquet

Times are int64 nanoseconds of the recording host's monotonic clock. The manifest carries, per
process, the offset to the run's common axis. `rank` and `thread` are the partition columns of the
path (Hive style), so pandas, pyarrow, DuckDB and Polars add them when they read a whole run.
"""

from __future__ import annotations

from .columns import FLOAT64, FRAME, INT32, INT64, TEXT, Column, Table
from .file_names import (
    JOURNAL_FOLDER,
    LOCK_FILE,
    MANIFEST,
    part_file,
    rank_folder,
    thread_folder,
    thread_id,
)
from .happenings import COLLECTIVE, PHASE, STALL, SYNC, VALUE
from .learning import ACTIVATION, FX, GRADIENT, NODE, PARAMETER
from .lookups import MODULE, STACK, STORAGE, THREAD
from .manifest import STOPPED, AxisReference, Clock, File, Group, Manifest, Process
from .names import (
    ADDED_NORM,
    ADDED_NORM_OF,
    COMPILED,
    GRADIENT_RELEASES,
    GRAPH_SERIES,
    JOIN,
    NOT_COMPUTING,
    NOTED_ACCESSES,
    RECORDER_MEMORY,
    RENDEZVOUS,
)
from .operators import ACCESS, OP, TENSOR
from .record_kinds import (
    FORMAT_VERSION,
    MAX_TIME_NS,
    OF_DEVICES,
    PUBLISHING,
    RECEIVING,
    OpScope,
    PhaseKind,
    SyncKind,
    ThreadKind,
)

TABLES: dict[str, Table] = {
    t.name: t
    for t in (
        OP,
        COLLECTIVE,
        PHASE,
        GRADIENT,
        PARAMETER,
        ACTIVATION,
        NODE,
        FX,
        SYNC,
        VALUE,
        ACCESS,
        TENSOR,
        STALL,
        STACK,
        STORAGE,
        THREAD,
        MODULE,
    )
}
THREAD_TABLES: tuple[Table, ...] = tuple(t for t in TABLES.values() if t.per_thread)

__all__ = [
    "ADDED_NORM",
    "ADDED_NORM_OF",
    "COMPILED",
    "FLOAT64",
    "FORMAT_VERSION",
    "FRAME",
    "GRADIENT_RELEASES",
    "GRAPH_SERIES",
    "INT32",
    "INT64",
    "JOIN",
    "JOURNAL_FOLDER",
    "LOCK_FILE",
    "MANIFEST",
    "MAX_TIME_NS",
    "NOTED_ACCESSES",
    "NOT_COMPUTING",
    "OF_DEVICES",
    "PUBLISHING",
    "RECEIVING",
    "RECORDER_MEMORY",
    "RENDEZVOUS",
    "STOPPED",
    "SYNC",
    "TABLES",
    "TEXT",
    "THREAD",
    "THREAD_TABLES",
    "AxisReference",
    "Clock",
    "Column",
    "File",
    "Group",
    "Manifest",
    "OpScope",
    "PhaseKind",
    "Process",
    "SyncKind",
    "Table",
    "ThreadKind",
    "part_file",
    "rank_folder",
    "thread_folder",
    "thread_id",
]
