"""How fast did data move? Algorithm and bus bandwidth as nccl-tests defines them.

    algbw = S / t        busbw = algbw * factor(operation, n)

S is the size that nccl-tests calls the size of the operation, n the number of ranks. Bus bandwidth
does not depend on n and can be held against the hardware's. Source of the factors and of S: the
PERFORMANCE.md of https://github.com/NVIDIA/nccl-tests.
"""

from __future__ import annotations

_SHARE = (
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced", "reduce_scatter", "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced", "all_to_all", "all_to_all_single", "gather", "scatter",
)  # fmt: skip
_TWICE = ("all_reduce", "all_reduce_coalesced")
_WHOLE = ("broadcast", "reduce", "send", "recv")

_INPUT_IS_A_PART = (
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced", "gather", "scatter",
)  # fmt: skip
"""Operations whose recorded bytes are those of one rank's part; S is that of all parts."""


def bus_factor(name: str, ranks: int) -> float | None:
    """busbw / algbw of an operation over n ranks; None where none is defined (barrier).

    all_reduce: 2 (n - 1) / n; all_gather, reduce_scatter, all_to_all, gather, scatter: (n - 1) / n;
    broadcast, reduce, send, recv: 1.
    """
    if name in _WHOLE:
        return 1.0
    if ranks < 1 or name not in (*_TWICE, *_SHARE):
        return None
    return (2.0 if name in _TWICE else 1.0) * (ranks - 1) / ranks


def operation_bytes(name: str, recorded: int, ranks: int) -> int:
    """S of an operation of which one rank's call recorded so many bytes.

    nccl-tests takes the larger of input and output buffer: n times a rank's part for all_gather.
    """
    return recorded * ranks if name in _INPUT_IS_A_PART else recorded
