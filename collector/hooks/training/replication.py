"""Looks at what must be equal, or must not, on ranks that train copies of one model."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from ...format.names import (
    LEFT_OUT,
    LEFT_OUT_CAUSES,
    OTHER_RANDOM_STATE,
    RANDOM_STATE,
    REPLICAS,
)
from ..cuda_graphs import capturing
from .modules import WRAPPED, clean_paths

MAX_LISTED = 20
"""Parameters that are not reduced, and buffers, of one model."""

HASH_BITS = 52
"""Exact in the float64 of a value."""

_UNKNOWN, _IGNORED, _UNFROZEN = map(LEFT_OUT_CAUSES.index, ("unknown", "ignored", "unfrozen"))


def short_hash(data: bytes) -> float:
    """Returns a hash that a value can hold."""
    digest = hashlib.blake2b(data, digest_size=8).digest()
    return float(int.from_bytes(digest, "little") >> (64 - HASH_BITS))


def random_states() -> Iterator[tuple[str, float]]:
    """Yields names and hashes of the states of the generators that dropout draws from."""
    generators = {"cpu": torch.default_generator}
    cuda: Any = torch.cuda  # torch leaves it untyped
    if cuda.is_initialized() and not capturing():
        device = torch.cuda.current_device()
        generators["cuda"] = torch.cuda.default_generators[device]
    for device_type, generator in generators.items():
        yield f"{RANDOM_STATE}{device_type}", short_hash(generator_state(generator))


def other_random_states() -> Iterator[tuple[str, float]]:
    """Yields names and hashes of the states of Python's and NumPy's generators, where the program
    has loaded them."""
    python, numpy = map(sys.modules.get, ("random", "numpy.random"))
    if python is not None:
        numbers = array("L", python.getstate()[1])
        yield f"{OTHER_RANDOM_STATE}Python", short_hash(numbers.tobytes())
    if numpy is not None:
        state = numpy.get_state(legacy=False)["state"]
        yield f"{OTHER_RANDOM_STATE}NumPy", short_hash(b"".join(map(_bytes, state.values())))


def _bytes(part: Any) -> bytes:
    """A part of the state of a generator of NumPy: numbers, or one."""
    return part.tobytes() if hasattr(part, "tobytes") else repr(part).encode()


def generator_state(generator: torch.Generator) -> bytes:
    """Returns the state of a generator of torch."""
    state = generator.get_state()
    # Bytes in host memory. Within torch.func an operator would make a tensor without any.
    return ctypes.string_at(state.data_ptr(), state.nbytes)


_frozen: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()
"""Wrappers -> ids of parameters that were frozen when they were first called: a wrapper reduces
none that is frozen as it is made."""


def replication(module: torch.nn.Module) -> Iterator[tuple[str, float]]:
    """Yields between how many ranks a wrapper reduces gradients, and parameters it leaves out."""
    wrapper = data_parallel(module)
    if wrapper is None:
        return
    yield REPLICAS, float(dist.get_world_size(wrapper.process_group))
    reduced = {id(one) for one in getattr(wrapper, "_module_parameters", ())}
    if wrapper not in _frozen:
        _frozen[wrapper] = {id(one) for one in wrapper.parameters() if not one.requires_grad}
    if reduced:
        yield from islice(_left_out(wrapper, reduced), MAX_LISTED)


def own_buffers(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Returns buffers of floating point that a checkpoint holds and no wrapper broadcasts."""
    wrapper = data_parallel(module)
    if wrapper is not None and getattr(wrapper, "broadcast_buffers", True):
        return []
    found = (
        (f"{path}.{name}" if path else name, buffer)
        for path, part in clean_paths(module)
        for name, buffer in part._buffers.items()
        if name not in part._non_persistent_buffers_set
        and buffer is not None
        and buffer.is_floating_point()
        and buffer.dim()
    )
    return list(islice(found, MAX_LISTED))


def own_parameters(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Returns parameters of floating point by their names, at most MAX_LISTED."""
    found = (
        (f"{path}.{name}" if path else name, parameter)
        for path, part in clean_paths(module)
        for name, parameter in part._parameters.items()
        if parameter is not None and parameter.is_floating_point() and parameter.dim()
    )
    return list(islice(found, MAX_LISTED))


def data_parallel(module: torch.nn.Module) -> Any | None:
    """Returns the DistributedDataParallel around a module; None without one."""
    while type(module).__name__ != "DistributedDataParallel":
        wrapped = WRAPPED.get(type(module).__name__)
        # The modules of a scripted module are no dict.
        inner = None if wrapped is None else module._modules.get(wrapped)
        if inner is None:
            return None
        module = inner
    return module


def _left_out(wrapper: Any, reduced: set[int]) -> Iterator[tuple[str, float]]:
    names = getattr(wrapper, "parameters_to_ignore", ())
    ignored = {id(one) for name, one in wrapper.module.named_parameters() if name in names}
    for path, part in clean_paths(wrapper):
        for name, parameter in part._parameters.items():
            trained = parameter is not None and parameter.requires_grad
            if not trained:
                continue
            cause = _IGNORED if id(parameter) in ignored else _UNKNOWN
            if id(parameter) in reduced:
                if id(parameter) not in _frozen[wrapper]:
                    continue
                cause = _UNFROZEN
            yield f"{LEFT_OUT}{path}.{name}" if path else f"{LEFT_OUT}{name}", float(cause)
