"""Says when the calling thread's work is captured into a CUDA graph instead of being run."""

from __future__ import annotations

from typing import Any

import torch


def capturing() -> bool:
    """Returns True during a capture.

    What the recorder computed then would become a part of the program's graph, and memory for
    the host or a question to an event would end the capture with an error.
    """
    cuda: Any = torch.cuda  # torch leaves it untyped
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())
