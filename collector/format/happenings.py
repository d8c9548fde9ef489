"""Tables of other events of threads: collectives, phases, synchronisation, values, stalls."""

import pyarrow as pa

from .columns import (
    ARGS,
    FLOAT64,
    IN_MODULE,
    IN_PHASE,
    INT32,
    INT64,
    PID,
    STACK_ID,
    START,
    STEP,
    TEXT,
    THREAD_NAME,
    TIME,
    Column,
    Table,
)

COLLECTIVE = Table(
    "collective",
    True,
    "One call of a collective or point-to-point operation.",
    (
        START,
        Column("duration_ns", INT64, "ns", "time in the call itself; null: never returned"),
        Column("complete_ns", INT64, "ns", "instant of completion; null: not seen"),
        Column("name", TEXT, "", "all_reduce, broadcast, send, ... as torch.distributed names it"),
        Column("group", TEXT, "", "process group: its name in torch.distributed"),
        Column("group_size", INT32, "ranks", "number of ranks in the group"),
        Column(
            "sequence",
            INT64,
            "1",
            "position among the collectives of this group in this process, from 0: the same call "
            "has the same number on all ranks. Sends and receives are numbered per peer: the k-th "
            "send to a rank matches its k-th recv from this one",
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
        Column(
            "splits",
            TEXT,
            "rows",
            "of an all-to-all, 3,5>4,4: what it sends to each rank of the group and receives from "
            "each, of all_to_all in elements; empty: even parts, or another operation",
            since=7,
        ),
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
            "time that the thread was ready to run without a processor, since its previous call "
            "with this value; null: not read (read at most once in 5 ms, on Linux)",
            since=2,
        ),
        STEP,
        IN_PHASE,
        IN_MODULE,
        STACK_ID,
    ),
)

PHASE = Table(
    "phase",
    True,
    "An interval with a meaning (forward, backward, optimizer, data, user) or an instant mark.",
    (
        START,
        Column("duration_ns", INT64, "ns", "duration; 0 for a mark; null: had not ended"),
        Column("name", TEXT, "", "forward, AdamW.step, thread 3 start"),
        Column("kind", TEXT, "", "one of PhaseKind"),
        Column("depth", pa.int16(), "1", "nesting among phases of the thread"),
        STEP,
        IN_MODULE,
        ARGS,
    ),
)

SYNC = Table(
    "sync",
    True,
    "Synchronisation events: start and join of threads, locks, events, queues, futures.",
    (
        START,
        Column("duration_ns", INT64, "ns", "time spent waiting; 0 for instants; null: not ended"),
        Column("kind", TEXT, "", "one of SyncKind"),
        Column("peer", pa.string(), "", "id of the other thread (<pid>-<ordinal>); null: none"),
        Column(
            "object",
            INT64,
            "",
            "the synchronisation object: a lock's address, a number below 0 for other objects and "
            "for an item in a queue; a device event's handle; null: a thread",
        ),
        Column(
            "stream",
            INT32,
            "1",
            "stream of a device, numbered as in the access table; null: none, or all",
            since=3,
        ),
        STEP,
        STACK_ID,
        ARGS,
    ),
)

VALUE = Table(
    "value",
    True,
    "A logged number: of the program, or a counter of the recorder (named lanescope/...).",
    (
        TIME,
        Column("name", TEXT, "", "name of the series"),
        Column("value", FLOAT64, "as logged", "the number"),
        STEP,
        ARGS,
    ),
)

STALL = Table(
    "stall",
    False,
    "What each thread of a process was doing when the watchdog saw no progress, or was asked.",
    (
        TIME,
        Column("duration_ns", INT64, "ns", "time since the last recorded event"),
        Column("dump", INT32, "1", "number of the dump in its process, from 0"),
        PID,
        Column("thread", pa.string(), "", "id: <pid>-<ordinal>; empty: recorded no event"),
        Column("native_id", INT64, "", "the operating system's thread id; 0: not known"),
        THREAD_NAME,
        Column(
            "reason",
            TEXT,
            "",
            "no_progress, abort (and then ended), signal (SIGTERM came), quiet (had "
            "recorded nothing for 2 s or more when it was killed), interrupt (the same when Ctrl-C "
            "came)",
        ),
        Column(
            "cpu",
            FLOAT64,
            "1",
            "share of a core that the thread used recently, or waited for, and at least 0.1 if it "
            "read or wrote; null: not known",
        ),
        STACK_ID,
        Column("last_op", pa.string(), "", "running operator, or the last one; may be empty"),
        Column("waiting", pa.string(), "", "cause of the wait, in words; empty: not known"),
        Column("owner", pa.string(), "", "id of the thread that it waits for; null: not known"),
        Column(
            "collective",
            pa.string(),
            "",
            "its last incomplete collective: name, group and sequence, separated by tabs; null: "
            "none",
        ),
    ),
)
