"""All faults of this folder, by room."""

from __future__ import annotations

from tests.faults import optimizer_settings
from tests.faults.base import Fault

ROOMS = (optimizer_settings,)
"""Modules with programs and, as `FAULTS`, what is in them."""

FAULTS: tuple[Fault, ...] = tuple(fault for room in ROOMS for fault in room.FAULTS)
