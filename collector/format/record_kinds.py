"""Kinds, file names and the format version: the part of the contract that needs no Arrow.

The recorder runs inside other people's programs, so it must not load pyarrow there; `schema`
re-exports everything here.
"""

from __future__ import annotations

import enum

FORMAT_VERSION = 3
"""Version written by this code. A reader accepts 1..FORMAT_VERSION and refuses what is newer."""

FARTHEST_NS = 1 << 55
"""No instant is farther than this (417 days) from the start of its process, and nothing lasts
longer: a damaged file may say so. Sums and differences of what is nearer never overflow."""

MANIFEST = "manifest.json"
JOURNAL_FOLDER = "journal"
LOCK_FILE = ".lock"


UNSEEN_BY = {
    "portable": {
        "unseen_composite_operators": "operators made of others (only those they are made of)",
        "unseen_inner_operators": "operators that an operator calls below autograd",
        "unseen_node_bounds": "exact bounds of autograd nodes (a slice spans the node's operators)",
        "unseen_empty_nodes": "autograd nodes that run no operator",
        "unseen_accesses": "reads and writes of storages",
        "unseen_compiled_regions": "regions of torch.compile (only operators that they call)",
        "unseen_backend_threads": "what backends do on threads of their own",
    }
}
"""Engine -> what is out of its sight: the reason in a process's coverage, and words for it. Every
other engine sees these. A reason stands in the coverage once; how many events it is, none knows."""


MISSING = "missing: "
"""Prefix of coverage reasons: `missing: <what is not recorded> (no <private name>)`. This version
of torch or Python lacks the name."""

UNTESTED = "untested: "
"""Prefix of coverage reasons: `untested: torch 9.1.0`, newer than the newest that is tested."""


VALIDATOR_FAILED, VALIDATOR_RAISED = "validator failed:", "validator raised:"
VALIDATOR_IDLE, VALIDATOR_COMPILED = "validator idle:", "validator compiled:"
"""Marks of a user's validator begin so; " <function> at <target>" follows, then ": <message>". Of
what it does not see of compiled code this is the module, and ": <why>" where it was to be seen."""


EXPECTED = "expected of gradients: "
"""A mark of what the program asserts of gradients begins so; "<function>(<name>=<number>, ...) at
<parameter, or module with .*>" follows."""


COMPILED = " (compiled)"
"""Graphs that torch.compile captured are named so at their end."""


RAISED_IN_BACKWARD = "backward raised "
"""A mark of what a backward raised begins so; "<type>: <message> (<file>:<line>)" follows."""


LOST_CONTEXT = "lost context: "
"""A mark of a context variable that a thread did not inherit begins so; "<variable> at
<file>:<line> was <what>, set where the <thread or task> was started at <file>:<line>" follows."""


CUDA_CONTEXT = "cuda: "
"""Marks of what a thread does with CUDA devices as such begin so
(`hooks/devices/cuda_contexts.py`).
"""


JOIN, RENDEZVOUS = "init_process_group", "rendezvous"
"""The call by which a process joins the others, and the group it is noted under: there is none yet.
Only a call that did not succeed is in a run."""


RELEASED_GRADIENTS = "zero_grad(set_to_none=True)"
REMOVED_GRADIENT = ".grad = None"
REPLACED_GRADIENT = ".grad = another"
GRADIENT_RELEASES = frozenset({RELEASED_GRADIENTS, REMOVED_GRADIENT, REPLACED_GRADIENT})
"""Operators under which gradients are let go of. They write to no byte of them, and read none of
the parameter whose they were."""


ARRIVALS = ("from_numpy", "as_tensor", "frombuffer")
"""Functions of torch that make a tensor of memory that others have."""
MADE_STORAGE, EXCHANGED_DATA, SAVED = "torch.UntypedStorage", ".data = another", "torch.save"
NOTED_ACCESSES = GRADIENT_RELEASES | {
    MADE_STORAGE,
    EXCHANGED_DATA,
    SAVED,
    *(f"torch.{name}" for name in ARRIVALS),
}
"""Operators that are none: accesses that are noted under these names, and only while there is more
than one thread, which is chance."""

