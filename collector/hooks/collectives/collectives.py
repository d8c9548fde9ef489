"""Describes calls of collectives, from the dispatcher's collective operators.

Every collective passes through `c10d::*` or `_c10d_functional::*`, whether the program called
torch.distributed, imported the function early, or DDP's reducer issued it from C++. For the
portable engine; the native one does the same in observer/collectives/collectives.cpp.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ...format.names import COLLECTIVE_NAMES, MISSING, PAIRED, UNMOVED
from ...journal import clock
from ...journal.journal import RecordKind
from ...journal.own_lock import own_lock
from ...journal.process_journals import ThreadState
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..patches import Patches
from ..stacks import Stacks
from ..threads.run_queue_delay import Runnable
from ..training.optimizer_parameters import local_part

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")

BLOCKING = ("monitored_barrier",)
"""Collectives that are complete when the call returns."""

_NO_REDUCTION = f"{MISSING}whether a collective sums or does otherwise (no ReduceOp.op)"

HELD = 64
"""Pending operations without a future. Each keeps its tensors alive, so they are few; beyond this
number the oldest lose their completion."""


class Plan(NamedTuple):
    """Positions of an operator's arguments, found once per operator; None: it has none."""

    name: str
    group: int
    tensors: int
    peer: int | None
    root: int | None
    reduce_op: int | None
    parts: tuple[int, int] | None  # of an all-to-all: tensors or split sizes, sent and received
    asynchronous: int | None


class RunningCollective(NamedTuple):
    """A collective call in progress."""

    name: int
    group: int  # text "group TAB size TAB peer TAB root TAB reduce_op TAB splits"
    sequence: int
    signature: int
    bytes: int
    asynchronous: bool
    blocking: bool
    stack: int
    runnable: int  # delay as Runnable returns it
    on_cpu: bool


class Collectives:
    """Describes collective calls; the engine reports their begin and end."""

    def __init__(self, recorder: Recorder, stacks: Stacks | None) -> None:
        self._recorder = recorder
        self._stacks = stacks
        self._plans: dict[Any, Plan | None] = {}
        self._sequences: Counter[tuple[str, str]] = Counter()
        self._lock = own_lock()
        self._runnable = Runnable()
        # By id of the object that the program waits on: the work, which is kept, or the storage.
        self._works: OrderedDict[int, tuple[Any, RunningCollective]] = OrderedDict()
        self._results: OrderedDict[int, RunningCollective] = OrderedDict()

    def begin(self, operator: Any, args: Sequence[Any]) -> RunningCollective | None:
        """Returns the call; None for an operator other than a collective."""
        if operator in self._plans:
            plan = self._plans[operator]
        else:
            plan = self._plans[operator] = plan_for(operator)
        if plan is None:
            return None
        recorder = self._recorder
        group, size = _group(args[plan.group])
        tensors = list(_flatten(args[plan.tensors]))
        peer, root = (str(args[p]) if p is not None else "" for p in (plan.peer, plan.root))
        reduction = "" if plan.reduce_op is None else self._reduction(args[plan.reduce_op])
        described = f"{group}\t{size}\t{peer}\t{root}\t{reduction}"
        if plan.parts is not None:
            sent, received = (_sizes(args[position]) for position in plan.parts)
            described += f"\t{sent}>{received}" if sent or received else ""
        counted = (described, plan.name) if plan.name in PAIRED else (group, "")
        with self._lock:
            sequence = self._sequences[counted]
            self._sequences[counted] += 1
        position = plan.asynchronous
        blocking = plan.name in BLOCKING
        # The dispatcher leaves out a default argument: async_op=True.
        waited = position is not None and position < len(args) and args[position] is False
        shapes = " ".join(str(list(t.shape)) for t in tensors)
        dtypes = " ".join(str(t.dtype).removeprefix("torch.") for t in tensors)
        device = str(tensors[0].device) if tensors else ""
        return RunningCollective(
            name=recorder.intern(plan.name),
            group=recorder.intern(described),
            sequence=sequence,
            signature=recorder.intern(f"{shapes}\t{dtypes}\t{device}"),
            bytes=0 if plan.name in UNMOVED else sum(map(_bytes_of, tensors)),
            asynchronous=not (waited or blocking),
            blocking=blocking,
            stack=self._stacks.capture() if self._stacks else 0,
            runnable=self._runnable.since(clock.now()),
            on_cpu=device == "cpu",
        )

    def _reduction(self, argument: Any) -> str:
        if isinstance(argument, str):
            return argument
        if not hasattr(argument, "op"):  # before torch 2.6
            self._recorder.coverage[_NO_REDUCTION] = 1
            return ""
        kind: Any = dist.ReduceOp.RedOpType
        return str(kind(argument.op()).name).lower()

    def open(self, state: ThreadState, call: RunningCollective) -> None:
        """Adds the call to the thread's open events, in case it never returns."""
        state.journal.push_open_record(
            state.open,
            int(RecordKind.COLLECTIVE),
            int(call.asynchronous),
            0,
            call.name,
            clock.now(),
            0,
            call.sequence,
            self._recorder.step,
            state.module,
            call.signature,
            call.stack,
            state.phase,
            call.group,
            call.bytes,
        )
        state.open += 1

    def end(self, call: RunningCollective, result: Any, start: int, end: int) -> None:
        """Records that the call returned `result`; its operation may still be running."""
        recorder = self._recorder
        recorder.put(
            recorder.thread(),
            RecordKind.COLLECTIVE,
            scope=int(call.asynchronous),
            depth=call.runnable,
            name=call.name,
            start=start,
            end=end,
            sequence=call.sequence,
            signature=call.signature,
            stack=call.stack,
            aux=call.group,
            extra=call.bytes,
        )
        # A device's future is done once the operation is enqueued, before it completes.
        if not call.on_cpu:
            return
        if call.blocking:
            self._complete(call, end)
            return
        work = _work(result)
        if work is not None:
            self._watch(call, work)
            return
        for tensor in _flatten(result):  # of a functional collective; its wait names the tensor
            self._results[tensor.untyped_storage().data_ptr()] = call
        while len(self._results) > HELD:
            self._results.popitem(last=False)

    def waited(self, args: Sequence[Any], end: int) -> None:
        """Records a wait for a functional collective's result, until `end` (ns)."""
        for tensor in _flatten(args):
            call = self._results.pop(tensor.untyped_storage().data_ptr(), None)
            if call is not None:
                self._complete(call, end)

    def install(self) -> Callable[[], None]:
        """Hooks waits for operations without a future (send, recv, ...)."""
        patches = Patches()
        patches.also_undo(self._works.clear)

        def waited(work: Any, _: Any) -> None:
            held = self._works.pop(id(work), None)
            if held is not None:
                self._complete(held[1], clock.now())

        patches.ends(dist.Work, "wait", lambda work, *_, **__: work, waited)
        return patches.undo

    def _watch(self, call: RunningCollective, work: Any) -> None:
        recorder = self._recorder

        def completed(_: Any) -> None:
            with recorder.contain_errors():
                self._complete(call, clock.now())

        try:
            work.get_future().add_done_callback(completed)
        except RuntimeError:  # this kind of work has no future
            self._works[id(work)] = (work, call)
            if len(self._works) > HELD:
                self._works.popitem(last=False)
                recorder.coverage["collectives_without_completion"] += 1

    def _complete(self, call: RunningCollective, end: int) -> None:
        recorder = self._recorder
        if not recorder.closed:
            recorder.put(
                recorder.thread(),
                RecordKind.COLLECTIVE_END,
                name=call.name,
                end=end,
                sequence=call.sequence,
                aux=call.group,
            )


