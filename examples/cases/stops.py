"""From step 10 on the encoder runs under no_grad, "to save memory": it stops to learn."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, batch: torch.Tensor, save_memory: bool) -> torch.Tensor:
        with torch.set_grad_enabled(not save_memory):
            features = self.encoder(batch).relu()
        return self.head(features)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(24):
    loss = (model(torch.randn(64, 32), save_memory=step >= 10) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
