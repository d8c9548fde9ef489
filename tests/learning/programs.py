"""Small trainings, each with one thing that keeps something from learning, and their clean twins.

python programs.py FOLDER          records each into FOLDER/<name>, in one process
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lanescope.collector as ls

STEPS = 12
PROGRAMS: dict[str, Callable[[], None]] = {}


def program(function: Callable[[], None]) -> Callable[[], None]:
    """Adds a program under its name."""
    PROGRAMS[function.__name__] = function
    return function


def train(
    model: Any, optimizer: Any, data: torch.Tensor, steps: int = STEPS, clip: float | None = None,
    each: Callable[[int], None] = lambda step: None,
) -> None:  # fmt: skip
    """Fits the outputs to 1."""
    for step in range(steps):
        each(step)
        (model(data) - 1).square().mean().backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()


def layers(depth: int, width: int, activation: type[nn.Module], **settings: Any) -> nn.Sequential:
    """Linear layers with an activation behind each but the last."""
    parts: list[nn.Module] = []
    for _ in range(depth):
        parts += [nn.Linear(width, width, **settings), activation()]
    return nn.Sequential(*parts[:-1])


# --- gradients that vanish or explode -----------------------------------------------------------


@program
def sigmoids() -> None:
    """Twelve sigmoids in a row: the first layers get nothing."""
    model = layers(12, 8, nn.Sigmoid)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(16, 8))


@program
def residual_sigmoids() -> None:
    """The same with a path around each: they all learn."""

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.inner(x).sigmoid() - 0.5

    model = nn.Sequential(*(Around() for _ in range(12)))
    train(model, torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(16, 8))


@program
def small_and_healthy() -> None:
    """A loss times 1e-9, a single scale beside a wide layer, attention whose key bias gets none."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
            self.norm = nn.LayerNorm(16, bias=False)
            self.scale = nn.Parameter(torch.tensor(1e-3))
            self.wide = nn.Linear(16, 256, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norm(x + self.attention(x, x, x)[0])
            return self.wide(x) * self.scale * 3e-5

    model = Model()
    train(model, torch.optim.Adam(model.parameters(), lr=1e-3), torch.randn(4, 5, 16))


@program
def tiny_weights() -> None:
    """So small that the first layers' gradients, which do rise, stay nothing."""
    model = layers(6, 32, nn.Tanh)
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1e-3)
    train(model, torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(16, 32))


