"""Rank 1 finds nothing to do in one step and leaves out a collective: rank 0 waits for ever."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(8):
    losses = torch.rand(4, generator=torch.Generator().manual_seed(step))
    if rank == 1 and step == 5:
        continue  # "nothing valid in this batch"
    dist.all_reduce(losses)
print(f"rank {rank} is done")
