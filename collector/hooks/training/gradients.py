"""Records gradients as an optimizer sees them: norms, one fused call per device and dtype; hashes.

Hashes of gradients and parameters show whether data-parallel ranks agree. Level numerics takes them
at each step; level access, with several ranks, at steps 0, 1, 2, 4, 8, ...: replicas that diverged
once stay different, so doubling intervals find it at almost no cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import torch
from torch.optim import Optimizer

from ...format.record_kinds import GradientScope
from ...journal import clock
from ...journal.journal import RecordKind
from ...numerics import host_fingerprint
from ...numerics.fingerprint import can_read, hash_of
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext, Undo
from ..cuda_graphs import capturing
from .device_readback import DeviceReadback
from .gradient_assertions import Assertions
from .modules import Modules
from .norms import Alike, Norms, has_norm
from .optimizer_parameters import (
    RECORD_TYPE,
    OptimizerParameters,
    ParameterGroup,
    ParameterInfo,
    local_part,
)
from .parameters import Parameters, is_doubling, is_sampled
from .thread_gradients import ThreadGradients

_Hashed = tuple[ParameterInfo, torch.Tensor | None, torch.Tensor]


class _Reader(Protocol):
    """Reads tensors in host memory without torch."""

    def hash_of(self, tensor: torch.Tensor) -> int:
        """Returns the hash of a tensor that has a fingerprint."""

    def write_gradients(
        self, parameters: list[torch.Tensor], records: bytes, start: int
    ) -> list[int] | None:
        """Writes the norm of each parameter's gradient; returns positions of those left out.

        None: nothing is read, because another thread is dropping gradients.
        """


class Gradients:
    """Writes one record per parameter and optimizer step, and at some steps a sample of each."""

    def __init__(
        self,
        recorder: Recorder,
        modules: Modules,
        norms: Norms,
        reader: _Reader | None,
        alone: Callable[[], AbstractContextManager[bool]],
    ) -> None:
        """`alone`: see `ThreadGradients`."""
        self._recorder = recorder
        self._norms = norms
        self._reader = reader
        self._readback = DeviceReadback()
        self._held = OptimizerParameters(recorder, modules)
        self._parameters = Parameters(recorder, self._held, self._readback, norms, alone)
        self._assertions = Assertions(recorder, modules, self._held)

    def record(self, optimizer: Optimizer, ordinal: int) -> None:
        """Records the current gradients."""
        recorder = self._recorder
        recorder.thread()
        held = self._held.of(optimizer, ordinal)
        if capturing():
            recorder.coverage["gradients_not_read"] += len(held.parameters)
            return
        self._assertions.note()
        instant = clock.now()
        sampled = is_sampled(recorder.step, recorder.options.sample_every)
        more = sampled or self._takes_hashes()
        left: Sequence[int] = range(len(held.parameters))
        if self._reader and not more and getattr(optimizer, "grad_scale", None) is None:
            found = self._reader.write_gradients(held.parameters, held.records, instant)
            if found is None:
                recorder.coverage["gradients_not_read"] += len(held.parameters)
            left = found or ()
        # The first step names every trainable parameter, also where the sample is not due.
        unlisted = ordinal == 0 and not sampled and not self._parameters.listed
        if left or unlisted:
            with recorder.own_torch(), torch.no_grad():
                groups = self._norms_of(optimizer, ordinal, held, left, instant)
                if sampled:
                    self._parameters.before(optimizer, ordinal, instant, held, groups)
                elif unlisted:
                    self._parameters.others(instant)
        self.drain(wait=False)

    def _norms_of(
        self,
        optimizer: Optimizer,
        ordinal: int,
        held: ParameterGroup,
        positions: Sequence[int],
        instant: int,
    ) -> list[Alike]:
        recorder = self._recorder
        state = recorder.thread()
        groups: dict[Any, Alike] = defaultdict(Alike)
        hashed: dict[torch.device, list[_Hashed]] = defaultdict(list)
        hashes = self._takes_hashes()
        for position in positions:
            parameter, known = held.parameters[position], held.known[position]
            gradient = local_part(parameter.grad)
            own = local_part(parameter)
            if hashes and not known.sharded and has_norm(own) and can_read(own):
                there = gradient is not None and has_norm(gradient) and can_read(gradient)
                hashed[own.device].append((known, gradient if there else None, own))
            if gradient is None:
                recorder.put(
                    state,
                    RecordKind.GRADIENT,
                    scope=GradientScope.NONE,
                    name=known.name,
                    start=instant,
                    signature=known.signature,
                    extra=known.numel,
                    aux=ordinal,
                )
                continue
            if not has_norm(gradient):
                recorder.coverage["gradients_not_read"] += 1
                continue
            if gradient.is_sparse:  # sums rows that it holds several times
                gradient = gradient.coalesce().values()
            alike = groups[gradient.device, gradient.dtype]
            alike.positions.append(position)
            alike.tensors.append(gradient)
        for alike in groups.values():
            alike.norms = _unscaled(self._norms.of(alike.tensors), optimizer)
            self._deliver(alike, held, instant, ordinal)
        for entries in hashed.values():
            self._hashes(entries, instant, ordinal)
        return list(groups.values())

    def after(self, optimizer: Optimizer) -> None:
        """Ends a sample after the optimizer's step."""
        if self._parameters.awaits(optimizer) and not capturing():
            with self._recorder.own_torch(), torch.no_grad():
                self._parameters.after(optimizer)

    def skipped(self, optimizer: Optimizer, ordinal: int) -> None:
        """Records a step that a scaler skipped, having waited for the device."""
        with self._recorder.own_torch(), torch.no_grad():
            self._parameters.skipped(optimizer, ordinal)

    def drain(self, *, wait: bool) -> None:
        """Writes numbers that devices have computed; with `wait`, all of them."""
        self._readback.drain(wait=wait)

    def close(self) -> None:
        """Ends the recording; writes nothing if it has no journal."""
        if self._recorder.folder is None:
            return
        self._assertions.close()
        self.drain(wait=True)

    def _takes_hashes(self) -> bool:
        recorder = self._recorder
        if recorder.options.level == "numerics":
            return True
        step = recorder.step
        several = recorder.process.get("world_size", 1) > 1
        return recorder.options.level == "access" and several and is_doubling(step)

    def _deliver(self, alike: Alike, held: ParameterGroup, instant: int, ordinal: int) -> None:
        recorder = self._recorder
        rows = np.frombuffer(held.records, RECORD_TYPE)[alike.positions]
        rows["start"], rows["step"] = instant, recorder.step
        rows["signature"] = self._held.signature(alike.tensors[0])

        def write(norms: torch.Tensor) -> None:
            rows["sequence"] = norms.numpy().astype(np.float64).view(np.int64)
            recorder.put_all(recorder.thread(), rows)

        self._readback.enqueue(alike.norms, write)

    def _hashes(self, entries: list[_Hashed], instant: int, ordinal: int) -> None:
        recorder, step = self._recorder, self._recorder.step

        def write(pairs: Iterable[Sequence[int]]) -> None:
            state = recorder.thread()
            for (known, gradient, _), pair in zip(entries, pairs, strict=True):
                none = GradientScope.NONE if gradient is None else 0
                recorder.put(
                    state,
                    RecordKind.GRADIENT,
                    scope=GradientScope.HASHES | none,
                    name=known.name,
                    start=instant,
                    step=step,
                    sequence=pair[0],
                    extra=pair[1],
                    aux=ordinal,
                )

        pairs = [(own if gradient is None else gradient, own) for _, gradient, own in entries]
        if pairs[0][1].device.type == "cpu":  # torch's operators take 30 times as long there
            host_hash = self._reader.hash_of if self._reader else host_fingerprint.host_hash_of
            write([[host_hash(tensor) for tensor in pair] for pair in pairs])
            return
        hashes = torch.stack([torch.stack([hash_of(tensor) for tensor in pair]) for pair in pairs])
        self._readback.enqueue(hashes, lambda found: write(found.tolist()))


def _unscaled(norms: torch.Tensor, optimizer: Optimizer) -> torch.Tensor:
    """Returns unscaled norms: a fused optimizer gets scaled gradients and their scale."""
    scale = getattr(optimizer, "grad_scale", None)
    return norms if scale is None else norms / scale.to(norms.device, non_blocking=True)


def _hook(context: HookContext) -> Undo:
    reader = context.library.reader if context.library is not None else None
    gradients = Gradients(
        context.recorder,
        context.get(Modules),
        context.share(Norms(reader)),
        reader,
        lambda: context.get(ThreadGradients).alone(),  # which is installed later
    )
    return context.share(gradients).close


HOOK = Hook("norms of gradients", _hook, required=True)
