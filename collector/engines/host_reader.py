"""What the observer's library reads of tensors in host memory: hashes, norms, gradients."""

from __future__ import annotations

import ctypes
from array import array
from pathlib import Path
from typing import Any

import torch

from ..numerics import host_fingerprint

_SHORT = 1 << 18
"""Numbers that are read while the interpreter's lock is held: giving it away may take longer."""


class HostReader:
    """Reads memory without torch's operators, and without a call of Python's for each tensor."""

    def __init__(self, path: Path) -> None:
        """`path`: of the library."""
        locked, unlocked = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
        c_any, i32, i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64

        def function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
            found = library[f"lanescope_{name}"]  # not shared with who else asks for that name
            found.restype = result
            found.argtypes = arguments
            return found

        self._hash = function(unlocked, "hash", i32, c_any, ctypes.POINTER(i64))
        self._norms = function(unlocked, "norms", i32, c_any, i64, c_any)
        self._spreads = function(unlocked, "spreads", i32, c_any, i64, c_any, c_any)
        self._thin = function(unlocked, "thin", i32, c_any, i64, i64, c_any)
        self._take = function(locked, "take_gradients", i64, c_any, i64, c_any)
        self._write_short = function(locked, "write_gradients", None, c_any, i64)
        self._write_long = function(unlocked, "write_gradients", None, c_any, i64)

    def hash_of(self, tensor: torch.Tensor) -> int:
        """The hash of a tensor that has a fingerprint, with no more of it."""
        into = ctypes.c_int64()
        if self._hash(tensor._cdata, ctypes.byref(into)):
            return into.value
        return host_fingerprint.hash_of(tensor)  # a conjugate, say

    def norms_of(self, tensors: list[torch.Tensor]) -> torch.Tensor | None:
        """L2 norms, float64; None where one of the tensors cannot be read."""
        pointers = _addresses(tensors)
        into = torch.empty(len(tensors), dtype=torch.float64)
        read = self._norms(pointers.buffer_info()[0], len(tensors), into.data_ptr())
        return into if read else None

    def spreads_of(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The largest absolute value of each, NaN where there is one, and how many are not 0.

        float64; None where one of the tensors cannot be read.
        """
        pointers = _addresses(tensors)
        into = torch.empty(2, len(tensors), dtype=torch.float64)
        largest, nonzero = into
        read = self._spreads(
            pointers.buffer_info()[0], len(tensors), largest.data_ptr(), nonzero.data_ptr()
        )
        return (largest, nonzero) if read else None

    def thinned(self, tensors: list[torch.Tensor], most: int) -> list[torch.Tensor] | None:
        """At most that many numbers of each, evenly spaced in memory.

        float64; None where one of the tensors cannot be read.
        """
        pointers = _addresses(tensors)
        numbers = [tensor.numel() for tensor in tensors]
        sizes = [-(-one // max(1, -(-one // most))) for one in numbers]
        into = torch.empty(sum(sizes), dtype=torch.float64)
        read = self._thin(pointers.buffer_info()[0], len(tensors), most, into.data_ptr())
        return list(torch.split(into, sizes)) if read else None

    def write_gradients(
        self, parameters: list[torch.Tensor], records: bytes, start: int
    ) -> list[int]:
        """Store the norm of each parameter's gradient; returns positions of those left.

        `records` has one for each parameter, with what does not change.
        """
        pointers = _addresses(parameters)
        left = array("I", bytes(4 * len(parameters) + 4))  # their number, then their positions
        numbers = self._take(pointers.buffer_info()[0], len(parameters), left.buffer_info()[0])
        write = self._write_short if numbers <= _SHORT else self._write_long
        write(records, start)
        return left[1 : 1 + left[0]].tolist() if left[0] else []


def _addresses(tensors: list[torch.Tensor]) -> array[int]:
    return array("Q", [tensor._cdata for tensor in tensors])
