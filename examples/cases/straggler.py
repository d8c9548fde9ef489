"""Rank 1 prepares its data more slowly than the others, who wait for it in every all_reduce."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def prepare() -> torch.Tensor:
    batch = torch.randn(32, 64)
    if rank == 1:
        time.sleep(0.05)  # say, a slow disk
    return batch


for _ in range(20):
    loss = model(prepare()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
