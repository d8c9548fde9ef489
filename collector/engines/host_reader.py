"""Reads tensors in host memory by the observer's library: hashes, norms, gradients."""

from __future__ import annotations

import ctypes
from array import array
from pathlib import Path
from typing import Any

import torch

from ..numerics import host_fingerprint

_MAX_LOCKED = 1 << 18
"""Numbers read with the interpreter's lock held: releasing the lock may take longer."""


class HostReader:
    """Reads memory without torch's operators, many tensors per call."""

    def __init__(self, path: Path) -> None:
        """`path`: the observer's library."""
        locked, unlocked = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
        c_any, i32, i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64

        def function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
            found = library[f"lanescope_{name}"]  # a new object, not shared with other callers
            found.restype = result
            found.argtypes = arguments
            return found

        self._hash = function(unlocked, "hash", i32, c_any, ctypes.POINTER(i64))
        self._norms = function(unlocked, "norms", i32, c_any, i64, c_any)
        self._spreads = function(unlocked, "spreads", i32, c_any, i64, c_any, c_any)
        self._thin = function(unlocked, "thin", i32, c_any, i64, i64, c_any)
        self.assigning = 0  # address of the number of assignments in progress; 0: not known
        self._extents = function(locked, "extents", i32, c_any, i64, c_any, c_any)
        self._take = function(locked, "take_gradients", i64, c_any, i64, c_any, c_any)
        self._write_short = function(locked, "write_gradients", None, c_any, i64)
        self._write_long = function(unlocked, "write_gradients", None, c_any, i64)

    def hash_of(self, tensor: torch.Tensor) -> int:
        """Returns the hash of a tensor that has a fingerprint."""
        into = ctypes.c_int64()
        if self._hash(tensor._cdata, ctypes.byref(into)):
            return into.value
        return host_fingerprint.host_hash_of(tensor)  # for example a conjugate

    def norms_of(self, tensors: list[torch.Tensor]) -> torch.Tensor | None:
        """Returns L2 norms, float64; None if one of the tensors cannot be read."""
        pointers = _addresses(tensors)
        into = torch.empty(len(tensors), dtype=torch.float64, device="cpu")
        read = self._norms(pointers.buffer_info()[0], len(tensors), into.data_ptr())
        return into if read else None

    def spreads_of(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Returns largest absolute values (NaN if a tensor holds one) and counts of nonzeros.

        Both float64; None if one of the tensors cannot be read.
        """
        pointers = _addresses(tensors)
        into = torch.empty(2, len(tensors), dtype=torch.float64, device="cpu")
        largest, nonzero = into
        read = self._spreads(
            pointers.buffer_info()[0], len(tensors), largest.data_ptr(), nonzero.data_ptr()
        )
        return (largest, nonzero) if read else None

    def thinned(self, tensors: list[torch.Tensor], most: int) -> list[torch.Tensor] | None:
        """Returns at most `most` numbers of each tensor, evenly spaced in memory.

        float64; None if one of the tensors cannot be read.
        """
        pointers = _addresses(tensors)
        numbers = [tensor.numel() for tensor in tensors]
        sizes = [-(-one // max(1, -(-one // most))) for one in numbers]
        into = torch.empty(sum(sizes), dtype=torch.float64, device="cpu")
        read = self._thin(pointers.buffer_info()[0], len(tensors), most, into.data_ptr())
        return list(torch.split(into, sizes)) if read else None

    def extents_of(self, parameters: list[torch.Tensor]) -> array[int] | None:
        """Returns seven numbers for each parameter: storage address, offset and size in bytes, the
        same of its gradient, and `_cdata` of the gradient. Zeros: it has none.

        None: another thread is dropping gradients.
        """
        pointers, into = _addresses(parameters), array("q", bytes(7 * 8 * len(parameters)))
        read = self._extents(
            pointers.buffer_info()[0], len(parameters), self.assigning, into.buffer_info()[0]
        )
        return into if read else None

    def write_gradients(
        self, parameters: list[torch.Tensor], records: bytes, start: int
    ) -> list[int] | None:
        """Stores the norm of each parameter's gradient; returns positions of unreadable ones.

        `records` holds a record per parameter, with the fields that do not change. None: nothing is
        read, because another thread is dropping gradients.
        """
        pointers = _addresses(parameters)
        rest = array("I", bytes(4 * len(parameters) + 4))  # their number, then their positions
        numbers = self._take(
            pointers.buffer_info()[0], len(parameters), self.assigning, rest.buffer_info()[0]
        )
        if numbers < 0:
            return None
        write = self._write_short if numbers <= _MAX_LOCKED else self._write_long
        write(records, start)
        return rest[1 : 1 + rest[0]].tolist() if rest[0] else []


def _addresses(tensors: list[torch.Tensor]) -> array[int]:
    return array("Q", [tensor._cdata for tensor in tensors])
