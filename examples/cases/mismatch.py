"""The ranks agree on the order of two collectives until one of them is reordered on rank 1."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=5))
rank = dist.get_rank()
weights, counts = torch.ones(8), torch.ones(8, dtype=torch.float64)
for step in range(6):
    pair = [weights, counts] if rank == 0 or step < 4 else [counts, weights]
    for tensor in pair:
        dist.all_reduce(tensor)
dist.destroy_process_group()