@program
def zero_initialised_branches() -> None:
    """Branches that begin at zero, a layer scale of 1e-6, and a warm-up from a rate of zero."""

    class Branch(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
            self.gamma = nn.Parameter(torch.full((8,), scale))
            if scale == 1:
                nn.init.zeros_(self.last.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.gamma * self.last(torch.relu(self.first(x)))

    model = nn.Sequential(Branch(1.0), Branch(1e-6), Branch(0.0), nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def warm_up(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1.0, step / 4)

    train(model, optimizer, torch.randn(16, 8), each=warm_up)


@program
def rate_too_high() -> None:
    """Each step overshoots by more than the one before."""
    model = nn.Linear(8, 8)
    train(model, torch.optim.SGD(model.parameters(), lr=12.0), torch.randn(16, 8))


@program
def not_a_number() -> None:
    """The root of a negative number, from the fifth step on."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(6):
        out = model(torch.ones(4, 8)).square().mean()
        (out.sqrt() if step < 4 else (-out).sqrt()).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def clipped_and_healthy() -> None:
    """A large norm that is clipped at every step, and falls."""
    model = layers(3, 8, nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train(model, optimizer, 10 * torch.randn(16, 8), clip=0.1)


@program
def large_and_healthy() -> None:
    """A sum over errors that are large themselves; each step changes little."""
    model = layers(2, 8, nn.ReLU)
    data = 100 * torch.randn(256, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        (model(data) - data.sum(1, keepdim=True)).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        optimizer.step()
        optimizer.zero_grad()


@program
def outputs_grow() -> None:
    """Each layer's outputs are ten times the last one's, and so are gradients on their way back."""
    model = layers(9, 32, nn.ReLU)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=3.0)
    train(model, torch.optim.Adam(model.parameters(), lr=1e-4), torch.randn(16, 32))


@program
def clipped_away() -> None:
    """So large from the first step on that clipping leaves next to nothing of it."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train(model, optimizer, 1e5 * torch.randn(16, 8), clip=1.0)


@program
def step_overturns() -> None:
    """The first step leaves nothing of what the model was."""
    model, data = nn.Linear(8, 8), 1e4 * torch.randn(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        (model(data) - 1).abs().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


# --- parameters that do not learn ---------------------------------------------------------------


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
def forgotten_body() -> None:
    """The optimizer was given the head alone; the body is not frozen."""
    model = Parted()
    train(model, torch.optim.SGD(model.head.parameters(), lr=0.05), torch.randn(16, 8))


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

    train(model, torch.optim.SGD(model.head.parameters(), lr=0.05), torch.randn(16, 8),
          each=by_hand)  # fmt: skip


@program
def decayed() -> None:
    """Weight decay far above the gradient, which is 1e-4 of the usual."""
    model = layers(2, 8, nn.Tanh)
    optimizer = torch.optim.AdamW(
        [{"params": model[0].parameters(), "lr": 1e-7, "weight_decay": 2e6},
         {"params": model[2].parameters()}], lr=1e-3, weight_decay=0.01,
    )  # fmt: skip
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


# --- loss scale -----------------------------------------------------------------------------------


def scaled(overflows: Callable[[int], bool], steps: int, scale: float = 2.0**16) -> None:
    """Trains with a scaler; at steps that `overflows` names, a gradient is infinite."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=8)
    for step in range(steps):
        x = torch.ones(2, 4) * (float("inf") if overflows(step) else 1.0)
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@program
def scale_collapses() -> None:
    """As of the tenth step all gradients overflow."""
    scaled(lambda step: step >= 10, 40)


@program
def scale_settles() -> None:
    """A few skips at the start, one now and then later."""
    scaled(lambda step: step < 8 or step % 11 == 0, 60)


@program
def scale_begins_too_high() -> None:
    """It is halved forty times before the first step is taken."""
    scaled(lambda step: step < 40, 80, scale=2.0**60)


# --- threads, and what a program asserts ----------------------------------------------------------


@program
def two_threads() -> None:
    """Threads that share a model run backward at the same time."""
    model = layers(2, 8, nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    own, meeting = list(model.parameters()), threading.Barrier(2)

    def work(scale: float, step: int) -> None:
        loss = (scale * model(torch.ones(4, 8)) - 1).square().mean()
        parts = torch.autograd.grad(loss, own, retain_graph=True)
        meeting.wait()
        loss.backward()
        ls.value("truth", float(torch.stack([part.norm() for part in parts]).norm()))

    for step in range(4):
        threads = [threading.Thread(target=work, args=(scale, step)) for scale in (1.0, 5.0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        optimizer.step()
        optimizer.zero_grad()


@program
def asserted() -> None:
    """A compiled model of which the program asserts what holds, and what does not."""
    model = Parted()
    compiled = torch.compile(model, backend="aot_eager")
    ls.assert_nonzero_grad(compiled.body)
    ls.assert_finite_grad(compiled)
    ls.assert_nonzero_grad(model.other)
    ls.assert_grad_norm(model.head.weight, most=1e-9, after=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train(compiled, optimizer, torch.randn(16, 8))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 2:
        from adapters import PROGRAMS as ADAPTERS

        PROGRAMS |= ADAPTERS
    # What it asserts is looked for in all that the process records after it.
    PROGRAMS["asserted"] = PROGRAMS.pop("asserted")
    for name, run in PROGRAMS.items():
        torch.manual_seed(0)
        with ls.record(Path(sys.argv[1]) / name, level="timing", sample_every=1):
            run()
