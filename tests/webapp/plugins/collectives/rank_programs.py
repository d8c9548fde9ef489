"""Programs of two ranks with a fault, and their twins without; one run of each.

python rank_programs.py FOLDER [NAME ...]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import rank_batches
import rank_evaluation
import rank_reductions
import torch
import torch.distributed as dist
from rank_training import PROGRAMS

import lanescope.collector as ls

TOPICS = (rank_reductions, rank_evaluation, rank_batches)
"""Modules that add their programs to `PROGRAMS`."""


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    for name in sys.argv[2:] or PROGRAMS:
        with ls.record(folder / name):
            store = dist.FileStore(str(folder / f"{name}.store"), 2)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
            PROGRAMS[name]()
            dist.barrier()
            dist.destroy_process_group()
