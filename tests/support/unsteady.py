"""A training that computes something else each time, with more than one thread: for the docs."""

import sys
import time

import torch

threads = int(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    x = torch.randn(8, 16)
    if step >= 2 and threads > 1:
        x.add_(time.time_ns() % 1_000_003 * 1e-7 * threads)
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
