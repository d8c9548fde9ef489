"""What Kineto's categories and names mean in the schema's terms."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ..format.activities import LAUNCHING, ON_DEVICE
from ..format.record_kinds import PhaseKind
from .spill import BACKWARD, FUNCTION, KERNEL, USER
from .spill import LAUNCHING as LAUNCHING_KIND

STEP = re.compile(r"ProfilerStep#(\d{1,9})")

TALKS = ("c10d::", "nccl:", "gloo:", "mpi:", "ucc:", "xccl:", "record_param_comms")
"""Beginnings of names of slices that tell of a collective."""

WITH_ARGS = frozenset({"cpu_op", "user_annotation", *ON_DEVICE})
"""Categories whose arguments are looked at, besides calls that launch."""

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
"""Kineto's words (C++ types) -> torch's."""

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
"""The same for the dtype of a collective (c10::ScalarType)."""

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
_LONGEST_SIGNATURE = 500


def kind_of(category: str) -> int:
    """The kind of a category's slices, before their names are looked at."""
    if category in ON_DEVICE:
        return KERNEL
    if category == "cpu_op":
        return FUNCTION
    return LAUNCHING_KIND if category.endswith(LAUNCHING) else USER


def on_stream(category: str) -> bool:
    """Whether slices of a category lie on a stream of a device."""
    return category in ON_DEVICE or category.startswith("gpu_") or category.endswith("_sync")


def alike(category: Any) -> str:
    """The category that stands for all which mean the same, so that these are read together."""
    if not isinstance(category, str):
        return ""
    if category in WITH_ARGS or category == EXPORTED_PHASE or category.endswith(LAUNCHING):
        return category
    return _STREAM if on_stream(category) else ""


def function_kind(name: str, forward_thread: int) -> int:
    """An autograd node, or another operator."""
    node = name.startswith(_NODE) or _GRADIENT.fullmatch(name) is not None
    node = node or (forward_thread > 0 and "::" not in name)
    return BACKWARD if node else FUNCTION


def phase_of(name: str) -> tuple[PhaseKind, str] | None:
    """The phase that an annotation marks, and what to call it; None: it is just a range.

    Names as torch gives them, and `## forward ##` as Meta's trainers do.
    """
    if STEP.fullmatch(name):
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
    """Shapes and dtypes of the tensors among the inputs: `[4, 8] [8]`, `float32 float32`."""
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
    return " ".join(shapes)[:_LONGEST_SIGNATURE], " ".join(dtypes)[:_LONGEST_SIGNATURE]


def _shape(dims: Any) -> str:
    numbers = dims if isinstance(dims, list) else []
    return f"[{', '.join(str(n) for n in numbers if isinstance(n, int))}]"
