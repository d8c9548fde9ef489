"""Small trainings, each with one thing that keeps something from learning, and their clean twins.

python programs.py FOLDER          records each into FOLDER/<name>, in one process
"""

from __future__ import annotations

import sys
from pathlib import Path

import assertions
import cut
import flow
import kept
import scales
import stepping
import stuck
import torch
from common import PROGRAMS

import lanescope.collector as ls

TOPICS = (flow, stuck, stepping, scales, assertions, kept, cut)

if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 2:
        import adapters

        TOPICS += (adapters,)
    # What it asserts is looked for in all that the process records after it.
    PROGRAMS["asserted"] = PROGRAMS.pop("asserted")
    for name, run in PROGRAMS.items():
        torch.manual_seed(0)
        level = "access" if run.__module__ in ("kept", "cut") else "timing"
        with ls.record(Path(sys.argv[1]) / name, level=level, sample_every=1):
            run()
