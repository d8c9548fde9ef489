"""Parameters that do not learn, or seem not to."""

from __future__ import annotations

import copy

import torch
from common import STEPS, layers, program, train
from torch import nn


class Parted(nn.Module):
    """A body, a head that is used, and one that may not be."""

    def __init__(self, both: bool = False) -> None:
        super().__init__()
        self.body, self.head, self.other = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)
        self.both, self.turn = both, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.turn += 1
        head = self.other if self.both and self.turn % 3 == 0 else self.head
        return head(self.body(x))


@program
def unused_head() -> None:
    """A head that nothing calls, in the optimizer."""
    model = Parted()
    train(model, torch.optim.SGD(model.parameters(), lr=0.05), torch.randn(16, 8))


class Parts(nn.Module):
    """Is never called itself, its layers are."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.neck, self.head = (nn.Linear(8, 8) for _ in range(3))


@program
def layers_called_alone() -> None:
    """All of them learn."""
    parts = Parts()
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.1)
    train(lambda x: parts.head(parts.neck(parts.body(x))), optimizer, torch.randn(16, 8))


@program
def layer_detached() -> None:
    """One of them gets no gradient, and has the parameters' names of the others."""
    parts = Parts()
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.1)
    train(lambda x: parts.head(parts.neck(parts.body(x).detach())), optimizer, torch.randn(16, 8))


@program
def heads_in_turn() -> None:
    """Two heads, the second every third step."""
    model = Parted(both=True)
    train(model, torch.optim.SGD(model.parameters(), lr=0.05), torch.randn(16, 8))


@program
def frozen_body() -> None:
    """Frozen layers that the optimizer holds all the same, one of them unfrozen in between."""
    model = layers(3, 8, nn.Tanh)
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def unfreeze(step: int) -> None:
        if step == 6:
            model[2].requires_grad_(True)

    train(model, optimizer, torch.randn(16, 8), each=unfreeze)


@program
def dead_relu() -> None:
    """A bias so low that no unit of the first layer ever fires."""
    model = layers(2, 8, nn.ReLU)
    bias = model[0].bias
    assert isinstance(bias, torch.Tensor)
    nn.init.constant_(bias, -100.0)
    train(model, torch.optim.SGD(model.parameters(), lr=0.05), torch.randn(16, 8))


@program
def margin_kept() -> None:
    """A hinge that all samples satisfy after a step: nothing is left to be learned."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    for _ in range(STEPS):
        (1 - model(torch.ones(4, 8))).clamp(min=0).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def minimum_reached() -> None:
    """Gradients shrink to the rounding of float32, and then are zero: the fit is exact."""
    model = nn.Linear(8, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    for _ in range(80):
        optimizer.zero_grad()
        (model.weight - 3).square().sum().backward()
        optimizer.step()


@program
def forgotten_body() -> None:
    """The optimizer was given the head alone; the body is not frozen."""
    model = Parted()
    train(model, torch.optim.SGD(model.head.parameters(), lr=0.05), torch.randn(16, 8))


class Listed(nn.Module):
    """Keeps its blocks in a plain list: they are in none of its parameters()."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = [nn.Linear(8, 8) for _ in range(3)], nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).tanh()
        return self.head(x)


@program
def blocks_in_a_list() -> None:
    """Nothing trains them."""
    model = Listed()
    train(model, torch.optim.SGD(model.parameters(), lr=0.05), torch.randn(16, 8))


@program
def blocks_in_a_list_and_the_optimizer() -> None:
    """All of them are trained."""
    model = Listed()
    blocks = [one for block in model.blocks for one in block.parameters()]
    train(model, torch.optim.SGD([*model.parameters(), *blocks], lr=0.05), torch.randn(16, 8))


@program
def layer_made_late() -> None:
    """A layer that its model gets after its first call, and the optimizer after that."""
    model = layers(2, 8, nn.Tanh)
    model(torch.randn(16, 8))
    model.append(nn.Linear(8, 8))
    train(model, torch.optim.SGD(model.parameters(), lr=0.05), torch.randn(16, 8))


@program
def trained_by_hand() -> None:
    """The body is trained without an optimizer; a copy of it follows, and is never trained."""
    model, average = Parted(), Parted()

    def by_hand(step: int) -> None:
        with torch.no_grad():
            average(torch.ones(1, 8))
            for parameter in model.body.parameters():
                if parameter.grad is not None:
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None

    train(
        model, torch.optim.SGD(model.head.parameters(), lr=0.05), torch.randn(16, 8), each=by_hand
    )


