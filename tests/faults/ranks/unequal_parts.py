"""Programs of two ranks that exchange parts of other sizes than they expect."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.faults.ranks.one_model import batch, limited, net, rank_faults, sgd, train

_ROWS = 12


def _counts(rank: int) -> list[int]:
    """How many of its tokens a rank sends to each rank."""
    return [5, 7] if rank == 0 else [8, 4]


def _from_others(sent: list[int]) -> list[int]:
    received = torch.zeros(2, dtype=torch.int64)
    dist.all_to_all_single(received, torch.tensor(sent))
    return [int(size) for size in received]


def tokens_of_two_experts(planted: bool) -> None:
    """Each rank expects as many tokens of each other one, and the router sends what it chooses."""
    rank = limited()
    model = DDP(net(rank))
    train(model, sgd(model), 3)
    sent = _counts(rank)
    expected = [_ROWS // 2] * 2 if planted else _from_others(sent)
    out = torch.empty(sum(expected), 8)
    dist.all_to_all_single(out, batch(_ROWS)[0], expected, sent)


def sizes_of_the_sender(planted: bool) -> None:
    """What a rank sends is taken for what it receives."""
    rank = limited()
    sent = _counts(rank)
    expected = sent if planted else _from_others(sent)
    out = torch.empty(sum(expected), 8)
    dist.all_to_all_single(out, batch(_ROWS)[0], expected, sent)


def lists_of_tensors(planted: bool) -> None:
    """Gradients of rows of a table go to the ranks that own them, as tensors in a list."""
    rank = limited()
    sent = _counts(rank)
    expected = [6, 6] if planted else _from_others(sent)
    outs = [torch.empty(size, 4) for size in expected]
    dist.all_to_all(outs, [torch.randn(size, 4) for size in sent])


FAULTS = rank_faults(
    "parts of an all-to-all that are not as large as expected",
    "collective_mismatch",
    "Ranks disagree on the split sizes",
    tokens_of_two_experts,
    sizes_of_the_sender,
    lists_of_tensors,
)
