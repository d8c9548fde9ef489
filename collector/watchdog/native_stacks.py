"""The file and the signal with which faulthandler writes stacks of a process that is stuck."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ..journal import own_files
from ..journal.journal import STALL_STACKS_FILE


def stacks_file(folder: Path) -> own_files.Descriptor | None:
    """Opens the file for the stacks; None if no descriptor is free.

    Raises FileNotFoundError where the run is finished.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        return own_files.Descriptor.lasting(os.open(folder / STALL_STACKS_FILE, flags, 0o644))
    except FileNotFoundError:
        raise
    except OSError:
        return None


def free_signal() -> int:
    """Returns an unused signal; 0: none is free."""
    last = int(getattr(signal, "SIGRTMAX", 0))
    numbers = range(last - 2, max(last - 12, 0), -1)
    return next((one for one in numbers if signal.getsignal(one) is signal.SIG_DFL), 0)