GRAPH_SERIES = "lanescope/graph/"
"""Values that count the nodes of a name (which follows) that a backward will reach."""

RECORDER_MEMORY = "lanescope/recorder_memory"
"""Values: bytes of the resident set that are the recorder's."""

NOT_COMPUTING = (
    "aten::_reshape_alias",
    "aten::_reshape_copy",
    "aten::_unsafe_view",
    "aten::alias",
    "aten::arange",
    "aten::as_strided",
    "aten::chunk",
    "aten::detach",
    "aten::detach_",
    "aten::diagonal",
    "aten::empty*",
    "aten::expand",
    "aten::full_like",
    "aten::is_*",
    "aten::lift*",
    "aten::movedim",
    "aten::narrow",
    "aten::new_empty*",
    "aten::ones_like",
    "aten::permute",
    "aten::rand_like",
    "aten::randn_like",
    "aten::reshape",
    "aten::resolve_*",
    "aten::select",
    "aten::slice",
    "aten::split*",
    "aten::squeeze",
    "aten::squeeze_",
    "aten::stride",
    "aten::sym_*",
    "aten::t",
    "aten::t_",
    "aten::transpose",
    "aten::transpose_",
    "aten::unbind",
    "aten::unflatten",
    "aten::unfold",
    "aten::unsqueeze",
    "aten::unsqueeze_",
    "aten::view",
    "aten::view_as*",
    "aten::zeros_like",
    "profiler::*",
    "lanescope::*",  # the recorder's own, in compiled code
    # Scopes that torch opens around what is recorded as a phase.
    "Optimizer.step#*",
    "enumerate(DataLoader)#*",
)
"""Ops left out by default: they make views, shells or ramps, and fill a log without telling much.
`--include PATTERN` brings back what it matches; what is left out is counted in the coverage."""

LOSS_SCALE, SKIPPED_STEPS = "loss_scale", "skipped_steps"
"""Series of the value table: the scale of the loss after each update of a gradient scaler; steps
that it left out so far, at each one."""

CLIP_NORM, CLIP_LIMIT = "clip_total_norm", "clip_max_norm"
"""Series of the value table: the norm of the gradient before clip_grad_norm_, and what it was given
as the largest allowed."""

ADDED_NORM = "lanescope/added_norm"
"""Values: L2 norm of what a backward added to all gradients, where several threads of a process run
backward."""

ADDED_NORM_OF = "lanescope/added_norm/"
"""Values: the same of the parameters of one module, whose path follows."""

SHARD = "/shard"
"""Follows CLIP_NORM where it is that of this rank's shards alone."""


class OpScope(enum.IntEnum):
    """What made an op event. The number is what the journal holds, the name what Parquet holds."""

    function = 0  # an operator of the dispatcher
    backward = 1  # an autograd node
    user = 2  # torch.profiler.record_function
    compiled = 3  # a torch.compile region
    kernel = 4  # device activity


class PhaseKind(enum.IntEnum):
    """Phases with a meaning of their own; `user` is whatever the program named itself."""

    user = 0
    forward = 1
    backward = 2
    optimizer = 3
    data = 4
    evaluation = 5
    mark = 6  # an instant