def plan_for(operator: Any) -> Plan | None:
    """Returns how to read an operator's arguments; None if it is not a collective."""
    schema = operator._schema
    namespace, _, short = schema.name.partition("::")
    # Operators of the autograd namespace call their namesakes in these two, which are counted.
    if namespace not in ("c10d", "_c10d_functional"):
        return None
    names = [a.name for a in schema.arguments]

    def position(*wanted: str) -> int | None:
        return next((i for i, n in enumerate(names) if n in wanted), None)

    group = position("process_group", "group_name")
    tensors = [i for i, a in enumerate(schema.arguments) if "Tensor" in str(a.type)]
    if group is None or not tensors:
        return None
    name = COLLECTIVE_NAMES.get(short, short.rstrip("_"))
    # All ranks have the tensor that scatter writes; only the root has its inputs.
    side = "output" if name == "scatter" else "input"
    paired = name in PAIRED
    other = position("dst", "src", "root_rank")
    parts = {"all_to_all": "tensors", "all_to_all_single": "split_sizes"}.get(name)
    sent, received = position(f"input_{parts}"), position(f"output_{parts}")
    return Plan(
        name=name,
        group=group,
        tensors=([i for i in tensors if side in names[i]] or tensors)[0],
        peer=other if paired else None,
        root=None if paired else other,
        reduce_op=position("reduce_op"),
        parts=None if sent is None or received is None else (sent, received),
        asynchronous=position("async_op"),
    )


def _sizes(argument: Any) -> str:
    """Returns the sizes of the parts of an all-to-all: rows, or elements of each tensor; empty:
    even."""
    parts = argument if isinstance(argument, (list, tuple)) else ()
    return ",".join(str(one.numel() if isinstance(one, torch.Tensor) else one) for one in parts)


def _group(argument: Any) -> tuple[str, int]:
    if isinstance(argument, str):
        resolve = optional(
            "torch.distributed.distributed_c10d",
            "_resolve_process_group",
            "sizes of groups of functional collectives (portable engine)",
        )
        if resolve is None:
            return argument, 0
        group = resolve(argument)
    elif isinstance(argument, torch.ScriptObject):
        group = dist.ProcessGroup.unbox(argument)
    else:
        group = argument
    return group.group_name, group.size()


def _work(result: Any) -> Any:
    candidate = result[-1] if isinstance(result, (tuple, list)) and result else result
    if not isinstance(candidate, torch.ScriptObject):
        return None
    unbox = optional(
        "torch._C._distributed_c10d", "Work.unbox", "ends of collectives (portable engine)"
    )
    return None if unbox is None else unbox(candidate)


def _bytes_of(tensor: torch.Tensor) -> int:
    """Returns the bytes of a tensor's elements; those that a sparse one leaves out count too."""
    return tensor.numel() * tensor.element_size()


def _flatten(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        yield local_part(argument)
    elif isinstance(argument, (list, tuple)):
        for item in argument:
            yield from _flatten(item)
