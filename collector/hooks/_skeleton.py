"""Marks where a program seeds torch: a whole small hook, to be copied.

To observe something new:
1. Copy this file into the folder of its kind (training, threads, collectives, ...).
2. Replace `manual_seed` and what is written about it.
3. List its HOOK in `registry.py`, behind what it needs.
4. Copy `tests/collector/hooks/test_skeleton.py`, which records a program with it.
"""

from __future__ import annotations

import torch

from .base import Hook, HookContext, Undo
from .patches import Patches

LOST = "seeds"
"""What a line of the coverage says is missing if this version of torch has no such function."""


def _hook(context: HookContext) -> Undo:
    recorder, patches = context.recorder, Patches()

    def seeded(seed: int) -> None:
        # Called before the function. What it raises is counted and stays in here. Keep it short:
        # the program waits. Use no torch operator: it would be recorded as the program's.
        recorder.mark(f"seeded with {seed}")

    # The function stays the object that the program knows; see patches.py.
    patches.ends(torch, "manual_seed", seeded, lost=LOST)
    return patches.undo


HOOK = Hook(LOST, _hook)
