"""Enumerations of the tables, and the format version. Needs no Arrow.

The recorder runs inside other people's programs and must not load pyarrow there; `schema`
re-exports most of this.
"""

import enum

FORMAT_VERSION = 7
"""Version written by this code. A reader accepts 1..FORMAT_VERSION and rejects newer ones."""

MAX_TIME_NS = 1 << 55
"""Largest distance of an instant from the start of its process, and largest duration (417 days).
Damaged files may exceed it; sums and differences within it never overflow."""


class OpScope(enum.IntEnum):
    """What made an op event. The journal holds the number, Parquet the name."""

    function = 0  # an operator of the dispatcher
    backward = 1  # an autograd node
    user = 2  # torch.profiler.record_function
    compiled = 3  # a torch.compile region
    kernel = 4  # device activity


class PhaseKind(enum.IntEnum):
    """Phases known to LaneScope; `user` is a range named by the program."""

    user = 0
    forward = 1
    backward = 2
    optimizer = 3
    data = 4
    evaluation = 5
    mark = 6  # an instant


class SyncKind(enum.IntEnum):
    """Synchronisation events: `start` on the parent, `begin` on the child, `join` on the waiter."""

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
    queue_taken = 17  # a get that made room
    queue_join = 18
    task_done = 19
    future_set = 20
    future_get = 21
    callback_post = 22  # asyncio: a call scheduled on the loop by another thread
    callback_run = 23
    # Order of a device's streams, and of the host with them (CUDA's terms).
    device_event_record = 24  # after all earlier work of a stream
    device_event_wait = 25  # later work of a stream waits for the event,
    device_event_synchronize = 26  # or the thread does
    stream_synchronize = 27  # the thread waited for all earlier work of a stream,
    device_synchronize = 28  # or of all streams


OTHER_PROCESSES = -(2**63)
"""Object of what other processes send and receive: what one of them sends may follow from all that
it received from this process before."""

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
"""Release operations: later acquires of the object happen after all earlier work of the thread."""

OF_DEVICES = frozenset(
    {
        SyncKind.device_event_record,
        SyncKind.device_event_wait,
        SyncKind.device_event_synchronize,
        SyncKind.stream_synchronize,
        SyncKind.device_synchronize,
    }
)
"""Kinds that order streams. They do not order threads: a wait for an event that another thread has
not recorded yet returns at once."""

RECEIVING = frozenset(set(SyncKind) - PUBLISHING - OF_DEVICES)
"""Acquire operations: they happen after earlier releases of the same object."""


class GradientScope(enum.IntFlag):
    """Flags of a gradient record beside its norm."""

    NONE = 1  # the gradient is None
    HASHES = 2  # no norm: hashes of gradient and parameter, for the previous record
    SAMPLE = 4  # one of the records of a row of the parameter table; depth: SampleRecord
    FROZEN = 8  # with SAMPLE: requires_grad is false
    SKIPPED = 16  # with SAMPLE: the step was skipped, because a gradient was NaN or infinite
    ACTIVATION = 32  # a row of the activation table; name: path of the module
    NODE = 64  # a row of the node table, or at depth FX_NODE of the fx table


FX_NODE = 1
"""Depth of a gradient record of scope NODE for a node of a torch.fx graph."""


class SampleRecord(enum.IntEnum):
    """The records of a sample; each holds two float64."""

    gradient = 0  # norm; elements on this rank, as an integer
    spread = 1  # largest absolute value, share of zeros
    parameter = 2  # norm; elements on all ranks, as an integer
    rule = 3  # learning rate, weight decay; signature: class of the optimizer
    change = 4  # norm of this step's change, divided by that of the parameter


class ThreadKind(enum.IntEnum):
    """Kinds of threads, which group lanes."""

    main = 0  # the process's first thread
    python = 1  # started through Python
    native = 2  # known only to the operating system (autograd, collective backends)
    stream = 3  # not a thread: a stream of a device
