"""Gradient norms: every parameter of the optimizer, in one fused call per device and dtype."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import torch
from torch.optim import Optimizer

from .. import clock
from ..journal import Kind, float_bits
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
        self._pending: deque[tuple[Any, torch.Tensor, list[dict[str, int]]]] = deque()
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
            if gradient is None or gradient.is_sparse:
                if gradient is not None:
                    recorder.coverage["sparse_gradients"] += 1
                row |= {"scope": 1, "signature": self._signature(parameter)}
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
        finally:
            state.busy = False
        self.drain(wait=False)

    def drain(self, *, wait: bool) -> None:
        """Write what devices have delivered by now; with `wait`, all of it."""
        while self._pending:
            event, host, rows = self._pending[0]
            if wait:
                event.synchronize()
            elif not event.query():
                return
            self._pending.popleft()
            self._write(self._recorder.thread(), host, rows)

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
        if device.type == "cuda":
            host = torch.empty_like(norms, device="cpu", pin_memory=True)
            host.copy_(norms, non_blocking=True)
            make_event: Any = torch.cuda.Event
            event = make_event()
            event.record()
            self._pending.append((event, host, rows))
        else:
            self._write(state, norms, rows)

    def _write(self, state: ThreadState, norms: torch.Tensor, rows: list[dict[str, int]]) -> None:
        for row, norm in zip(rows, norms.tolist(), strict=True):
            self._recorder.put(state, Kind.GRADIENT, sequence=float_bits(norm), **row)

    def _signature(self, tensor: torch.Tensor) -> int:
        dtype = str(tensor.dtype).removeprefix("torch.")
        return self._recorder.intern(f"\t{dtype}\t{tensor.device}")


def local_part(tensor: Any) -> Any:
    """This rank's shard of a distributed tensor; any other tensor as it is."""
    return getattr(tensor, "_local_tensor", tensor)
