"""Samples what models get and return, so that batches of ranks and steps can be compared.

At the steps at which parameters are sampled, a few elements of each tensor are hashed: of a batch
of a DataLoader, of the arguments of an outermost module in training and of its result. Beside the
hash stands whether all rows are alike; beside that of a DataLoader's tensor its storage. The begin
and the end of an iteration over a DataLoader are recorded, with a distributed sampler's epoch and
seed; states of random generators, and what `replication` finds, as a model is called; whether it is
in training mode, where that has changed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules import module as nn_module

from ...format.loop_names import (
    DIVIDED_TWICE,
    EVALUATED_SCALE,
    INPUT_SCALE,
    KEPT_HASH,
    REORDERED_INPUT,
    UNSETTLED_MODEL,
)
from ...format.names import (
    BATCH_HASH,
    BATCH_ROWS,
    BATCH_STORAGE,
    BUFFER_HASH,
    EVALUATION_MODE,
    IN_ORDER,
    LOADER_BEGUN,
    LOADER_END,
    TRAINING_MODE,
)
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext, Undo
from ..cuda_graphs import capturing
from ..patches import caller
from ..stacks import program_place
from ..training_loop.distributed_samplers import DistributedSamplers
from ..training_loop.fresh_statistics import FreshStatistics
from ..training_loop.growth import Growth
from ..training_loop.loader_data import LoaderData
from ..training_loop.loader_orders import LoaderOrders
from ..training_loop.paired_rows import PairedRows
from ..training_loop.reordered_inputs import is_divided_twice, reordered
from ..training_loop.shared_offsets import SharedOffsets
from ..training_loop.unread_settings import unread_settings
from ..training_loop.worker_copies import WorkerCopies
from .activations import tensors_in
from .device_readback import DeviceReadback
from .model_facts import DROPOUTS, ModuleSettings, model_facts, unsettled
from .modules import Modules, own_class, unwrap
from .norms import has_norm, is_freed
from .parameters import is_sampled
from .replication import (
    other_random_states,
    own_buffers,
    own_parameters,
    random_states,
    replication,
    short_hash,
)

_Tensors = Callable[[torch.nn.Module], list[tuple[str, torch.Tensor]]]

_MAX_TENSORS = 3
"""Tensors of one batch or call that are hashed."""

_MAX_CALLS = 2
"""Calls of one step, per class of model, and batches of one step."""

_MAX_SCALES = 64
"""Evaluations of a model whose inputs are looked at."""

_MAX_ROWS, MAX_ELEMENTS = 16, 512
"""Elements of a tensor that are hashed, evenly spaced."""

_WITH_SIGNED_ZERO = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes whose zeros may have two signs, which are the same number."""

_CALLERS = ("_wrapped_call_impl", "_call_impl", "__call__")
_MAX_FRAMES = 6


