"""Names of threads as Python and the system know them."""

from __future__ import annotations

import threading

from ..journal import own_files
from .private_names import optional

RUNNING: dict[int, threading.Thread] = optional("threading", "_active", "names of threads") or {}
"""Threads that `threading` knows, by ident; asking it for the current one could add a dummy."""


def system_thread_name(native_id: int) -> str:
    """Returns the name that the system has for a thread of this process; empty if it has ended."""
    try:
        name = own_files.read(f"/proc/self/task/{native_id}/comm")
        return name.decode(errors="replace").strip()
    except OSError:
        return ""
