"""Gradients that are left: of the first loss in what a second optimizer trains, or of passes that
run after the step, or before the last zero_grad()."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import Fault, Program
from tests.faults.learning.cut_off import mlp, rows
from tests.faults.learning.order_of_a_step import lost_gradients

STEPS = 12


def net(inputs: int, outputs: int) -> nn.Sequential:
    """Two layers."""
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def adam(*models: nn.Module) -> torch.optim.Optimizer:
    """An optimizer of some models."""
    return torch.optim.Adam([one for model in models for one in model.parameters()], lr=1e-3)


def discriminator_after_the_generator(planted: bool) -> None:
    """Both are zeroed first; the generator's loss leads through the discriminator."""
    torch.manual_seed(0)
    generator, discriminator = net(4, 2), net(2, 1)
    of_generator, of_discriminator = adam(generator), adam(discriminator)
    for _ in range(STEPS):
        of_generator.zero_grad()
        of_discriminator.zero_grad()
        made = generator(torch.randn(16, 4))
        F.softplus(-discriminator(made)).mean().backward()
        of_generator.step()
        if not planted:
            of_discriminator.zero_grad()
        right, wrong = discriminator(torch.randn(16, 2) + 2), discriminator(made.detach())
        (F.softplus(-right) + F.softplus(wrong)).mean().backward()
        of_discriminator.step()  # named


def discriminator_of_two_passes(planted: bool) -> None:
    """The discriminator gets a backward for each kind of samples."""
    torch.manual_seed(0)
    generator, discriminator = net(4, 2), net(2, 1)
    of_generator, of_discriminator = adam(generator), adam(discriminator)
    for _ in range(STEPS):
        of_discriminator.zero_grad()
        made = generator(torch.randn(16, 4))
        if planted:
            discriminator(made).mean().backward()
            of_generator.step()
        for sign, x in ((-1, torch.randn(16, 2) + 2), (1, made.detach())):
            F.softplus(sign * discriminator(x)).mean().backward()
        of_discriminator.step()  # named
        of_generator.zero_grad()
        if not planted:
            discriminator(made).mean().backward()
            of_generator.step()


def critic_after_the_actor(planted: bool) -> None:
    """The actor's loss is what the critic says of its action; the twin freezes it meanwhile."""
    torch.manual_seed(0)
    actor, critic = net(4, 2), net(6, 1)
    of_actor, of_critic = adam(actor), adam(critic)
    for _ in range(STEPS):
        state = torch.randn(16, 4)
        critic.requires_grad_(planted)
        value = critic(torch.cat([state, actor(state).tanh()], 1))
        critic.requires_grad_(True)
        (-value.mean()).backward()
        of_actor.step()
        of_actor.zero_grad()
        action = torch.rand(16, 2)
        gained = (action - state[:, :2]).abs().mean(1, keepdim=True)
        F.mse_loss(critic(torch.cat([state, action], 1)), gained).backward()
        of_critic.step()  # named
        of_critic.zero_grad()


def judge_after_the_encoder(planted: bool) -> None:
    """An encoder that hides a domain, and a judge that is to find it."""
    torch.manual_seed(0)
    encoder, head, judge = net(8, 8), net(8, 3), net(8, 2)
    of_task = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.05)
    of_judge = torch.optim.SGD(judge.parameters(), lr=0.05)
    for _ in range(STEPS):
        x, domain = torch.randn(16, 8), torch.randint(2, (16,))
        for one in (of_task, of_judge):
            one.zero_grad()
        code = encoder(x)
        hidden = F.cross_entropy(judge(code), domain)
        (F.cross_entropy(head(code), x[:, :3].argmax(1)) - 0.1 * hidden).backward()
        of_task.step()
        if not planted:
            judge.zero_grad(set_to_none=False)
        F.cross_entropy(judge(code.detach()), domain).backward()
        of_judge.step()  # named


def table_that_steps_seldom() -> None:
    """Twin: gradients of a table are added up over four steps of the rest."""
    torch.manual_seed(0)
    table, body = nn.Embedding(20, 8), net(8, 3)
    of_table, of_body = adam(table), adam(body)
    for step in range(4 * STEPS):
        words = torch.randint(20, (16,))
        F.cross_entropy(body(table(words)), words % 3).backward()
        of_body.step()
        of_body.zero_grad()
        if step % 4 == 3:
            of_table.step()
            of_table.zero_grad()


