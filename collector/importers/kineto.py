"""Maps Kineto's categories and names to the schema's terms, and finds the training steps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..format.array_types import Int64Array
from ..format.names import LAUNCH_SUFFIXES, ON_DEVICE
from ..format.record_kinds import PhaseKind
from .base import Dialect
from .import_limits import MAX_STEPS
from .spill import (
    BACKWARD_SLICE,
    FUNCTION_SLICE,
    KERNEL_SLICE,
    LAUNCHING_SLICE,
    PHASE_KIND,
    USER_SLICE,
    StructArray,
    Trace,
    field_of,
)

DIALECT = Dialect("kineto", lambda found: "schemaVersion" in found or "distributedInfo" in found)

PROFILER_STEP = re.compile(r"(?:Profiler)?Step#(\d{1,9})")

COLLECTIVE_PREFIXES = ("c10d::", "nccl:", "gloo:", "mpi:", "ucc:", "xccl:", "record_param_comms")
"""Name prefixes of slices that belong to a collective."""

WITH_ARGS = frozenset({"cpu_op", "Operator", "user_annotation", *ON_DEVICE})
"""Categories whose arguments are decoded, besides calls that launch."""

OPERATOR_OF_2021 = "Operator"
"""Category of operators and annotations of torch 1.8."""

_SAME = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
    "concurrent_kernel": "kernel",
    "hpu_op": "kernel",
    "mtia_ccp_events": "kernel",
    "mtia_workloadd": "kernel",
}
"""Category of older versions and of other devices -> that with the same meaning."""

_ON_STREAM = ("gpu_", "mtia_insight")

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
        return KERNEL_SLICE
    if category in ("cpu_op", OPERATOR_OF_2021):
        return FUNCTION_SLICE
    return LAUNCHING_SLICE if category.endswith(LAUNCH_SUFFIXES) else USER_SLICE


def on_stream(category: str) -> bool:
    """Returns True if slices of a category are on a stream of a device."""
    return category in ON_DEVICE or category.startswith(_ON_STREAM) or category.endswith("_sync")


def merged_category(category: Any) -> str:
    """Returns one category for all with the same meaning, so that they are read together."""
    if not isinstance(category, str):
        return ""
    known: str = _SAME.get(category, category)
    if known in WITH_ARGS or known.endswith(LAUNCH_SUFFIXES):
        return known
    return _STREAM if on_stream(known) else ""


def function_kind(name: str, forward_thread: int) -> int:
    """Returns BACKWARD for an autograd node, else FUNCTION."""
    node = name.startswith(_NODE) or _GRADIENT.fullmatch(name) is not None
    node = node or (forward_thread > 0 and "::" not in name)
    return BACKWARD_SLICE if node else FUNCTION_SLICE


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


@dataclass(frozen=True)
class ProfilerSteps:
    """Step of each instant: `first` before `bounds[0]`, then `numbers[i]` from `bounds[i]` on."""

    bounds: Int64Array
    numbers: Int64Array
    first: int

    def of(self, rows: StructArray) -> Int64Array:
        """Returns the step of each slice: from the trace, else by its start."""
        found = self.at(rows["start"])
        return np.where(rows["step"] >= 0, rows["step"], found)

    def at(self, instants: Int64Array) -> Int64Array:
        """Returns the step of each instant in ns."""
        place = np.searchsorted(self.bounds, instants, "right")
        return np.concatenate([[self.first], self.numbers])[place]


def profiler_steps(trace: Trace, slices: StructArray) -> ProfilerSteps:
    """Returns steps as numbered by torch's profiler (ProfilerStep#N), else by the first optimizer.

    A step ends with its optimizer, as in every run: later events of the same pass of the loop
    belong to the next step. Where a marked step has no optimizer, the marks are the steps; events
    before the first mark get the number before it, events after the last the number after it.
    Without marks and optimizers everything is step 0.
    """
    kind = field_of(slices, "kind")
    marks = _marks(trace, _few(trace, slices, kind == PHASE_KIND + PhaseKind.user))
    ends = _few(trace, slices, kind == PHASE_KIND + PhaseKind.optimizer)
    ends = ends[ends["duration"] >= 0]
    until = np.sort(ends["start"] + ends["duration"])
    if marks:
        places = [int(np.searchsorted(until, end, "right")) - 1 for _, end, _ in marks]
        pairs = zip(marks, places, strict=True)
        if all(place >= 0 and until[place] >= begin for (begin, _, _), place in pairs):
            return ProfilerSteps(until[places], np.array([n + 1 for _, _, n in marks]), marks[0][2])
        bounds = [begin for begin, _, _ in marks] + [marks[-1][1]]
        numbers = [number for _, _, number in marks] + [marks[-1][2] + 1]
        return ProfilerSteps(np.array(bounds), np.array(numbers), max(0, marks[0][2] - 1))
    if not len(ends):
        return ProfilerSteps(np.empty(0, np.int64), np.empty(0, np.int64), 0)
    first = ends[np.argmin(ends["start"])]
    same = ends[(ends["name"] == first["name"]) & (ends["lane"] == first["lane"])]
    of_first = np.unique(same["start"] + same["duration"])
    return ProfilerSteps(of_first, np.arange(1, len(of_first) + 1), 0)


def _few(trace: Trace, slices: StructArray, chosen: NDArray[np.bool_]) -> StructArray:
    """Returns the chosen slices; none if there are more than a program has steps."""
    count = int(chosen.sum())
    if count > MAX_STEPS:
        trace.counts["unread_ends_of_steps"] += count
        return slices[:0]
    return slices[chosen]


def _marks(trace: Trace, ranges: StructArray) -> list[tuple[int, int, int]]:
    """Returns (begin, end, number) of the steps that the profiler marked, in order."""
    marks = []
    for row in ranges:
        found = PROFILER_STEP.fullmatch(trace.text(int(row["name"])))
        if found:
            begin = int(row["start"])
            marks.append((begin, begin + max(0, int(row["duration"])), int(found[1])))
    return sorted(marks)
