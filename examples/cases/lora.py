"""An adapter that never learns: the optimizer was built before the adapter was added."""

import torch
from torch import nn


class LoraLinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) * 0.01)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.lora_A.T @ self.lora_B.T


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model[0] = LoraLinear(model[0])  # the optimizer knows nothing of lora_A and lora_B
for _ in range(10):
    loss = (model(torch.randn(64, 32)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
