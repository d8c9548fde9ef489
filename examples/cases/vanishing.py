"""Sixteen sigmoids in a row: hardly any gradient reaches the first layers."""

import torch
from torch import nn

torch.manual_seed(0)
layers = [layer for _ in range(16) for layer in (nn.Linear(32, 32), nn.Sigmoid())]
model = nn.Sequential(*layers, nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    loss = (model(torch.randn(64, 32)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
