"""Trains on two ranks: what `make matrix` records.

DistributedDataParallel over gloo, a data-loading worker, gradient clipping, and backward passes on
threads. Prints a digest of the result, to compare a recorded process with a plain one.
"""

import hashlib
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS = 4
BATCH = 4
THREADS = 2


def network() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def train(model: torch.nn.Module, batches: DataLoader) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for inputs, targets in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def on_threads(models: list[torch.nn.Module]) -> None:
    inputs = torch.ones(BATCH, 8)
    threads = [threading.Thread(target=lambda m=m: m(inputs).sum().backward()) for m in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def digest(models: list[torch.nn.Module]) -> str:
    found = hashlib.sha256()
    for model in models:
        for parameter in model.parameters():
            found.update(parameter.detach().contiguous().view(torch.uint8).numpy(force=True).data)
            found.update(str(parameter.grad.double().sum().item()).encode())
    return found.hexdigest()[:16]


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = TensorDataset(torch.randn(STEPS * BATCH, 8) + rank, torch.randn(STEPS * BATCH, 4))
    model = network()
    others = [network() for _ in range(THREADS)]
    train(DistributedDataParallel(model), DataLoader(data, batch_size=BATCH, num_workers=1))
    on_threads(others)
    print(f"rank {rank}: {digest([model, *others])}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
