"""What is not stepped, or at a rate at which nothing is learned; and their twins."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from common import STEPS, layers, program, train
from stuck import Parted
from torch import nn


def parted_with(rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model whose body has a learning rate of its own."""
    model = Parted()
    groups = [
        {"params": model.body.parameters(), "lr": rate},
        {"params": model.head.parameters()},
    ]
    return model, torch.optim.SGD(groups, lr=0.05)


@program
def rate_of_zero() -> None:
    """The group of the body has no learning rate."""
    train(*parted_with(0.0), torch.randn(16, 8))


@program
def rate_of_a_hundredth() -> None:
    """It has a small one."""
    train(*parted_with(0.0005), torch.randn(16, 8))


def scheduled(schedule: Callable[[int], float]) -> None:
    """Trains with a learning rate of 0.01 times what the schedule says of a step."""
    model = layers(2, 8, nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    train(model, optimizer, torch.randn(16, 8), each=lambda step: step and scheduler.step())


@program
def rate_decays_per_batch() -> None:
    """By a factor that was meant for an epoch."""
    scheduled(lambda step: 0.02**step)


@program
def rate_decays_to_zero() -> None:
    """In a straight line, at the last step."""
    scheduled(lambda step: 1 - step / (STEPS - 1))


@program
def rate_warms_up() -> None:
    """From zero."""
    scheduled(lambda step: min(1.0, step / 5))


@program
def rate_never_set() -> None:
    """Of all parameters it is zero."""
    scheduled(lambda step: 0.0)


@program
def step_forgotten() -> None:
    """Gradients are computed and zeroed, and no optimizer steps."""
    model = layers(2, 8, nn.ReLU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(torch.randn(16, 8)) - 1).square().mean().backward()


@program
def scheduler_in_place_of_the_optimizer() -> None:
    """The schedule advances, the optimizer does not."""
    model = Parted()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    for _ in range(STEPS):
        nn.functional.l1_loss(model(torch.randn(16, 8)), torch.ones(16, 4)).backward()
        schedule.step()
        optimizer.zero_grad(set_to_none=False)


@program
def step_in_a_branch_not_taken() -> None:
    """Steps are for every hundredth batch, and gradients are zeroed after each."""
    cell, head = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 1)
    optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()])
    for number in range(STEPS):
        loss = head(cell(torch.randn(4, 3, 8))[0]).square().mean()
        loss.backward()
        if (number + 1) % 100 == 0:
            optimizer.step()
        optimizer.zero_grad()


@program
def stepped_in_hooks() -> None:
    """Each parameter is updated as soon as its gradient is there, and the optimizer never steps."""
    model = layers(2, 8, nn.ReLU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.no_grad()
    def update(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.sub_(parameter.grad, alpha=0.1)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(torch.randn(16, 8)) - 1).square().mean().backward()


@program
def stepped_in_hooks_beside_another() -> None:
    """The same, with another optimizer for the head that steps as it should."""
    body, head = layers(2, 8, nn.ReLU), nn.Linear(8, 1)
    fused = torch.optim.SGD(body.parameters(), lr=0.1)
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.01)

    def update(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.data.add_(parameter.grad, alpha=-0.1)

    for parameter in body.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for _ in range(STEPS):
        fused.zero_grad()
        optimizer.zero_grad()
        (head(body(torch.randn(16, 8))) - 1).square().mean().backward()
        optimizer.step()


@program
def stepped_by_hand() -> None:
    """An optimizer that only zeroes gradients; the program takes the step."""
    model = layers(2, 8, nn.ReLU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(torch.randn(16, 8)) - 1).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(parameter.grad, alpha=-0.1)


class Sharpness(torch.optim.Optimizer):
    """Takes a step uphill, and has another optimizer take the step of the gradient there (SAM)."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(parameters, {})
        self.inner = torch.optim.SGD(self.param_groups, lr=0.1)
        self.before: list[torch.Tensor] = []

    @torch.no_grad()
    def climb(self) -> None:
        """Goes uphill, and zeroes the gradients."""
        held = [one for group in self.param_groups for one in group["params"]]
        self.before = [one.clone() for one in held]
        for one in held:
            one.add_(one.grad, alpha=0.05)
        self.zero_grad()

    @torch.no_grad()
    def descend(self) -> None:
        """Goes back and takes the step."""
        held = [one for group in self.param_groups for one in group["params"]]
        for one, other in zip(held, self.before, strict=True):
            one.copy_(other)
        self.inner.step()
        self.zero_grad()


@program
def stepped_by_a_wrapped_optimizer() -> None:
    """The optimizer that is zeroed never steps: one within it holds the same parameters."""
    model = layers(2, 8, nn.ReLU)
    optimizer = Sharpness(model.parameters())
    for _ in range(STEPS):
        x = torch.randn(16, 8)
        (model(x) - 1).square().mean().backward()
        optimizer.climb()
        (model(x) - 1).square().mean().backward()
        optimizer.descend()


@program
def critic_of_a_hinge() -> None:
    """As many samples push the last bias up as down; its weight is behind a parametrization."""
    critic = layers(2, 8, nn.ReLU)
    critic[-1] = nn.Linear(8, 1)
    for place in (0, 2):
        nn.utils.parametrizations.spectral_norm(critic[place])
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        real, made = critic(torch.randn(16, 8) + 0.5), critic(torch.randn(16, 8))
        ((1 - real).relu().mean() + (1 + made).relu().mean()).backward()
        optimizer.step()


@program
def another_model_before() -> None:
    """Trained by hand, and kept with its last gradients while an optimizer trains another one."""
    first, second = (layers(2, 8, nn.ReLU) for _ in range(2))
    first(torch.randn(16, 8)).square().mean().backward()
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.add_(parameter.grad, alpha=-0.1)
    optimizer = torch.optim.SGD(second.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (second(torch.randn(16, 8)) - 1).square().mean().backward()
        optimizer.step()
