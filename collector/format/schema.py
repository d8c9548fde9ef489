"""The contract between recording and viewing: tables, columns, units, kinds, file names.

Both sides import this package and nothing else of each other. A run on disk is

    RUN/manifest.json
    RUN/rank=00000/{thread,module,stack}.parquet
    RUN/rank=00000/thread=<pid>-<ordinal>/<table>-00000.parquet

Times are int64 nanoseconds of the recording host's monotonic clock. The manifest carries, per
process, the offset to the run's common axis. `rank` and `thread` are the partition columns of the
path (Hive style), so pandas, pyarrow, DuckDB and Polars add them when they read a whole run.
"""

from __future__ import annotations

from .columns import FLOAT64, FRAME, INT32, INT64, TEXT, Column, Table
from .happenings import COLLECTIVE, PHASE, STALL, SYNC, VALUE
from .learning import ACTIVATION, FX, GRADIENT, NODE, PARAMETER
from .lookups import MODULE, STACK, STORAGE, THREAD
from .manifest import STOPPED, AxisReference, Clock, File, Group, Manifest, Process
from .operators import ACCESS, OP, TENSOR
from .record_kinds import (
    ADDED_NORM,
    ADDED_NORM_OF,
    COMPILED,
    CUDA_CONTEXT,
    FARTHEST_NS,
    FORMAT_VERSION,
    GRADIENT_RELEASES,
    GRAPH_SERIES,
    JOIN,
    JOURNAL_FOLDER,
    LOCK_FILE,
    LOST_CONTEXT,
    MANIFEST,
    NOT_COMPUTING,
    NOTED_ACCESSES,
    OF_DEVICES,
    PUBLISHING,
    RAISED_IN_BACKWARD,
    RECEIVING,
    RECORDER_MEMORY,
    RENDEZVOUS,
    OpScope,
    PhaseKind,
    SyncKind,
    ThreadKind,
    part_file,
    rank_folder,
    thread_folder,
    thread_id,
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
    "CUDA_CONTEXT",
    "FARTHEST_NS",
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
    "LOST_CONTEXT",
    "MANIFEST",
    "NOTED_ACCESSES",
    "NOT_COMPUTING",
    "OF_DEVICES",
    "PUBLISHING",
    "RAISED_IN_BACKWARD",
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
