"""Trains a small GPT on the Python standard library's own sources, on as many ranks as there are.

    torchrun --nproc-per-node 4 examples/train_gpt.py --steps 30
    python examples/train_gpt.py                                   # one process, no process group

It is a plain PyTorch program and knows nothing of LaneScope: DistributedDataParallel over gloo,
AdamW, gradient clipping, a DataLoader with worker processes, a thread that evaluates while
training goes on and a thread that writes checkpoints. Given the same options it computes the same
bits every time; `--losses FILE` writes them down, so that two runs can be compared.
"""

from __future__ import annotations

import argparse
import os
import queue
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

VOCABULARY = 256  # one token per byte
HELD_OUT = 64  # windows at the end of the text that training never sees

Snapshot = dict[str, Tensor]


# --- data ---------------------------------------------------------------------------------------


def standard_library(limit: int) -> bytearray:
    """The first `limit` bytes of the standard library's modules, in alphabetical order."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    return text[:limit]


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Windows of `length` bytes, side by side; the target is the window moved on by one byte."""

    def __init__(self, text: bytearray, length: int) -> None:
        self.text = text
        self.length = length

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self.length
        window = torch.frombuffer(
            self.text, dtype=torch.uint8, offset=start, count=self.length + 1
        ).long()
        return window[:-1], window[1:]


def endless(loader: DataLoader[Any], sampler: DistributedSampler[Any]) -> Iterator[list[Tensor]]:
    """Batches without end, reshuffled every epoch."""
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


# --- model --------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, dim = x.shape
        split = self.qkv(x).view(batch, seq, 3, self.heads, dim // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        merged: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, seq, dim))
        return merged


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(self, layers: int, dim: int, heads: int, seq: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, dim)
        self.position = nn.Embedding(seq, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, VOCABULARY, bias=False)
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# --- side threads -------------------------------------------------------------------------------


class SideThread:
    """A named thread that handles (step, snapshot) one after another until it is closed.

    The snapshot is a copy of the weights that is never written again, so the thread shares no
    tensor with training: its pace cannot change the result. An error it meets is raised again by
    `close`, not lost.
    """

    def __init__(self, name: str, handle: Callable[[int, Snapshot], None]) -> None:
        self._handle = handle
        self._jobs: queue.Queue[tuple[int, Snapshot] | None] = queue.Queue(maxsize=4)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def submit(self, step: int, snapshot: Snapshot) -> None:
        self._jobs.put((step, snapshot))

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._error is None:  # after an error keep emptying the queue: `put` never hangs
                try:
                    self._handle(*job)
                except BaseException as error:
                    self._error = error


class Evaluator:
    """Loss on held-out text, and how strongly that text still pulls on the weights.

    Works on a model of its own. The pull is the norm of the held-out loss's gradient, so this
    thread runs backward passes too, at the same time as the training thread.
    """

    def __init__(self, model: GPT, batches: list[list[Tensor]], verbose: bool) -> None:
        self._model = model.eval()
        self._batches = batches
        self._verbose = verbose
        self.losses: list[float] = []

    def __call__(self, step: int, snapshot: Snapshot) -> None:
        self._model.load_state_dict(snapshot)
        with torch.no_grad():
            losses = [cross_entropy(self._model(x), y) for x, y in self._batches]
        loss = torch.stack(losses).mean().item()
        self._model.zero_grad()
        tokens, targets = self._batches[step % len(self._batches)]
        cross_entropy(self._model(tokens), targets).backward()
        norms = [p.grad.norm() for p in self._model.parameters() if p.grad is not None]
        pull = torch.stack(norms).norm().item()
        self.losses.append(loss)
        if self._verbose:
            print(f"           step {step:4d}: held-out loss {loss:.4f}, pull {pull:.3f}")


class CheckpointWriter:
    """Writes this rank's share of the weights as bfloat16: tensor i belongs to rank i % world."""

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        self._folder = folder
        self._rank = rank
        self._world = world

    def __call__(self, step: int, snapshot: Snapshot) -> None:
        share = {
            name: tensor.bfloat16()
            for i, (name, tensor) in enumerate(snapshot.items())
            if i % self._world == self._rank
        }
        final = self._folder / f"step-{step:05d}-rank-{self._rank}.pt"
        partial = final.with_suffix(".partial")
        torch.save(share, partial)
        partial.replace(final)


# --- training -----------------------------------------------------------------------------------


def train(options: argparse.Namespace, rank: int, world: int, checkpoints: Path) -> None:
    def build() -> GPT:
        return GPT(options.layers, options.dim, options.heads, options.seq, options.dropout)

    torch.manual_seed(options.seed)  # the same weights on every rank, before any exchange
    model = build()
    copy = build()
    torch.manual_seed(options.seed + 1 + rank)  # from here on dropout differs between ranks

    data = Windows(standard_library(options.text_bytes), options.seq)
    training = torch.utils.data.Subset(data, range(len(data) - HELD_OUT))
    held_out = torch.utils.data.Subset(data, range(len(data) - HELD_OUT + rank, len(data), world))
    sampler: DistributedSampler[Any] = DistributedSampler(
        training, world, rank, shuffle=True, seed=options.seed, drop_last=True
    )
    loader = DataLoader(
        training,
        batch_size=options.batch,
        sampler=sampler,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        multiprocessing_context="fork" if options.workers else None,
        drop_last=True,
    )
    batches = endless(loader, sampler)
    following = next(batches)  # forks the workers now, while this process has no other threads

    wrapped: nn.Module = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.1)
    warm_up = max(1, options.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / warm_up))

    held_out_batches = list(DataLoader(held_out, batch_size=options.batch))[: options.eval_batches]
    evaluator = Evaluator(copy, held_out_batches, verbose=rank == 0)
    evaluation = SideThread("evaluator", evaluator)
    saving = SideThread("checkpoint", CheckpointWriter(checkpoints, rank, world))
    losses: list[Tensor] = []
    try:
        for step in range(options.steps):
            began = time.perf_counter()
            tokens, targets = following
            if rank == options.slow_rank:
                time.sleep(options.slow_ms / 1000)
            loss = cross_entropy(wrapped(tokens), targets)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), options.clip)
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())

            if (step + 1) % options.eval_every == 0:
                evaluation.submit(step, snapshot_of(model))
            if (step + 1) % options.checkpoint_every == 0:
                saving.submit(step, snapshot_of(model))
            if (step + 1) % options.log_every == 0 or step == 0:
                mean = mean_over_ranks(loss.detach(), world)
                if rank == 0:
                    took = 1000 * (time.perf_counter() - began)
                    print(f"step {step:4d}: loss {mean:.4f}, norm {norm:.3f}, {took:.0f} ms")
            if step + 1 < options.steps:
                following = next(batches)
    finally:
        try:
            evaluation.close()
        finally:
            saving.close()

    if evaluator.losses:
        final = mean_over_ranks(torch.tensor(evaluator.losses[-1]), world)
        if rank == 0:
            print(f"done: {options.steps} steps, held-out loss of all ranks {final:.4f}")
    if options.losses is not None:
        write_losses(options.losses, torch.stack(losses), rank, world)


