"""Two threads run backward through one model without a lock: both add to the same gradients."""

import threading

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
together = threading.Barrier(2)


def accumulate(batch: torch.Tensor) -> None:
    loss = model(batch).square().mean()
    together.wait()
    loss.backward()  # adds to model's gradients while the other thread does


for _ in range(10):
    optimizer.zero_grad(set_to_none=False)
    halves = torch.randn(2, 4096, 128)
    threads = [threading.Thread(target=accumulate, args=(half,)) for half in halves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    optimizer.step()
