"""Two threads train models of their own at the same time: their backward passes overlap."""

import threading

import torch
from torch import nn


def train(seed: int, steps: int = 20) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        batch = torch.randn(512, 256, generator=generator)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


other = threading.Thread(target=train, args=(1,), name="second trainer")
other.start()
train(0)
other.join()