def snapshot_of(model: nn.Module) -> Snapshot:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def mean_over_ranks(value: Tensor, world: int) -> float:
    if world == 1:
        return value.item()
    total = value.clone()
    dist.all_reduce(total)
    return total.item() / world


def write_losses(path: Path, losses: Tensor, rank: int, world: int) -> None:
    """One line per step and rank: `step rank loss`, the loss as an exact hexadecimal float."""
    everyone = [torch.empty_like(losses) for _ in range(world)]
    if world > 1:
        dist.all_gather(everyone, losses)
    else:
        everyone = [losses]
    if rank != 0:
        return
    lines = [
        f"{step} {of} {loss.hex()}\n"
        for step, row in enumerate(torch.stack(everyone).T.tolist())
        for of, loss in enumerate(row)
    ]
    path.write_text("".join(lines))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small GPT on the sources of the Python standard library.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--layers", type=int, default=4)
    add("--dim", type=int, default=256)
    add("--heads", type=int, default=4)
    add("--seq", type=int, default=128, help="tokens per sequence")
    add("--batch", type=int, default=4, help="sequences per rank and step")
    add("--dropout", type=float, default=0.1)
    add("--steps", type=int, default=30)
    add("--lr", type=float, default=1e-3)
    add("--clip", type=float, default=1.0, help="largest gradient norm")
    add("--seed", type=int, default=7)
    add("--text-bytes", type=int, default=4_000_000)
    add("--workers", type=int, default=1, help="data-loading processes per rank")
    add("--eval-every", type=int, default=5, help="steps between evaluations")
    add("--eval-batches", type=int, default=4, help="held-out batches per evaluation")
    add("--checkpoint-every", type=int, default=10, help="steps between checkpoints")
    add("--checkpoints", type=Path, help="folder to keep checkpoints in (else a temporary one)")
    add("--log-every", type=int, default=5, help="steps between lines of output")
    add("--slow-rank", type=int, default=-1, help="rank that is slower than the others")
    add("--slow-ms", type=float, default=50.0, help="by how much, per step")
    add("--losses", type=Path, help="file to write all losses to, as exact hexadecimal floats")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)  # ranks share the cores; and sums keep one order
    rank = int(os.environ.get("RANK", "0"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    if rank == 0:
        tokens = options.batch * options.seq
        print(f"{world} rank(s), {tokens} tokens per rank and step, {options.steps} steps")
    try:
        with tempfile.TemporaryDirectory(prefix="train-gpt-") as temporary:
            folder = options.checkpoints or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            train(options, rank, world, folder)
    finally:
        if world > 1:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
