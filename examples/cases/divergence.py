"""The same training twice; with --eps the normalisation of one block has another epsilon."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--eps", type=float, default=1e-5)
options = parser.parse_args()

torch.manual_seed(0)
blocks = [
    nn.Sequential(
        nn.Linear(32, 32), nn.LayerNorm(32, eps=options.eps if i == 2 else 1e-5), nn.GELU()
    )
    for i in range(4)
]
model = nn.Sequential(*blocks, nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(5):
    loss = model(torch.randn(16, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.6f}")
