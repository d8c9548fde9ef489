"""Contract between recorder and reader: tables, columns, units, kinds, file names.

The two sides share nothing else. A run on disk is

    RUN/manifest.json
    RUN/rank=00000/{thread,module,stack}.parquet
    RUN/rank=00000/thread=<pid>-<ordinal>/<table>-00000.parquet
    RUN/rank=00000/thread=<pid>-short/<table>-00000.parquet
    RUN/catalogue.parquet

Times are int64 nanoseconds of the recording host's monotonic clock. The manifest carries, per
process, the offset to the run's common axis. `rank` and `thread` are the partition columns of the
path (Hive style), so pandas, pyarrow, DuckDB and Polars add them when they read a whole run.
"""

from __future__ import annotations

from .columns import FLOAT64 as FLOAT64
from .columns import FRAME as FRAME
from .columns import INT32 as INT32
from .columns import INT64 as INT64
from .columns import TEXT as TEXT
from .columns import Column as Column
from .columns import Table as Table
from .file_names import JOURNAL_FOLDER as JOURNAL_FOLDER
from .file_names import LOCK_FILE as LOCK_FILE
from .file_names import MANIFEST as MANIFEST
from .file_names import PART_CATALOGUE as PART_CATALOGUE
from .file_names import SHORT_THREAD as SHORT_THREAD
from .file_names import is_shared as is_shared
from .file_names import named_parts as named_parts
from .file_names import part_file as part_file
from .file_names import rank_folder as rank_folder
from .file_names import shared_folder as shared_folder
from .file_names import thread_folder as thread_folder
from .file_names import thread_id as thread_id
from .happenings import COLLECTIVE, PHASE, STALL, VALUE
from .happenings import SYNC as SYNC
from .learning import ACTIVATION, FX, GRADIENT, NODE, PARAMETER
from .lookups import MODULE, STACK, STORAGE
from .lookups import SOURCE as SOURCE
from .lookups import THREAD as THREAD
from .manifest import STOPPED as STOPPED
from .manifest import AxisReference as AxisReference
from .manifest import Clock as Clock
from .manifest import File as File
from .manifest import Group as Group
from .manifest import Manifest as Manifest
from .manifest import Process as Process
from .names import ADDED_NORM as ADDED_NORM
from .names import ADDED_NORM_OF as ADDED_NORM_OF
from .names import BATCHES as BATCHES
from .names import COMPILED as COMPILED
from .names import GRADIENT_RELEASES as GRADIENT_RELEASES
from .names import GRAPH_SERIES as GRAPH_SERIES
from .names import JOIN as JOIN
from .names import NOT_COMPUTING as NOT_COMPUTING
from .names import NOTED_ACCESSES as NOTED_ACCESSES
from .names import RECORDER_MEMORY as RECORDER_MEMORY
from .names import RENDEZVOUS as RENDEZVOUS
from .names import SETTINGS as SETTINGS
from .operators import ACCESS, OP, TENSOR
from .record_kinds import FORMAT_VERSION as FORMAT_VERSION
from .record_kinds import MAX_TIME_NS as MAX_TIME_NS
from .record_kinds import OF_DEVICES as OF_DEVICES
from .record_kinds import OTHER_PROCESSES as OTHER_PROCESSES
from .record_kinds import PUBLISHING as PUBLISHING
from .record_kinds import RECEIVING as RECEIVING
from .record_kinds import OpScope as OpScope
from .record_kinds import PhaseKind as PhaseKind
from .record_kinds import SyncKind as SyncKind
from .record_kinds import ThreadKind as ThreadKind

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
        SOURCE,
        STORAGE,
        THREAD,
        MODULE,
    )
}
THREAD_TABLES: tuple[Table, ...] = tuple(t for t in TABLES.values() if t.per_thread)
