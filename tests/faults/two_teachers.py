"""Programs that are compared with a baseline whose teacher is in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.two_runs import two_run_faults


class _Distilled(nn.Module):
    """A student and its teacher, which is to be in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Linear(8, 16)
        self.teacher = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3)).eval()


def _distil(before: Callable[[_Distilled, int], object]) -> None:
    """Trains a student on what its teacher says, after `before` got both and the step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    both = _Distilled()
    optimizer = torch.optim.SGD(both.student.parameters(), 0.1)
    for step in range(6):
        before(both, step)
        x = torch.randn(16, 8)
        with torch.no_grad():
            target = both.teacher(x)
        optimizer.zero_grad()
        F.mse_loss(both.student(x), target).backward()
        optimizer.step()


def plain_distilled() -> None:
    """The baseline of what follows."""
    _distil(lambda both, step: None)


def teacher_without_eval(planted: bool) -> None:
    """Nothing puts the teacher into evaluation mode."""
    _distil(lambda both, step: both.teacher.train(planted))


def teacher_trained_with_its_student(planted: bool) -> None:
    """train() of the whole before each epoch is for the teacher too."""
    _distil(lambda both, step: both.train() if planted else both.student.train())


def teacher_put_into_training_mode(planted: bool) -> None:
    """After some steps."""

    def change(both: _Distilled, step: int) -> None:
        if step == 3 and planted:
            both.teacher.train()

    _distil(change)


FAULTS = two_run_faults(
    "another mode of a teacher",
    "is called without gradients in training mode",
    (teacher_without_eval, plain_distilled),
    (teacher_trained_with_its_student, plain_distilled),
    (teacher_put_into_training_mode, plain_distilled),
)