class SyncKind(enum.IntEnum):
    """What orders threads. `start` is on the parent, `begin` on the child, `join` on the waiter."""

    thread_start = 0
    thread_begin = 1
    thread_end = 2
    thread_join = 3
    lock_acquire = 4  # Lock, RLock, Condition as a lock
    lock_release = 5
    condition_wait = 6
    condition_notify = 7
    event_wait = 8
    event_set = 9
    semaphore_acquire = 10
    semaphore_release = 11
    barrier_enter = 12
    barrier_leave = 13
    queue_put = 14
    queue_get = 15
    queue_room = 16  # a put that found room in a bounded queue
    queue_taken = 17  # a get that made some
    queue_join = 18
    task_done = 19
    future_set = 20
    future_get = 21
    callback_post = 22  # asyncio: a call that another thread leaves for the loop
    callback_run = 23
    # What orders streams of devices, and the host with them (CUDA's terms).
    device_event_record = 24  # of a stream: all that it was given before
    device_event_wait = 25  # a stream waits for the event before what it is given next,
    device_event_synchronize = 26  # or the thread does
    stream_synchronize = 27  # the thread waited for all that a stream had been given,
    device_synchronize = 28  # or for all streams


PUBLISHING = frozenset(
    {
        SyncKind.thread_start,
        SyncKind.thread_end,
        SyncKind.lock_release,
        SyncKind.condition_notify,
        SyncKind.event_set,
        SyncKind.semaphore_release,
        SyncKind.barrier_enter,
        SyncKind.queue_put,
        SyncKind.queue_taken,
        SyncKind.task_done,
        SyncKind.future_set,
        SyncKind.callback_post,
    }
)
"""Kinds by which a thread hands on what it did so far."""

OF_DEVICES = frozenset(
    {
        SyncKind.device_event_record,
        SyncKind.device_event_wait,
        SyncKind.device_event_synchronize,
        SyncKind.stream_synchronize,
        SyncKind.device_synchronize,
    }
)
"""Kinds that order streams. They hand nothing from thread to thread: a wait for an event that
another thread has not recorded yet returns at once."""

RECEIVING = frozenset(set(SyncKind) - PUBLISHING - OF_DEVICES)
"""Kinds after which a thread knows what was handed on to the same object before."""


class GradientScope(enum.IntFlag):
    """What a gradient's record says beside its norm."""

    NONE = 1  # the gradient is None
    HASHES = 2  # no norm: hashes of the gradient and the parameter, for the record before
    SAMPLE = 4  # one of the records that make a row of the parameter table; depth: which
    FROZEN = 8  # with SAMPLE: requires_grad is false
    SKIPPED = 16  # with SAMPLE: the step was left out, because a gradient was NaN or infinite
    ACTIVATION = 32  # a row of the activation table; name: path of the module
    NODE = (
        64  # a row of the node table; name: of the autograd node. At depth FX_NODE: of the fx one
    )


FX_NODE = 1
"""Depth of a gradient record of scope NODE that is a node of a torch.fx graph."""

FX_BREAK, FX_UNTRACEABLE = "break", "untraceable"
"""Beside torch.fx's own words for what a node is: where torch.compile stopped capturing, and a
model of which there is no graph; the target says why."""


class SampleRecord(enum.IntEnum):
    """Which of a sample's records it is, and the two float64 that it holds."""

    gradient = 0  # norm; elements on this rank, as an integer
    spread = 1  # largest absolute value, share of zeros
    parameter = 2  # norm; elements on all ranks, as an integer
    rule = 3  # learning rate, weight decay; signature: class of the optimizer
    change = 4  # norm of the change by this step, in parts of the parameter's


class ThreadKind(enum.IntEnum):
    """What a thread is, for grouping lanes."""

    main = 0  # the process's first thread
    python = 1  # started through Python
    native = 2  # known only to the operating system (autograd, collective backends)
    stream = 3  # no thread: a stream of a device, with what ran on it


def rank_folder(rank: int) -> str:
    """Folder of one rank: `rank=00003`."""
    return f"rank={rank:05d}"


def thread_folder(thread: str) -> str:
    """Folder of one thread within its rank: `thread=4120-0`."""
    return f"thread={thread}"


def thread_id(pid: int, ordinal: int) -> str:
    """Identity of a thread within a run: process id and order of appearance in the process."""
    return f"{pid}-{ordinal}"


def part_file(table: str, part: int) -> str:
    """File of one table's part: `op-00000.parquet`."""
    return f"{table}-{part:05d}.parquet"
