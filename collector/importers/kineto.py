"""Maps Kineto's categories and names to the schema's terms."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ..format.names import LAUNCH_SUFFIXES, ON_DEVICE
from ..format.record_kinds import PhaseKind
from .base import Dialect
from .spill import BACKWARD, FUNCTION, KERNEL, LAUNCHING, USER

DIALECT = Dialect("kineto", lambda found: "schemaVersion" in found or "distributedInfo" in found)

PROFILER_STEP = re.compile(r"ProfilerStep#(\d{1,9})")

COLLECTIVE_PREFIXES = ("c10d::", "nccl:", "gloo:", "mpi:", "ucc:", "xccl:", "record_param_comms")
"""Name prefixes of slices that belong to a collective."""

WITH_ARGS = frozenset({"cpu_op", "user_annotation", *ON_DEVICE})
"""Categories whose arguments are decoded, besides calls that launch."""

EXPORTED_PHASE = "phase"
"""Category of the phases that `lanescope export` writes."""

_STREAM = "gpu_"

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
    "short": "int16",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "unsigned short": "uint16",
    "unsigned int": "uint32",
    "unsigned long": "uint64",
}
"""Kineto's name of a dtype (a C++ type) -> torch's."""

COMMUNICATION_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Int": "int32",
    "Long": "int64",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "Half": "float16",
    "BFloat16": "bfloat16",
}
"""Kineto's name of a collective's dtype (c10::ScalarType) -> torch's."""

ITEM_BYTES = {
    "float32": 4,
    "float64": 8,
    "int32": 4,
    "int64": 8,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "float16": 2,
    "bfloat16": 2,
    "complex64": 8,
    "complex128": 16,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}

_NODE = "autograd::engine::evaluate_function"
_GRADIENT = re.compile(r"[A-Z]\w*Backward\d*|torch::autograd::AccumulateGrad")
_MAX_SIGNATURE_CHARS = 500


def kind_of(category: str) -> int:
    """Returns the kind of a category's slices; names may change it."""
    if category in ON_DEVICE:
        return KERNEL
    if category == "cpu_op":
        return FUNCTION
    return LAUNCHING if category.endswith(LAUNCH_SUFFIXES) else USER


def on_stream(category: str) -> bool:
    """Returns True if slices of a category are on a stream of a device."""
    return category in ON_DEVICE or category.startswith("gpu_") or category.endswith("_sync")


def merged_category(category: Any) -> str:
    """Returns one category for all with the same meaning, so that they are read together."""
    if not isinstance(category, str):
        return ""
    if category in WITH_ARGS or category == EXPORTED_PHASE or category.endswith(LAUNCH_SUFFIXES):
        return category
    return _STREAM if on_stream(category) else ""


def function_kind(name: str, forward_thread: int) -> int:
    """Returns BACKWARD for an autograd node, else FUNCTION."""
    node = name.startswith(_NODE) or _GRADIENT.fullmatch(name) is not None
    node = node or (forward_thread > 0 and "::" not in name)
    return BACKWARD if node else FUNCTION


def phase_of(name: str) -> tuple[PhaseKind, str] | None:
    """Returns kind and name of the phase that an annotation marks; None: a range of the program.

    Knows the names of torch, and `## forward ##` of Meta's trainers.
    """
    if PROFILER_STEP.fullmatch(name):
        return PhaseKind.user, name
    what, _, detail = name.partition("#")
    if what == "Optimizer.step" and detail:
        return PhaseKind.optimizer, detail
    if what in ("enumerate(DataLoader)", "DataLoader") and detail:
        return PhaseKind.data, detail
    if name.endswith("DataParallel.forward"):
        return PhaseKind.forward, name
    bare = name.strip("# ").lower()
    if bare in ("forward", "backward") and name.startswith("#"):
        return PhaseKind[bare], bare
    if bare == "optimizer" and name.startswith("#"):
        return PhaseKind.user, bare  # it holds more than the step, which torch marks itself
    return None


def signature_of(dims: bytes, types: bytes) -> tuple[str, str]:
    """Returns shapes and dtypes of the tensor inputs: `[4, 8] [8]`, `float32 float32`."""
    try:
        found = msgspec.json.decode(dims) if dims else []
        kinds = msgspec.json.decode(types) if types else []
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(found, list) or not isinstance(kinds, list):
        return "", ""
    shapes: list[str] = []
    dtypes: list[str] = []
    for one, kind in zip(found, kinds, strict=False):
        if kind == "TensorList" and isinstance(one, list):
            shapes += [_shape(each) for each in one if isinstance(each, list)]
        elif isinstance(kind, str) and (kind in _DTYPES or kind in ITEM_BYTES):
            shapes.append(_shape(one))
            dtypes.append(_DTYPES.get(kind, kind))
    return " ".join(shapes)[:_MAX_SIGNATURE_CHARS], " ".join(dtypes)[:_MAX_SIGNATURE_CHARS]


def _shape(dims: Any) -> str:
    numbers = dims if isinstance(dims, list) else []
    return f"[{', '.join(str(n) for n in numbers if isinstance(n, int))}]"
