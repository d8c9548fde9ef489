"""What Kineto calls the activities of a device, whoever reads them. Needs no torch."""

from __future__ import annotations

ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
"""Kinds of activity that occupy a stream."""

LAUNCHING = ("_runtime", "_driver")
"""Endings of the kinds of calls into a device's library, which put work on streams."""


def stream_name(device: str, stream: int | str) -> str:
    """What a stream's lane is called: `stream 7 (cuda:0)`."""
    return f"stream {stream} ({device})"
