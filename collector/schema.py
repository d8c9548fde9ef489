"""The contract between recording and viewing: tables, columns, units, kinds, file names.

Both sides import this file and nothing else of each other. A run on disk is

    RUN/manifest.json
    RUN/rank=00000/{thread,module,stack}.parquet
    RUN/rank=00000/thread=<pid>-<ordinal>/<table>-00000.parquet

Times are int64 nanoseconds of the recording host's monotonic clock. The manifest carries, per
process, the offset to the run's common axis. `rank` and `thread` are the partition columns of the
path (Hive style), so pandas, pyarrow, DuckDB and Polars add them when they read a whole run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import pyarrow as pa

from .kinds import (
    CUDA_CONTEXT,
    FORMAT_VERSION,
    GRADIENT_RELEASES,
    GRAPH_SERIES,
    JOURNAL_FOLDER,
    LOCK_FILE,
    LOST_CONTEXT,
    MANIFEST,
    NOT_COMPUTING,
    PUBLISHING,
    RAISED_IN_BACKWARD,
    RECEIVING,
    RECORDER_MEMORY,
    OpScope,
    PhaseKind,
    SyncKind,
    ThreadKind,
    part_file,
    rank_folder,
    thread_folder,
    thread_id,
)

STOPPED = "stopped from outside"
"""A note of the manifest begins so where someone stopped the recorded command: ": SIGTERM ..."."""

__all__ = [
    "CUDA_CONTEXT",
    "FORMAT_VERSION",
    "FRAME",
    "GRADIENT_RELEASES",
    "GRAPH_SERIES",
    "JOURNAL_FOLDER",
    "LOCK_FILE",
    "LOST_CONTEXT",
    "MANIFEST",
    "NOT_COMPUTING",
    "PUBLISHING",
    "RAISED_IN_BACKWARD",
    "RECEIVING",
    "RECORDER_MEMORY",
    "STOPPED",
    "TABLES",
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

_START = Column("start_ns", INT64, "ns", "start, monotonic clock of the recording process")
_DURATION = Column("duration_ns", INT64, "ns", "duration; null: had not ended when the log ends")
_TIME = Column("time_ns", INT64, "ns", "instant, monotonic clock of the recording process")
_STEP = Column("step", INT32, "1", "training step, from 0; ends with the optimizer's step")
_PHASE = Column(
    "phase",
    TEXT,
    "",
    (
        "innermost phase of the thread at the start; outside, that in which the thread was started "
        "or the executor's task submitted, empty without"
    ),
)
_MODULE = Column("module", TEXT, "", "path of the innermost torch.nn.Module, empty outside")
_STACK = Column("stack", INT32, "", "id in the rank's stack table; null: not captured")

OP = Table(
    "op",
    True,
    "One dispatched operator, autograd node, optimizer step or user scope on one thread; one "
    "kernel, copy or fill (scope kernel) on one stream of a device.",
    (
        _START,
        _DURATION,
        Column("self_ns", INT64, "ns", "duration minus that of direct children; null: unfinished"),
        Column("name", TEXT, "", "operator as the dispatcher knows it (aten::mm), or node name"),
        Column("scope", TEXT, "", "one of OpScope: what made the event"),
        Column("depth", pa.int16(), "1", "nesting on its thread, 0 outermost"),
        _STEP,
        _PHASE,
        _MODULE,
        Column(
            "sequence",
            INT64,
            "1",
            "autograd sequence number: the backward node with the same number was made by this "
            "forward op (per forward thread); null: none",
        ),
        Column("shapes", TEXT, "elements", "shapes of tensor inputs: [4, 8] [8]; empty: none"),
        Column("dtypes", TEXT, "", "dtypes of tensor inputs: float32 float32"),
        Column("device", TEXT, "", "device of the first tensor input, else output: cpu, cuda:0"),
        _STACK,
        Column(
            "launch_ns",
            INT64,
            "ns",
            "scope kernel: when the call that launched it began; it lies within the operator, on "
            "launch_thread, that made the call. Null: not known, or another scope",
        ),
        Column(
            "launch_thread",
            TEXT,
            "",
            "scope kernel: id of the thread that launched it (<pid>-<ordinal>); empty: not known",
        ),
    ),
)

ACCESS = Table(
    "access",
    True,
    "One read or write of a range of a storage by an operator; from level access on.",
    (
        Column("start_ns", INT64, "ns", "start of the operator, as in its op row"),
        Column("duration_ns", INT64, "ns", "duration of the operator"),
        Column("depth", pa.int16(), "1", "depth of the operator, as in its op row"),
        Column("storage", INT64, "address", "first byte of the storage, which it is known by"),
        Column("offset", INT64, "B", "first byte of the range, from the storage's first"),
        Column("bytes", INT64, "B", "length of the range, gaps of strided tensors included"),
        Column("run", INT64, "B", "bytes of the range that follow one another; all: no gaps"),
        Column("stride", INT64, "B", "from one run to the next; 0: no gaps; -1: not evenly spaced"),
        Column("version", INT64, "1", "the tensor's version counter before; 0 for a result"),
        Column("write", pa.bool_(), "", "written, and perhaps read too; false: read"),
        Column(
            "birth",
            pa.bool_(),
            "",
            "the storage was made by this operator, or since the one before by an operator that "
            "was left out: what was at its address before is another",
        ),
    ),
)

TENSOR = Table(
    "tensor",
    True,
    "What was in a tensor of an operator; at level numerics. The hash and the numbers are defined "
    "in values.md.",
    (
        Column("start_ns", INT64, "ns", "start of the operator, as in its op row"),
        Column("depth", pa.int16(), "1", "depth of the operator, as in its op row; at most 255"),
        Column(
            "position",
            TEXT,
            "",
            "which of the operator's tensors, counted from 0: out0, a result; in0, an input as "
            "the operator left it; read0, an input as the operator found it",
        ),
        Column("shape", TEXT, "elements", "[4, 8]"),
        Column("dtype", TEXT, "", "float32"),
        Column("device", TEXT, "", "cpu, cuda:0"),
        Column("numel", INT64, "elements", "number of elements"),
        Column("mean", FLOAT64, "", "mean of the finite elements; null: there are none"),
        Column("l2", FLOAT64, "", "L2 norm of the finite elements"),
        Column("min", FLOAT64, "", "smallest finite element; null: there are none"),
        Column("max", FLOAT64, "", "largest finite element; null: there are none"),
        Column("nan", INT64, "elements", "that are NaN"),
        Column("inf", INT64, "elements", "that are infinite"),
        Column("zeros", INT64, "elements", "that are 0"),
        Column("hash", INT64, "", "hash of the elements' bits and their order, modulo 2^64"),
        Column(
            "expected",
            INT64,
            "",
            "hash that the last recorded writer of an input left, where the input is no longer "
            "what was written; else null",
        ),
        Column(
            "finite_inputs",
            pa.bool_(),
            "",
            "the operator's inputs held neither NaN nor Inf; null: that is not known of all",
        ),
    ),
)

COLLECTIVE = Table(
    "collective",
    True,
    "One call of a collective or point-to-point operation.",
    (
        _START,
        Column("duration_ns", INT64, "ns", "time in the call itself; null: never returned"),
        Column(
            "complete_ns",
            INT64,
            "ns",
            "instant at which the operation was complete; null: not seen",
        ),
        Column("name", TEXT, "", "all_reduce, broadcast, send, ... as torch.distributed names it"),
        Column("group", TEXT, "", "process group: its name in torch.distributed"),
        Column("group_size", INT32, "ranks", "number of ranks in the group"),
        Column(
            "sequence",
            INT64,
            "1",
            "position among the collectives of this group in this process, from 0: the same call "
            "has the same number on all ranks. Sends, and receives, count on their own per peer: "
            "the k-th send to a rank meets its k-th recv from this one",
        ),
        Column(
            "peer",
            INT32,
            "rank",
            "other rank of a send or recv, by its position in the group; null: none, or any",
        ),
        Column(
            "root",
            INT32,
            "rank",
            "rank that sends to or gathers from all, in the group; null: none",
        ),
        Column("reduce_op", TEXT, "", "sum, avg, product, min, max, ...; empty: reduces nothing"),
        Column("shapes", TEXT, "elements", "shapes of the tensors"),
        Column("dtypes", TEXT, "", "dtypes of the tensors"),
        Column(
            "bytes", INT64, "B", "bytes of this rank's input tensors (outputs of recv and scatter)"
        ),
        Column("asynchronous", pa.bool_(), "", "called with async_op=True or from C++"),
        Column(
            "runnable_ns",
            INT64,
            "ns",
            "time for which the thread was ready to run and had no processor, since an earlier "
            "call of its own said so; null: not read (it is at most once in 5 ms, on Linux)",
            since=2,
        ),
        _STEP,
        _PHASE,
        _MODULE,
        _STACK,
    ),
)

PHASE = Table(
    "phase",
    True,
    "An interval with a meaning (forward, backward, optimizer, data, user) or an instant mark.",
    (
        _START,
        Column("duration_ns", INT64, "ns", "duration; 0 for a mark; null: had not ended"),
        Column("name", TEXT, "", "what is shown: forward, AdamW.step, thread 3 start"),
        Column("kind", TEXT, "", "one of PhaseKind"),
        Column("depth", pa.int16(), "1", "nesting among phases of the thread"),
        _STEP,
        _MODULE,
    ),
)

GRADIENT = Table(
    "gradient",
    True,
    "One parameter's gradient as the optimizer saw it at its step.",
    (
        _TIME,
        _STEP,
        Column("parameter", TEXT, "", "name within the outermost module, wrappers removed"),
        Column("norm", FLOAT64, "", "L2 norm of the gradient; null: the gradient was None"),
        Column("numel", INT64, "elements", "number of elements of the parameter on this rank"),
        Column("dtype", TEXT, "", "dtype of the gradient (of the parameter where it is None)"),
        Column("device", TEXT, "", "device of the parameter"),
        Column("optimizer", INT32, "", "ordinal of the optimizer in this process, from 0"),
        Column(
            "grad_hash",
            INT64,
            "",
            "hash of the gradient's bits and their order, modulo 2^64; null: not taken",
        ),
        Column(
            "param_hash", INT64, "", "the same of the parameter, before the step; null: not taken"
        ),
    ),
)

PARAMETER = Table(
    "parameter",
    True,
    "A parameter, its gradient and its update at an optimizer step, at some steps (the setting "
    "sample_every). Also of parameters that no optimizer holds; of frozen ones the first time, and "
    "when requires_grad has changed.",
    (
        _TIME,
        _STEP,
        Column("parameter", TEXT, "", "name, as in the gradient table"),
        Column(
            "optimizer",
            INT32,
            "",
            "ordinal of the optimizer whose step it was; null: no optimizer that has stepped so "
            "far holds the parameter",
        ),
        Column("trainable", pa.bool_(), "", "requires_grad"),
        Column(
            "skipped",
            pa.bool_(),
            "",
            "the gradient scaler left this step out, because a gradient was NaN or infinite",
        ),
        Column("numel", INT64, "elements", "number of elements on this rank"),
        Column(
            "whole_numel",
            INT64,
            "elements",
            "number of elements on all ranks; the parameter is sharded where it is more than numel",
        ),
        Column("dtype", TEXT, "", "dtype of the parameter"),
        Column("device", TEXT, "", "device of the parameter"),
        Column("grad_norm", FLOAT64, "", "L2 norm of the gradient; null: the gradient was None"),
        Column("grad_max", FLOAT64, "", "largest absolute value in the gradient; null: None"),
        Column("grad_zeros", FLOAT64, "1", "share of the gradient's elements that are 0; or null"),
        Column("norm", FLOAT64, "", "L2 norm of the parameter before the step; null: not taken"),
        Column(
            "update_ratio",
            FLOAT64,
            "1",
            "norm of the change by this step / norm of the parameter before it, both over at most "
            "4096 evenly spaced elements; infinite: it was 0 before; null: not taken",
        ),
        Column("lr", FLOAT64, "1", "learning rate of its group; null: none, or on a device"),
        Column("weight_decay", FLOAT64, "1", "weight decay of its group; null as lr"),
        Column("rule", TEXT, "", "class of the optimizer, AdamW; empty: held by none"),
    ),
)

ACTIVATION = Table(
    "activation",
    True,
    "What a module gave, at some steps (the setting activations_every).",
    (
        _TIME,
        _STEP,
        Column("module", TEXT, "", "path within the outermost module, as in the module table"),
        Column("norm", FLOAT64, "", "L2 norm of the first tensor that it returned"),
        Column("numel", INT64, "elements", "number of elements of that tensor"),
        Column("dtype", TEXT, "", "its dtype"),
        Column("device", TEXT, "", "its device"),
        Column("training", pa.bool_(), "", "module.training"),
    ),
)

NODE = Table(
    "node",
    True,
    "A node of the autograd graph, as the first backward of step 0 found it.",
    (
        _TIME,
        _STEP,
        Column("node", INT32, "1", "number within the graph, from 0, the loss first"),
        Column("name", TEXT, "", "AddmmBackward0"),
        Column(
            "sequence",
            INT64,
            "1",
            "autograd sequence number, as in the op table: of the forward op that made the node; "
            "null: none did",
        ),
        Column("parameter", TEXT, "", "that the node adds a gradient to; empty: none"),
        Column("next", TEXT, "", "numbers of the nodes that it hands gradients to: 3 7"),
    ),
)

FX = Table(
    "fx",
    True,
    "A node of a torch.fx graph: of a GraphModule that was called, of what torch.compile captured, "
    "or, with --trace-model, of a model.",
    (
        _TIME,
        _STEP,
        Column("graph", TEXT, "", "which graph of the process: 1 Model; 2 forward (compiled)"),
        Column("node", INT32, "1", "number within the graph, from 0, in its order"),
        Column("name", TEXT, "", "as torch.fx names it: linear_1"),
        Column(
            "op",
            TEXT,
            "",
            "placeholder, get_attr, call_function, call_method, call_module, output; break: "
            "torch.compile stopped capturing here; untraceable: there is no graph",
        ),
        Column("target", TEXT, "", "what is called, or taken; of the last two ops, the reason"),
        Column("module", TEXT, "", "path of the torch.nn.Module whose forward it is in"),
        _STACK,
        Column("next", TEXT, "", "numbers of the nodes that use its result: 3 7"),
    ),
)

SYNC = Table(
    "sync",
    True,
    "What orders threads: their start and join, locks, events, queues, futures.",
    (
        _START,
        Column("duration_ns", INT64, "ns", "time spent waiting; 0 for instants; null: not ended"),
        Column("kind", TEXT, "", "one of SyncKind"),
        Column("peer", pa.string(), "", "id of the other thread (<pid>-<ordinal>); null: none"),
        Column(
            "object",
            INT64,
            "",
            "what was handed over by: a lock's address, a number below 0 for other objects and for "
            "an item on its way through a queue; null: a thread",
        ),
        _STEP,
        _STACK,
    ),
)

VALUE = Table(
    "value",
    True,
    "A logged number: of the program, or a counter of the recorder (named lanescope/...).",
    (
        _TIME,
        Column("name", TEXT, "", "name of the series"),
        Column("value", FLOAT64, "as logged", "the number"),
        _STEP,
    ),
)

STALL = Table(
    "stall",
    False,
    "What each thread of a process was doing when the watchdog saw no progress, or was asked.",
    (
        _TIME,
        Column("duration_ns", INT64, "ns", "how long no event had been recorded by then"),
        Column("dump", INT32, "1", "number of the dump in its process, from 0"),
        Column("pid", INT64, "", "process"),
        Column("thread", pa.string(), "", "id: <pid>-<ordinal>; empty: recorded no event"),
        Column("native_id", INT64, "", "the operating system's thread id; 0: not known"),
        Column("name", pa.string(), "", "name in Python, or the operating system's"),
        Column(
            "reason",
            TEXT,
            "",
            "no_progress, abort (and then ended), signal (SIGTERM came), quiet (had "
            "recorded nothing for 2 s or more when it was killed)",
        ),
        Column(
            "cpu", FLOAT64, "1", "share of a core that the thread used of late; null: not known"
        ),
        _STACK,
        Column("last_op", pa.string(), "", "the operator being run, or the last one; may be empty"),
        Column("waiting", pa.string(), "", "what it waits for, in words; empty: nothing is known"),
        Column("owner", pa.string(), "", "id of the thread that holds what it waits for; or null"),
        Column(
            "collective",
            pa.string(),
            "",
            "last collective it called that is not complete: name, group and sequence, separated "
            "by tabs; null: none",
        ),
    ),
)

STACK = Table(
    "stack",
    False,
    "Python stacks, innermost frame first.",
    (
        Column("stack", INT32, "", "id within the rank"),
        Column("frames", pa.list_(FRAME), "", "file, line, function"),
    ),
)

THREAD = Table(
    "thread",
    False,
    "Threads of all processes of the rank, and streams of devices that they used.",
    (
        Column("thread", pa.string(), "", "id: <pid>-<ordinal>, as in the folder's name"),
        Column("pid", INT64, "", "process"),
        Column("native_id", INT64, "", "the operating system's thread id; 0: a stream"),
        Column("name", pa.string(), "", "name in Python, or the operating system's"),
        Column("kind", TEXT, "", "one of ThreadKind"),
        Column("start_ns", INT64, "ns", "first event"),
        Column("end_ns", INT64, "ns", "last event"),
    ),
)

MODULE = Table(
    "module",
    False,
    "Modules that were called, with their class and parameters.",
    (
        Column("path", pa.string(), "", "path within the outermost module, wrappers removed"),
        Column("class", pa.string(), "", "qualified class name"),
        Column("parameters", INT64, "elements", "elements of its own parameters, without children"),
    ),
)

STORAGE = Table(
    "storage",
    False,
    "Where named tensors lie in memory; from level access on.",
    (
        Column("pid", INT64, "", "process"),
        Column("storage", INT64, "address", "first byte of the storage, as in the access table"),
        Column("name", pa.string(), "", "parameter or buffer in it, as in the gradient table"),
    ),
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


class Clock(TypedDict):
    """How a process's monotonic clock maps to the run's axis: axis = local + offset + drift."""

    offset_ns: int  # added to a local time
    drift_ppb: float  # parts per billion by which the local clock runs slow
    uncertainty_ns: int  # remaining error of the mapping, half-width
    calibrated: bool  # False: aligned by wall clock only, or not at all
    host: str  # boot id and time namespace: equal for processes that share the clock exactly


class AxisReference(TypedDict):
    """The clock that is the run's axis: rank 0's where clocks were compared, or else that of the
    first process that was finished."""

    clock_identity: str
    wall_minus_monotonic_ns: int


class Process(TypedDict):
    """One recorded process, as the manifest lists it."""

    rank: int
    pid: int
    parent_pid: int
    role: str  # "rank", or "child" for what a rank started (data-loader workers, forks)
    host: str  # host name
    engine: str
    start_ns: int
    end_ns: int
    closed: bool  # False: the process died, the log ends where it ended
    ended: str  # "exit", "exception", "abort" or as in "signal SIGTERM"; empty: not known (SIGKILL)
    exception: str  # last uncaught exception, "ValueError: ... (file.py:12)"; empty: none
    argv: list[str]
    python: str
    torch: str
    modules_root: str  # class of the outermost module, empty where none was called
    clock: Clock
    coverage: dict[str, int]  # what was dropped, filtered or not seen: reason -> count


class Group(TypedDict):
    """A process group, as the ranks that are in it know it."""

    ranks: list[int]  # global ranks, by their position in the group
    description: str  # default_pg, mesh_dp, ... as torch.distributed describes it; may be empty


class File(TypedDict):
    """One file of the run: what it must look like."""

    bytes: int
    rows: int
    sha256: str


class Manifest(TypedDict):
    """manifest.json. Written before recording (complete false) and after it."""

    format: int
    id: str  # unique id of the run
    created: str  # ISO 8601, UTC
    command: list[str]
    level: str
    options: dict[str, str | int | float | bool | list[str | int] | None]
    world_size: int
    complete: bool  # every expected rank is there and its processes were closed
    exit_status: int | None  # of the recorded command, where one process knew it
    notes: list[str]  # sentences for the user: what is missing and why
    axis: AxisReference | None  # None while no process is listed
    processes: list[Process]
    groups: dict[str, Group]  # by the name that stands in the collective table
    files: dict[str, File]  # path relative to the run -> what it must look like