class Batches:
    """Writes values named BATCH_* and LOADER_*, SAMPLER_*, and TRAINING_MODE."""

    def __init__(
        self,
        recorder: Recorder,
        modules: Modules,
        growth: Growth,
        pairs: PairedRows | None,
        is_transformed: Callable[[Any], bool],
        is_library: Callable[[str], bool],
    ) -> None:
        self._recorder = recorder
        self._is_library = is_library
        self._modules = modules
        self._modes: WeakKeyDictionary[torch.nn.Module, bool] = WeakKeyDictionary()
        self._evaluated: WeakKeyDictionary[torch.nn.Module, bool] = WeakKeyDictionary()
        self._is_transformed = is_transformed
        self._readback = DeviceReadback()
        self.saved_step = self._step = -1  # the one after torch.save: another run resumes there
        self._calls: Counter[str] = Counter()  # of this step
        self._scales: Counter[str] = Counter()  # of evaluations of a model
        self._settings = ModuleSettings()
        self._copies = WorkerCopies(recorder)
        self._offsets = SharedOffsets(recorder)
        self._data = LoaderData(recorder, is_library)
        self.orders = LoaderOrders(recorder, is_library)
        self._statistics = FreshStatistics(recorder, self._readback, self._is_plain)
        self._growth = growth
        self._pairs = pairs
        self._samplers = DistributedSamplers(recorder)

    def iterates(self, iterator: Any) -> None:
        """Records that an iteration over a loader begins, and the epoch of its sampler."""
        if not getattr(iterator, "_num_yielded", 1):
            self._edge(LOADER_BEGUN, iterator)
            if self._recorder.active:
                self._data.begins(iterator)
                self._copies.begins(iterator)
                self._offsets.begins(iterator)

    def exhausted(self, iterator: Any) -> None:
        """Records that an iteration over a loader ended with its last batch."""
        self._edge(LOADER_END, iterator)

    def _edge(self, edge: str, iterator: Any) -> None:
        if not self._recorder.active:
            return
        self._recorder.value(edge, 1.0)
        outer = getattr(iterator, "_index_sampler", None)
        sampler = getattr(outer, "sampler", outer)
        if edge == LOADER_END:
            self._samplers.ends(sampler)
            return
        in_order = type(sampler) is torch.utils.data.SequentialSampler
        self._recorder.value(IN_ORDER, float(in_order))
        self._samplers.begins(sampler)

    def loaded(self, iterator: Any, batch: Any) -> None:
        """Samples a batch of a DataLoader."""
        sampled = self._sampled() and self._due("loaded")
        self.orders.hands_out(iterator, batch, sampled=sampled)
        self._offsets.loaded(iterator)
        if sampled:
            self._sample("loaded", batch)

    def began(self, module: torch.nn.Module) -> None:
        """Samples the arguments of an outermost module that is being called, and its mode."""
        training = unwrap(module).training
        if self._modes.get(module) is not training and self._recorder.active:
            if module not in self._modes:
                self._list(module)
            self._modes[module] = training
            name = self._modules.model_name(module)
            self._recorder.value(f"{TRAINING_MODE}{name}", float(training))
        if self._sampled():
            kind, arguments = own_class(unwrap(module)).__name__, _arguments()
            self._pair(module, arguments)
            if self._due(f"input/{kind}"):
                self._sample(f"input/{kind}", arguments)
                self._reordered(kind, arguments)
                if training:
                    self._scale(f"{INPUT_SCALE}{self._modules.model_name(module)}", arguments)
            if self._due(f"replication/{kind}", 1):
                self._replication(module)
                self._growth.hooks(module)

    def evaluates(self, module: torch.nn.Module) -> None:
        """Records the mode of an outermost module that is called without gradients."""
        inner = unwrap(module)
        training = inner.training
        if self._evaluated.get(module) is not training and self._recorder.active:
            self._evaluated[module] = training
            name = self._modules.model_name(module)
            drops = any(one.training for one in inner.modules() if isinstance(one, DROPOUTS))
            self._recorder.value(f"{EVALUATION_MODE}{name}", float(training or drops))
        if not training and self._recorder.active:
            name = self._modules.model_name(module)
            self._scales[name] += 1
            if self._scales[name] <= _MAX_SCALES:
                self._scale(f"{EVALUATED_SCALE}{name}", _arguments())
            self._statistics.evaluates(inner, name)
        if not self._sampled():
            return
        name = self._modules.model_name(module)
        if self._due(f"unsettled/{name}", 1):
            self._hash(f"{UNSETTLED_MODEL}{name}/", unsettled, inner)
        several = int(self._recorder.process.get("world_size", 1)) > 1
        if several and self._due(f"kept/{name}", 1):
            self._hash(f"{KEPT_HASH}{name}/", own_parameters, inner)

    def ended(self, module: torch.nn.Module, output: Any) -> None:
        """Samples what an outermost module returned."""
        if not torch.is_grad_enabled():
            return
        sampled = self._sampled()
        self._growth.returned(module, output, sampled=sampled)
        if sampled:
            name = f"output/{own_class(unwrap(module)).__name__}"
            if self._due(name):
                self._sample(name, output)

    def close(self) -> None:
        """Ends the recording; writes nothing if it has no journal."""
        self._readback.finish(self._recorder)

    def _sampled(self) -> bool:
        recorder = self._recorder
        due = is_sampled(recorder.step, recorder.options.sample_every)
        return (due or recorder.step == self.saved_step) and recorder.active

    def _due(self, name: str, most: int = _MAX_CALLS) -> bool:
        step = self._recorder.step
        if step != self._step:
            self._step = step
            self._calls.clear()
        self._calls[name] += 1
        return self._calls[name] <= most and not torch.compiler.is_compiling()

    def _sample(self, name: str, tree: Any) -> None:
        self._read(self._chosen(name, tree), self._write)

    def _pair(self, module: torch.nn.Module, arguments: Any) -> None:
        """Notes the rows of a call's arguments, which its loss has targets for."""
        if self._pairs is None or self._recorder.thread().busy or not arguments:
            return
        if next(module.parameters(), None) is None:  # a loss
            return
        given = [*arguments[0], *arguments[1].values()]
        with self._recorder.contain_errors(), self._recorder.own_torch(), torch.no_grad():
            alone = all(isinstance(one, torch.Tensor) and self._is_plain(one) for one in given)
            self._pairs.called(given, alone=alone)

    def _scale(self, name: str, arguments: Any) -> None:
        """Takes the root mean square of each argument in floating point."""
        floating = (one for one in self._chosen(name, arguments) if one[1].is_floating_point())
        self._read(floating, self._write_scale)

    def _hash(self, prefix: str, tensors_of: _Tensors, module: torch.nn.Module) -> None:
        """Hashes some elements of each tensor of a module."""

        def plain() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in tensors_of(module):
                if self._is_plain(tensor):
                    yield f"{prefix}{name}", tensor

        self._read(plain(), self._write_hash)

    def _chosen(self, name: str, tree: Any) -> Iterator[tuple[str, torch.Tensor]]:
        plain = filter(self._is_plain, tensors_in(tree))
        for number, tensor in zip(range(_MAX_TENSORS), plain, strict=False):
            if name == "loaded":
                place = float(tensor.untyped_storage().data_ptr())
                self._recorder.value(f"{BATCH_STORAGE}{name}/{number}", place)
            yield f"{name}/{number}", tensor

    def _read(
        self,
        tensors: Iterator[tuple[str, torch.Tensor]],
        write: Callable[[str, int, torch.Tensor], None],
    ) -> None:
        """Calls `write` with each name, the step and some elements, once these are on the host.

        `tensors` looks at them as it is read from: under the recorder's own modes of torch.
        """
        recorder = self._recorder
        if recorder.thread().busy:
            return
        with recorder.contain_errors(), recorder.own_torch(), torch.no_grad():
            for name, tensor in tensors:
                few = few_of(tensor)
                if not self._is_transformed(few):  # as all that is computed within torch.func.grad
                    self._readback.enqueue(few, partial(write, name, recorder.step))
            self._readback.drain(wait=False)

    def _write_scale(self, name: str, step: int, few: torch.Tensor) -> None:
        self._recorder.value(name, float(few.double().square().mean().sqrt()), step)
        if name.startswith(INPUT_SCALE) and is_divided_twice(few):
            self._recorder.value(DIVIDED_TWICE + name.removeprefix(INPUT_SCALE), 1.0, step)

    def _list(self, module: torch.nn.Module) -> None:
        with self._recorder.contain_errors(), self._recorder.own_torch(), torch.no_grad():
            for name, number in (
                *model_facts(module, self._modules),
                *unread_settings(module, self._is_library),
                *self._settings.of(unwrap(module)),
            ):
                self._recorder.value(name, number)

    def _reordered(self, kind: str, arguments: Any) -> None:
        with self._recorder.contain_errors(), self._recorder.own_torch():
            found = reordered(filter(self._is_plain, tensors_in(arguments)))
            if found is not None:
                place = program_place(caller(), self._is_library)
                self._recorder.value(f"{REORDERED_INPUT}{place}/{kind}/{found[0]}/{found[1]}", 1.0)

    def _replication(self, module: torch.nn.Module) -> None:
        recorder = self._recorder
        if recorder.thread().busy:
            return
        with recorder.contain_errors(), recorder.own_torch(), torch.no_grad():
            due = self._due("random", 1)
            states = (*random_states(), *other_random_states()) if due else ()
            for name, number in (*states, *replication(module)):
                recorder.value(name, number)
        self._hash(f"{BUFFER_HASH}{self._modules.prefix(module)}", own_buffers, module)

    def _write_hash(self, name: str, step: int, few: torch.Tensor) -> None:
        self._recorder.value(name, short_hash(raw_bytes(few)), step)

    def _is_plain(self, tensor: torch.Tensor) -> bool:
        if self._is_transformed(tensor) or not has_norm(tensor) or tensor.is_complex():
            return False
        if tensor.layout != torch.strided or tensor.device.type == "meta" or tensor.is_quantized:
            return False
        captured = tensor.is_cuda and capturing()
        return bool(tensor.numel()) and bool(tensor.dim()) and not captured and not is_freed(tensor)

    def _write(self, name: str, step: int, few: torch.Tensor) -> None:
        recorder = self._recorder
        if few.dtype in _WITH_SIGNED_ZERO:
            few = few + 0.0
        data = raw_bytes(few)
        rows = len(few)
        alike = data == data[: len(data) // rows] * rows
        recorder.value(f"{BATCH_HASH}{name}", short_hash(data), step)
        recorder.value(f"{BATCH_ROWS}{name}", float(-rows if alike else rows), step)


def raw_bytes(few: torch.Tensor) -> bytes:
    """Returns the bytes of the elements that `few_of` chose."""
    return few.contiguous().view(torch.uint8).numpy().tobytes()


def few_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of evenly spaced elements, of some rows in all other dimensions."""
    few = tensor.detach()
    few = few[:: -(-few.shape[0] // _MAX_ROWS)]
    while few.numel() > MAX_ELEMENTS:
        widest = max(range(1, few.dim()), key=lambda dim: few.shape[dim])
        every = min(few.shape[widest], -(-few.numel() // MAX_ELEMENTS))
        few = few[(slice(None),) * widest + (slice(None, None, every),)]
    return few


def _arguments() -> Any:
    """Returns the arguments of the innermost call of a module that Python runs."""
    frame = sys._getframe(2)
    for _ in range(_MAX_FRAMES):
        code = frame.f_code
        if code.co_name in _CALLERS and code.co_filename == nn_module.__file__:
            found = frame.f_locals
            return found.get("args", ()), found.get("kwargs", {})
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ()


def _hook(context: HookContext) -> Undo | None:
    recorder, modules = context.recorder, context.get(Modules)
    is_transformed = optional(
        "torch._C._functorch", "is_functorch_wrapped_tensor", "batches and arguments of models"
    )
    if is_transformed is None or not recorder.options.sample_every:
        return None
    is_library = context.stacks.is_library
    growth = Growth(recorder, is_library)
    batches = context.share(
        Batches(recorder, modules, growth, context.find(PairedRows), is_transformed, is_library)
    )
    modules.ended = batches.ended
    modules.began.append(batches.began)
    modules.evaluates.append(batches.evaluates)

    def uninstall() -> None:
        modules.ended = None
        modules.began.remove(batches.began)
        modules.evaluates.remove(batches.evaluates)
        batches.close()

    return uninstall


HOOK = Hook("batches", _hook, levels=("access", "numerics"))