@program
def decayed() -> None:
    """Weight decay far above the gradient, which is 1e-4 of the usual."""
    model = layers(2, 8, nn.Tanh)
    optimizer = torch.optim.AdamW(
        [
            {"params": model[0].parameters(), "lr": 1e-7, "weight_decay": 2e6},
            {"params": model[2].parameters()},
        ],
        lr=1e-3,
        weight_decay=0.01,
    )
    train(model, optimizer, torch.randn(16, 8))


@program
def unused_rows() -> None:
    """An embedding most of whose rows no token uses."""
    model = nn.Sequential(nn.Embedding(5000, 8), nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    train(model, optimizer, torch.tensor([1, 2, 3]))


@program
def sparse_rows() -> None:
    """An embedding with sparse gradients, in which each token's row stands several times."""
    model = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, torch.tensor([1, 2, 2, 3, 3, 3]))


@program
def clipped_away() -> None:
    """What clipping leaves changes nothing."""
    model = layers(2, 8, nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train(model, optimizer, torch.randn(16, 8), clip=1e-9)


@program
def rounded_away() -> None:
    """Steps of less than half of the last bit."""
    model = layers(3, 8, nn.Tanh).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    train(model, optimizer, torch.randn(16, 8, dtype=torch.bfloat16))


@program
def not_rounded_away() -> None:
    """The same numbers, and larger steps; a layer that a rate of zero keeps as it is."""
    model = layers(3, 8, nn.Tanh).to(torch.bfloat16)
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2:].parameters()}]
    train(model, torch.optim.SGD(groups, lr=0.1), torch.randn(16, 8, dtype=torch.bfloat16))


@program
def written_back() -> None:
    """The first weights are loaded before each step."""
    model = layers(2, 8, nn.Tanh)
    first = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    train(model, optimizer, torch.randn(16, 8), each=lambda step: model.load_state_dict(first))


@program
def kept_within_bounds() -> None:
    """Weights are cut off at a bound after each step, and stay there from the first on."""
    model = nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)

    def cut(step: int) -> None:
        if step:
            with torch.no_grad():
                model.weight.clamp_(-0.01, 0.01)

    train(model, optimizer, torch.ones(16, 8), each=cut)


@program
def gradients_let_go() -> None:
    """zero_grad() between backward and the step."""
    model = layers(2, 8, nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    train(model, optimizer, torch.randn(16, 8), before=optimizer.zero_grad)


@program
def copied_after_the_optimizer() -> None:
    """The optimizer holds what the model was before it was copied."""
    model = layers(2, 8, nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    train(copy.deepcopy(model), optimizer, torch.randn(16, 8))


@program
def closures() -> None:
    """Gradients are there within the step alone."""
    model, data = layers(2, 8, nn.Tanh), torch.randn(16, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def closure() -> float:
        loss = (model(data) - 1).square().mean()
        loss.backward()
        return float(loss.detach())

    for _ in range(STEPS):
        optimizer.step(closure)
        optimizer.zero_grad()


@program
def tasks_by_turns() -> None:
    """Two heads, each with a factor of 0 for 15 steps at a time."""
    model, data = Parted(), torch.randn(16, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(60):
        first = float(step // 15 % 2 == 0)
        hidden = model.body(data)
        loss = first * (model.head(hidden) - 1).square().mean()
        (loss + (1 - first) * (model.other(hidden) - 1).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


def without_its_body(stops: int, *, freezes: bool, again: int = 1000) -> None:
    """From one step on, up to another, the body runs under no_grad, or is frozen."""
    body, head = nn.Linear(8, 8), nn.Linear(8, 8)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.05)
    for step in range(32):
        off = stops <= step < again
        body.requires_grad_(not (off and freezes))
        with torch.set_grad_enabled(not off):
            features = body(torch.randn(16, 8))
        loss = head(features).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@program
def stops_half_way() -> None:
    """The body learns up to step 12, and is still meant to."""
    without_its_body(12, freezes=False)


@program
def freezes_half_way() -> None:
    """It is frozen on purpose."""
    without_its_body(12, freezes=True)


@program
def pauses_half_way() -> None:
    """It pauses for a dozen steps, and then learns again."""
    without_its_body(12, freezes=False, again=26)


@program
def gradients_of_the_input() -> None:
    """Saliency of a fixed model: no optimizer."""
    model = layers(2, 8, nn.ReLU)
    for _ in range(STEPS):
        x = torch.randn(16, 8, requires_grad=True)
        model(x).sum().backward()
        model.zero_grad()


@program
def one_long_accumulation() -> None:
    """Gradients of many batches add up, and the program ends before the step."""
    model = layers(2, 8, nn.ReLU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    for _ in range(STEPS):
        (model(torch.randn(16, 8)) - 1).square().mean().backward()
