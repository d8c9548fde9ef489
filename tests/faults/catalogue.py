"""All faults of this folder, by room."""

from __future__ import annotations

from tests.faults import (
    cut_off,
    growing,
    loader_workers,
    losses,
    made_in_forward,
    no_targets,
    optimizer_settings,
    order_of_a_step,
    rank_data,
    rank_parts,
    ranks,
    shared_layers,
    shared_memory,
    silent_units,
    slow_ranks,
    torch_threads,
    training_loop,
    two_runs,
    waiting,
    waiting_processes,
)
from tests.faults.base import Fault

ROOMS = (
    optimizer_settings,
    silent_units,
    cut_off,
    order_of_a_step,
    made_in_forward,
    losses,
    shared_layers,
    no_targets,
    training_loop,
    growing,
    waiting,
    waiting_processes,
    torch_threads,
    loader_workers,
    shared_memory,
    ranks,
    rank_data,
    rank_parts,
    slow_ranks,
    two_runs,
)
"""Modules with programs and, as `FAULTS`, their faults."""

FAULTS: tuple[Fault, ...] = tuple(fault for room in ROOMS for fault in room.FAULTS)
