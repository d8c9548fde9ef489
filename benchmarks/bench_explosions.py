"""Does `exploding_gradient` part programs whose gradients explode from those that learn?

    python benchmarks/bench_explosions.py [NAME]...     (all programs by default)

Every program is recorded and judged as `lanescope check` does. Of each, a row: the norm of its
gradient at the first step, after clipping; how much larger the gradient of a layer is than near the
loss, at both of the first steps, which is what a finding of cause `backward` goes by; the cause of
the finding, if there is one; and its loss on the same batches before and after the training.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from benchmarks.programs import (
    exploding_networks,
    learning_networks,
    learning_objectives,
    learning_sequences,
)
from benchmarks.programs.trainings import Program, Training
from lanescope.collector import api
from lanescope.webapp.analysis.parameter_history import gradient_rows
from lanescope.webapp.plugins.learning.exploding import GROWN_BACK, LARGE, LARGE_STEPS, exploding
from lanescope.webapp.plugins.learning.gradient_paths import growth, ways
from lanescope.webapp.runs.run import Run, open_run

LEARN = {
    **learning_networks.PROGRAMS,
    **learning_objectives.PROGRAMS,
    **learning_sequences.PROGRAMS,
}
EXPLODE = exploding_networks.PROGRAMS

JUDGED = 8  # batches that a loss is the mean of
FELL = 0.05  # of the loss before: less does not count as learning
USUAL = 3.0  # growth below that is not listed once more


@dataclass(frozen=True)
class Row:
    """What is printed of a program; `growth` is NaN where nothing can be said."""

    name: str
    norm: float
    growth: float
    causes: tuple[str, ...]
    before: float
    after: float

    @property
    def fell(self) -> bool:
        """Whether the program learned."""
        return self.before - self.after > FELL * abs(self.before)

    def __str__(self) -> str:
        causes = ", ".join(self.causes) or "-"
        numbers = f"{self.norm:10.2g}{self.growth:10.2g}  {causes:10}"
        return f"  {self.name:30}{numbers}{self.before:10.4g} -> {self.after:.4g}"


def made(program: Program) -> Training:
    """The training, always with the same weights."""
    torch.manual_seed(0)
    return program()


def loss_of(training: Training) -> float:
    """The mean over batches that are always the same."""
    torch.manual_seed(1)
    return float(np.mean([training.loss().item() for _ in range(JUDGED)]))


def measure(name: str, program: Program) -> Row:
    """Records the program and judges what was recorded."""
    before = loss_of(made(program))  # of its twin, for the recording has the training alone
    with tempfile.TemporaryDirectory() as folder:
        with api.record(folder, level="timing"):
            training = made(program)
            for _ in range(training.steps):
                training.step()
        run = open_run(Path(folder))
        causes = tuple(str(one.evidence["cause"]) for one in exploding(run))
        return Row(name, first_norm(run), growth_of(run), causes, before, loss_of(training))


def first_norm(run: Run) -> float:
    """The norm of the whole gradient that the first call of an optimizer had."""
    rows = gradient_rows(run)
    first = rows[(rows["call"] == rows["call"].iloc[0]) & ~rows["missing"]]
    return float(np.sqrt((first["norm"] ** 2).sum()))


def growth_of(run: Run) -> float:
    """The most that a layer's gradient has, at each of the first steps, of that near the loss."""
    by_layer = growth(gradient_rows(run), ways(run, 0)).iloc[:LARGE_STEPS]
    return float(by_layer.min().max())


def table(title: str, programs: dict[str, Program]) -> None:
    """Prints a row as soon as it is known, and at the end what they come to."""
    print(f"{title:32}{'norm':>10}{'growth':>10}  {'found':10}{'loss':>10}")
    rows = []
    for name, program in programs.items():
        rows.append(measure(name, program))
        print(rows[-1], flush=True)
    found = sum(bool(row.causes) for row in rows)
    large = sum(row.norm > LARGE for row in rows)
    fell = sum(row.fell for row in rows)
    print(f"  of {len(rows)}: {found} found; a norm above {LARGE:g} have {large}; ", end="")
    print(f"the loss of {fell} fell by more than {FELL:.0%}")
    sizes = np.array([row.growth for row in rows])
    beyond = " ".join(f"{one:.2g}" for one in np.sort(sizes[sizes > USUAL]))
    print(f"  growth above {USUAL:g} (a finding: above {GROWN_BACK:g}): {beyond or 'none'}\n")


def main() -> None:
    """Prints a table of the programs that learn, and one of those that explode."""
    torch.set_num_threads(1)
    names = sys.argv[1:] or [*LEARN, *EXPLODE]
    unknown = [name for name in names if name not in LEARN | EXPLODE]
    if unknown:
        sys.exit(f"no program {', '.join(unknown)}; there are {', '.join(LEARN | EXPLODE)}")
    for title, programs in (("learn", LEARN), ("explode", EXPLODE)):
        chosen = {name: one for name, one in programs.items() if name in names}
        if chosen:
            table(title, chosen)


if __name__ == "__main__":
    main()
