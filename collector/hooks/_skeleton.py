"""Marks where a program asks for deterministic operators: a whole small hook, to be copied.

To observe something new:
1. Copy this file into the folder of its kind (training, threads, collectives, ...).
2. Replace `use_deterministic_algorithms` and its description.
3. List its module in `registry.py`, after the hooks that it needs.
4. Copy `tests/collector/hooks/test_skeleton.py`, which records a program with it.
"""

from __future__ import annotations

import torch

from .base import Hook, HookContext

_LOST = "settings of determinism"
"""Name in the coverage if this version of torch lacks the function."""


def _hook(context: HookContext) -> None:
    recorder, patches = context.recorder, context.patches

    def asked(mode: bool, **_: bool) -> None:
        # Called before the function. Its exceptions are counted and do not reach the program. Keep
        # it short: the program waits. Use no torch operator: it would be recorded as the program's.
        recorder.mark(f"deterministic: {mode}")

    # The function stays the same object; see patches.py.
    patches.ends(torch, "use_deterministic_algorithms", asked, lost=_LOST)


HOOK = Hook(_LOST, _hook)
