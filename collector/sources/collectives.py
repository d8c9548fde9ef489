"""Collectives at call level, from the dispatcher's own collective operators.

Every collective passes through `c10d::*` or `_c10d_functional::*`, whether the program called
torch.distributed, imported the function early, or DDP's reducer issued it from C++.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .. import clock
from ..journal import Kind
from ..recorder import Recorder
from .gradients import local_part
from .stacks import Stacks

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")

NAMES = {
    "_allgather_base_": "all_gather_into_tensor",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather_coalesced",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor_coalesced",
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce_coalesced",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "recv_any_source_": "recv",
}
"""Operator -> the name of torch.distributed; for others the trailing underscore is dropped."""

NOT_A_COLLECTIVE = ("wait_tensor", "_wrap_tensor_autograd")


class Plan(NamedTuple):
    """Where an operator's arguments are, found once per operator. Positions; None: has none."""

    name: str
    group: int
    tensors: int
    peer: int | None
    asynchronous: int | None


class Call(NamedTuple):
    """A collective that is being called."""

    plan: Plan
    name: int
    group: str
    group_text: int
    sequence: int
    signature: int
    bytes: int
    asynchronous: bool
    stack: int
    on_cpu: bool


class Collectives:
    """Describes collective calls; the engine says when they begin and end."""

    def __init__(self, recorder: Recorder, stacks: Stacks | None) -> None:
        self._recorder = recorder
        self._stacks = stacks
        self._plans: dict[Any, Plan | None] = {}
        self._sequences: Counter[str] = Counter()
        self._lock = threading.Lock()

    def begin(self, operator: Any, args: Sequence[Any]) -> Call | None:
        """What is being called; None for an operator that is no collective."""
        if operator in self._plans:
            plan = self._plans[operator]
        else:
            plan = self._plans[operator] = plan_for(operator)
        if plan is None:
            return None
        recorder = self._recorder
        group, size = _group(args[plan.group])
        tensors = list(_flatten(args[plan.tensors]))
        with self._lock:
            sequence = self._sequences[group]
            self._sequences[group] += 1
        peer = "" if plan.peer is None else args[plan.peer]
        position = plan.asynchronous
        # A default argument does not travel through the dispatcher; it is async_op=True.
        waited = position is not None and position < len(args) and args[position] is False
        shapes = " ".join(str(list(t.shape)) for t in tensors)
        dtypes = " ".join(str(t.dtype).removeprefix("torch.") for t in tensors)
        device = str(tensors[0].device) if tensors else ""
        return Call(
            plan=plan,
            name=recorder.intern(plan.name),
            group=group,
            group_text=recorder.intern(f"{group}\t{size}\t{peer}"),
            sequence=sequence,
            signature=recorder.intern(f"{shapes}\t{dtypes}\t{device}"),
            bytes=0 if plan.name == "barrier" else sum(t.nbytes for t in tensors),
            asynchronous=not waited,
            stack=self._stacks.capture() if self._stacks else 0,
            on_cpu=device == "cpu",
        )

    def end(self, call: Call, result: Any, start: int, end: int) -> None:
        """The call returned `result`; its operation may still be under way."""
        recorder = self._recorder
        recorder.put(
            recorder.thread(),
            Kind.COLLECTIVE,
            scope=int(call.asynchronous),
            name=call.name,
            start=start,
            end=end,
            sequence=call.sequence,
            signature=call.signature,
            stack=call.stack,
            aux=call.group_text,
            extra=call.bytes,
        )
        self._watch(call, result)

    def _watch(self, call: Call, result: Any) -> None:
        work = _work(result)
        # A device's future is done once the operation is enqueued: that is no completion.
        if work is None or not call.on_cpu:
            return
        recorder, sequence = self._recorder, call.sequence
        group = recorder.intern(call.group)

        def completed(_: Any) -> None:
            try:
                if not recorder.closed:
                    recorder.put(
                        recorder.thread(), Kind.COLLECTIVE_END, end=clock.now(),
                        sequence=sequence, aux=group,
                    )  # fmt: skip
            except Exception as error:
                recorder.failed(error)

        try:
            work.get_future().add_done_callback(completed)
        except RuntimeError:  # this kind of work has no future: send, recv, some barriers
            recorder.coverage["collectives_without_completion"] += 1


def plan_for(operator: Any) -> Plan | None:
    """How to read the operator's arguments; None where it is no collective."""
    schema = operator._schema
    namespace, _, short = schema.name.partition("::")
    if namespace not in NAMESPACES or short in NOT_A_COLLECTIVE:
        return None
    names = [a.name for a in schema.arguments]
    group = next((i for i, n in enumerate(names) if n in ("process_group", "group_name")), None)
    if group is None:
        return None
    tensors = [i for i, a in enumerate(schema.arguments) if "Tensor" in str(a.type)]
    inputs = [i for i in tensors if "input" in names[i]]
    return Plan(
        name=NAMES.get(short, short.rstrip("_")),
        group=group,
        tensors=(inputs or tensors)[0],
        peer=next((i for i, n in enumerate(names) if n in ("dst", "src")), None)
        if namespace == "c10d"
        else None,
        asynchronous=next((i for i, n in enumerate(names) if n == "async_op"), None),
    )


def _group(argument: Any) -> tuple[str, int]:
    if isinstance(argument, str):
        resolve: Any = vars(dist.distributed_c10d)["_resolve_process_group"]
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
    return torch._C._distributed_c10d.Work.unbox(candidate)


def _flatten(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        yield local_part(argument)
    elif isinstance(argument, (list, tuple)):
        for item in argument:
            yield from _flatten(item)
