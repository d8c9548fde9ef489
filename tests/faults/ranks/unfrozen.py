"""Models of two ranks that are wrapped while some of their parameters are frozen."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.faults.ranks.one_model import Net, batch, begin, net, rank_faults, sgd

_STEPS = 24


def _train(planted: bool, freeze: Callable[[Net], list[nn.Module]], *, at: tuple[int, ...]) -> None:
    """Trains, and unfreezes the next module that `freeze` returned at each of some steps."""
    model = net(begin())
    frozen = freeze(model)
    for module in frozen:
        module.requires_grad_(False)
    wrapped, optimizer = DDP(model), sgd(model, 0.05)
    for step in range(_STEPS):
        if step in at:
            frozen.pop().requires_grad_(True)
            if not planted:
                wrapped = DDP(model)
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        optimizer.step()


def backbone_after_the_head(planted: bool) -> None:
    """Two stages of fine-tuning."""
    _train(planted, lambda model: [model.body], at=(6,))


def layer_by_layer(planted: bool) -> None:
    """The layers join one after the other, from the head on."""
    _train(planted, lambda model: [model.body, model.middle], at=(4, 9))


def head_joins_late(planted: bool) -> None:
    """A head is trained once the layers below it have settled."""
    _train(planted, lambda model: [model.head], at=(8,))


FAULTS = rank_faults(
    "parameters that are unfrozen after their model was wrapped",
    "rank_divergence",
    "frozen when the model was wrapped",
    backbone_after_the_head,
    layer_by_layer,
    head_joins_late,
)
