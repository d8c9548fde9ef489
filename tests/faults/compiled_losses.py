"""Losses of compiled models that get what they are not made for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.faults.base import Fault
from tests.faults.losses import ROOM, fit, mlp

compiled: Callable[[Any], Any] = torch.compile(backend="aot_eager")
"""Captures and differentiates as the default does, and needs no C++ compiler."""


def compiled_model_ends_in_a_sigmoid(planted: bool) -> None:
    """The model is compiled, its loss of logits is not."""
    last = [nn.Sigmoid()] if planted else []
    model = compiled(mlp(*last, outputs=1))
    fit(
        model,
        lambda out, x: F.binary_cross_entropy_with_logits(  # named
            out, (x.sum(1, keepdim=True) > 0).float()
        ),
    )


def compiled_step_with_a_softmax(planted: bool) -> None:
    """Model and loss are compiled as one function."""
    model = mlp()

    @compiled
    def step(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        out = model(x)
        if planted:
            out = out.softmax(-1)
        return F.cross_entropy(out, targets)  # named

    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(12):
        x = torch.randn(32, 12)
        optimizer.zero_grad()
        step(x, x[:, :3].argmax(1)).backward()
        optimizer.step()


def compiled_student_of_probabilities(planted: bool) -> None:
    """The twin's targets are the probabilities of a teacher, in the same compiled function."""
    student, teacher = mlp(), mlp().requires_grad_(False)

    @compiled
    def distil(x: torch.Tensor) -> torch.Tensor:
        scores = student(x).softmax(1) if planted else student(x)
        if planted:
            return F.cross_entropy(scores, x[:, :3].argmax(1))  # named
        return F.cross_entropy(scores, teacher(x).softmax(1))

    optimizer = torch.optim.Adam(student.parameters(), 1e-2)
    for _ in range(12):
        optimizer.zero_grad()
        distil(torch.randn(32, 12)).backward()
        optimizer.step()


FAULTS = tuple(
    Fault("probabilities in compiled code", ROOM, ("wrong_loss",), one, says="gets", slow=True)
    for one in (
        compiled_model_ends_in_a_sigmoid,
        compiled_step_with_a_softmax,
        compiled_student_of_probabilities,
    )
)