def _fault(program: Program, twin: Program | None = None) -> Fault:
    name, says = "gradients that another loss left", "gradients of two losses"
    return Fault(name, "gradients", ("wrong_gradient",), program, twin, says=says)


def step_before_the_last_part(planted: bool) -> None:
    """A batch in four parts; the step comes after the third. The twin steps after the last, and
    looks at the gradient of the input afterwards, at another line."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for part in range(4):
            x, y = rows()
            (F.cross_entropy(model(x), y) / 4).backward()
            if part == 3 - planted:
                optimizer.step()
        if not planted:
            x, y = rows()
            F.cross_entropy(model(x.requires_grad_()), y).backward()


def step_between_losses(planted: bool) -> None:
    """Three losses go back in a function; the step is before the last call. The twin zeroes after
    the step, and so the last pass is the first of the next step."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def back() -> None:
        x, y = rows()
        F.cross_entropy(model(x), y).backward()

    for _ in range(STEPS):
        if planted:
            optimizer.zero_grad()
        back()
        back()
        optimizer.step()
        if not planted:
            optimizer.zero_grad()
        back()


def step_of_a_counter_that_is_late(planted: bool) -> None:
    """A counter steps in every third pass, and another one zeroes two passes later."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number in range(3 * STEPS):
        if number % 3 == (2 if planted else 0):
            optimizer.zero_grad()
        x, y = rows()
        F.cross_entropy(model(x), y).backward()
        if number % 3 == (0 if planted else 2):
            optimizer.step()


def _accumulated(zeroes: Callable[[int], bool], passes: int, median: bool = False) -> None:
    """Steps after every few passes; `zeroes` says before which of them gradients are zeroed;
    `median`: the step takes that of all passes."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    kept: list[list[torch.Tensor]] = []
    for number in range(8 * passes):
        x, y = rows()
        if zeroes(number):
            optimizer.zero_grad()
        (F.cross_entropy(model(x), y) / passes).backward()
        if median:
            kept.append([one.grad.clone() for one in model.parameters() if one.grad is not None])
        if number % passes == passes - 1:
            for one, gradients in zip(model.parameters(), zip(*kept, strict=True), strict=False):
                one.grad = torch.stack(gradients).median(0).values
            kept.clear()
            optimizer.step()


def zeroed_in_the_inner_loop(planted: bool) -> None:
    """Four passes are meant to add up, and each begins with zero_grad(); the twin copies the
    gradients of each."""
    _accumulated(lambda _: True, 4, median=not planted)


def zeroed_before_each_of_two(planted: bool) -> None:
    """So do two; in the twin each step of LBFGS runs several."""
    if planted:
        _accumulated(lambda _: True, 2)
        return
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    x, y = rows()

    def passes() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(passes)


def zeroed_between_parts_of_a_batch(planted: bool) -> None:
    """A batch is cut in parts; the twin attacks its inputs first, in a pass of its own."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        x, y = rows()
        if not planted:
            x.requires_grad_()
            F.cross_entropy(model(x), y).backward()
            assert x.grad is not None
            x = (x + 0.1 * x.grad.sign()).detach()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
        else:
            for part, labels in zip(x.chunk(3), y.chunk(3), strict=True):
                optimizer.zero_grad()
                (F.cross_entropy(model(part), labels) / 3).backward()
        optimizer.step()


FAULTS = (
    _fault(discriminator_after_the_generator, table_that_steps_seldom),
    _fault(discriminator_of_two_passes),
    _fault(critic_after_the_actor),
    _fault(judge_after_the_encoder),
    *lost_gradients(
        "passes after the step",
        "of each stretch from one zero_grad() to the next",
        step_before_the_last_part,
        step_between_losses,
        step_of_a_counter_that_is_late,
    ),
    *lost_gradients(
        "accumulated gradients thrown away",
        "are thrown away",
        zeroed_in_the_inner_loop,
        zeroed_before_each_of_two,
        zeroed_between_parts_of_a_batch,
    ),
)
