"""Gradients as an optimizer sees them: norms in one fused call per device and dtype, and hashes.

The hashes of a gradient and of its parameter tell whether data-parallel ranks agree. They are taken
at each step at level numerics. At level access they are where there are several ranks, at steps
0, 1, 2, 4, 8, ...: what parts once stays apart, so doubling finds it for next to nothing.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import torch
from torch.optim import Optimizer

from .. import clock
from ..fingerprint import can_read, hash_of
from ..journal import Kind, float_bits
from ..kinds import GradientScope
from ..recorder import Recorder
from ..store import ThreadState
from .modules import Modules

LOW_PRECISION = (torch.float16, torch.bfloat16)
"""Their norms are accumulated in float32: a sum of squares overflows or vanishes in them."""


class Gradients:
    """Writes one record per parameter and optimizer step.

    Norms of device tensors are copied without waiting and written one step or more later: waiting
    for a device would change the schedule that is being observed.
    """

    def __init__(self, recorder: Recorder, modules: Modules) -> None:
        self._recorder = recorder
        self._modules = modules
        self._pending: deque[tuple[Any, torch.Tensor, list[dict[str, int]], bool]] = deque()
        self._fallback: dict[int, str] = {}

    def record(self, optimizer: Optimizer, ordinal: int) -> None:
        """Record the gradients as they are now."""
        recorder = self._recorder
        state = recorder.thread()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        names = [self._modules.parameter_name(p) for p in parameters]
        if None in names:
            self._modules.refresh()
            names = [self._modules.parameter_name(p) for p in parameters]
        groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = defaultdict(list)
        rows: dict[tuple[torch.device, torch.dtype], list[dict[str, int]]] = defaultdict(list)
        hashed: dict[torch.device, list[tuple[dict[str, int], torch.Tensor, torch.Tensor]]] = (
            defaultdict(list)
        )
        hashes = self._takes_hashes()
        instant = clock.now()
        for position, (parameter, name) in enumerate(zip(parameters, names, strict=True)):
            gradient = local_part(parameter.grad)
            row = {
                "name": recorder.intern(name or f"optimizer{ordinal}.parameter{position}"),
                "start": instant,
                "extra": local_part(parameter).numel(),
                "aux": ordinal,
                "step": recorder.step,
            }
            if hashes and is_whole(parameter) and can_read(local_part(parameter)):
                there = gradient is not None and can_read(gradient)
                known = dict(row, scope=GradientScope.HASHES | (0 if there else GradientScope.NONE))
                own = local_part(parameter)
                hashed[own.device].append((known, gradient if there else own, own))
            if gradient is None or gradient.is_sparse:
                if gradient is not None:
                    recorder.coverage["sparse_gradients"] += 1
                row |= {"scope": GradientScope.NONE, "signature": self._signature(parameter)}
                recorder.put(state, Kind.GRADIENT, **row)
                continue
            key = (gradient.device, gradient.dtype)
            row["signature"] = self._signature(gradient)
            groups[key].append(gradient)
            rows[key].append(row)
        state.busy = True
        try:
            for key, tensors in groups.items():
                self._norms(state, key[0], tensors, rows[key])
            for device, entries in hashed.items():
                self._hashes(state, device, entries)
        finally:
            state.busy = False
        self.drain(wait=False)

    def drain(self, *, wait: bool) -> None:
        """Write what devices have delivered by now; with `wait`, all of it."""
        while self._pending:
            event, host, rows, hashes = self._pending[0]
            if wait:
                event.synchronize()
            elif not event.query():
                return
            self._pending.popleft()
            self._write(self._recorder.thread(), host, rows, hashes=hashes)

    def _takes_hashes(self) -> bool:
        recorder = self._recorder
        if recorder.options.level == "numerics":
            return True
        step = recorder.step
        several = recorder.process.get("world_size", 1) > 1
        return recorder.options.level == "access" and several and step & (step - 1) == 0

    @torch.no_grad()
    def _norms(
        self,
        state: ThreadState,
        device: torch.device,
        tensors: list[torch.Tensor],
        rows: list[dict[str, int]],
    ) -> None:
        low = tensors[0].dtype in LOW_PRECISION
        norms = torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float32 if low else None))
        self._deliver(state, device, norms, rows, hashes=False)

    @torch.no_grad()
    def _hashes(
        self,
        state: ThreadState,
        device: torch.device,
        entries: list[tuple[dict[str, int], torch.Tensor, torch.Tensor]],
    ) -> None:
        pairs = [torch.stack([hash_of(gradient), hash_of(own)]) for _, gradient, own in entries]
        rows = [row for row, _, _ in entries]
        self._deliver(state, device, torch.stack(pairs), rows, hashes=True)

    def _deliver(
        self,
        state: ThreadState,
        device: torch.device,
        numbers: torch.Tensor,
        rows: list[dict[str, int]],
        *,
        hashes: bool,
    ) -> None:
        if device.type == "cuda":
            host = torch.empty_like(numbers, device="cpu", pin_memory=True)
            host.copy_(numbers, non_blocking=True)
            make_event: Any = torch.cuda.Event
            event = make_event()
            event.record()
            self._pending.append((event, host, rows, hashes))
        else:
            self._write(state, numbers, rows, hashes=hashes)

    def _write(
        self, state: ThreadState, numbers: torch.Tensor, rows: list[dict[str, int]], *, hashes: bool
    ) -> None:
        recorder = self._recorder
        for row, number in zip(rows, numbers.tolist(), strict=True):
            if hashes:
                gradient, parameter = number
                known = {**row, "extra": parameter}
                recorder.put(state, Kind.GRADIENT, sequence=gradient, **known)
            else:
                recorder.put(state, Kind.GRADIENT, sequence=float_bits(number), **row)

    def _signature(self, tensor: torch.Tensor) -> int:
        dtype = str(tensor.dtype).removeprefix("torch.")
        return self._recorder.intern(f"\t{dtype}\t{tensor.device}")


def is_whole(tensor: Any) -> bool:
    """Whether each rank of a data-parallel group has all of it: a shard differs by design."""
    placements = getattr(tensor, "placements", ())
    return all(placement.is_replicate() for placement in placements)


def local_part(tensor: Any) -> Any:
    """This rank's shard of a distributed tensor; any other tensor as it is."""
    return getattr(tensor, "_local_tensor", tensor)
