"""What threads add to gradients, and what a program asserts of them."""

from __future__ import annotations

import threading

import torch
from common import layers, program, train
from stuck import Parted
from torch import nn

import lanescope.collector as ls


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
    """A compiled model; the program asserts what holds, and what does not."""
    model = Parted()
    compiled = torch.compile(model, backend="aot_eager")
    ls.assert_nonzero_grad(compiled.body)
    ls.assert_finite_grad(compiled)
    ls.assert_nonzero_grad(model.other)
    ls.assert_grad_norm(model.head.weight, most=1e-9, after=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train(compiled, optimizer, torch.randn(16, 8))
