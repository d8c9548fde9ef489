"""All faults of this folder, by room."""

from __future__ import annotations

from tests.faults import cut_off, optimizer_settings, silent_units, torch_threads, waiting
from tests.faults.base import Fault

ROOMS = (optimizer_settings, silent_units, cut_off, waiting, torch_threads)
"""Modules with programs, and their list `FAULTS`."""

FAULTS: tuple[Fault, ...] = tuple(fault for room in ROOMS for fault in room.FAULTS)
