"""What recording gradients and parameters costs, next to torch's clip_grad_norm_ in the same steps.

    python benchmarks/bench_gradients.py

Processor time, one thread: the 4-layer GPT of bench_record, and a model of 10,000 parameters.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import torch
from torch.nn import functional as F

from lanescope.collector import api
from lanescope.collector.hooks.training import gradients

STEPS = 60
SAMPLE_EVERY = 10
PARAMETERS = 10_000


class Clocked:
    """Processor seconds inside functions that it stands in front of."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted under `name`."""
        self.seconds[name] = 0.0

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            result = function(*args, **kwargs)
            self.seconds[name] += time.process_time() - began
            return result

        return timed


def gpt() -> tuple[torch.nn.Module, Callable[[torch.nn.Module], torch.Tensor]]:
    """The example's model, and its loss."""
    from train_gpt import GPT

    torch.manual_seed(0)
    tokens = torch.randint(0, 256, (4, 129))

    def loss(model: torch.nn.Module) -> torch.Tensor:
        logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return GPT(layers=4, dim=256, heads=4, seq=128, dropout=0.0), loss


def many() -> tuple[torch.nn.Module, Callable[[torch.nn.Module], torch.Tensor]]:
    """A model of many small parameters, and its loss."""
    layers = (torch.nn.Linear(32, 32) for _ in range(PARAMETERS // 2))
    model = torch.nn.Sequential(*layers)
    data = torch.randn(256, 32)
    return model, lambda model: model(data).square().mean()


def measure(
    title: str, model: torch.nn.Module, loss: Callable[[torch.nn.Module], torch.Tensor], steps: int
) -> None:
    """Prints the table of one model."""
    clock = Clocked()
    recorded = gradients.Gradients
    originals = {name: vars(recorded)[name] for name in ("record", "after")}
    for name, original in originals.items():
        setattr(recorded, name, clock.of(name, original))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        loss(model).backward()
        clip(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    clip = clock.of("clip_grad_norm_", torch.nn.utils.clip_grad_norm_)
    whole = clock.of("step", step)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            api.record(folder, level="timing", sample_every=SAMPLE_EVERY, activations_every=0),
        ):
            while_warming = SAMPLE_EVERY + 1  # the samples of the first steps are closer together
            for _ in range(while_warming):
                whole()
            clock.seconds.update(dict.fromkeys(clock.seconds, 0.0))
            for _ in range(steps):
                whole()
    finally:
        for name, original in originals.items():
            setattr(recorded, name, original)
    added = clock.seconds["record"] + clock.seconds["after"]
    clipping, total = clock.seconds["clip_grad_norm_"], clock.seconds["step"]
    print(f"{title}: a step takes {total / steps * 1e3:.1f} ms of processor time; parts of it:")
    print(f"  clip_grad_norm_     {clipping / steps * 1e3:7.2f} ms {clipping / total:7.2%}")
    print(f"  recorded gradients  {added / steps * 1e3:7.2f} ms {added / total:7.2%}")


def main() -> None:
    """Prints the tables."""
    torch.set_num_threads(1)
    measure("the 4-layer GPT", *gpt(), steps=STEPS)
    measure(f"{PARAMETERS:,} parameters", *many(), steps=SAMPLE_EVERY)


if __name__ == "__main__":
    main()
