"""Programs that learn with large gradients, other than plain regressions.

Policies and critics, generative models, contrast, differential equations.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F

from benchmarks.programs.trainings import Heads, Program, Training, adam, adam_apart, fit, into, mlp

PROGRAMS: dict[str, Program] = {}
program = into(PROGRAMS)


def derivative(of: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """Of each element by its own row, to be differentiated again."""
    found: tuple[torch.Tensor, ...] = torch.autograd.grad(of.sum(), by, create_graph=True)
    return found[0]


@program
def critic() -> Training:
    """Returns in the hundreds, most of them noise."""
    model = mlp(3, 64, nn.Tanh, inputs=4)

    def loss() -> torch.Tensor:
        states = torch.randn(256, 4)
        returns = 500 + 300 * torch.randn(256) + 200 * states[:, 0]
        return F.mse_loss(model(states)[:, 0], returns)

    return fit(adam(model, 1e-2), loss, steps=100)


@program
def policy_gradient() -> Training:
    """REINFORCE with a sum of rewards under noise; the rate of errors is to fall."""
    policy = mlp(3, 64, nn.Tanh, inputs=4, outputs=3)
    optimizer = adam(policy, 1e-2)

    def batch() -> tuple[Categorical, torch.Tensor]:
        states = torch.randn(512, 4)
        return Categorical(logits=policy(states)), (states[:, 0] > 0).long()

    def step() -> None:
        actions, right = batch()
        taken = actions.sample()
        rewards = 100 * (taken == right).float() + 500 * torch.randn(512)
        optimizer.zero_grad()
        (-(actions.log_prob(taken) * rewards).sum()).backward()
        optimizer.step()

    def loss() -> torch.Tensor:
        actions, right = batch()
        errs: torch.Tensor = 1 - actions.log_prob(right).exp().mean()
        return errs

    return Training(step, loss)


@program
def actor_and_critic() -> Training:
    """One body for both; returns in the thousands, and a head for them with a rate to match."""
    model = Heads(mlp(3, 64, nn.Tanh, inputs=4, outputs=64), critic=1, actor=3)

    def loss() -> torch.Tensor:
        states = torch.randn(256, 4)
        values, logits = model(states)
        actions = Categorical(logits=logits)
        taken = actions.sample()
        gained: torch.Tensor = (actions.log_prob(taken) * (taken == 1)).mean()
        return F.mse_loss(values[:, 0], 3000 * (states[:, 0] + 2)) - 1e-3 * gained

    return fit(adam_apart(model, 1e-3, "heads.critic", 1.0), loss)


@program
def diffusion() -> Training:
    """The noise in noisy signals, as a sum over all of their elements."""
    model = mlp(4, 256, nn.SiLU, inputs=65, outputs=64)

    def loss() -> torch.Tensor:
        signal, noise, time = torch.randn(256, 64).cumsum(1), torch.randn(256, 64), torch.rand(256)
        noisy = torch.lerp(signal, noise, time[:, None])
        answer = model(torch.cat([noisy, time[:, None]], 1))
        return F.mse_loss(answer, noise, reduction="sum")

    return fit(adam(model), loss)


@program
def vae() -> Training:
    """A variational autoencoder of pictures of 784 black or white pixels, its loss a sum."""
    encoder, decoder = mlp(3, 128, inputs=784, outputs=16), mlp(3, 128, outputs=784)
    white = torch.rand(784)

    def loss() -> torch.Tensor:
        pictures = torch.bernoulli(white.expand(128, 784))
        mean, log_variance = encoder(pictures).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        error = F.binary_cross_entropy_with_logits(decoder(code), pictures, reduction="sum")
        divergence: torch.Tensor = (mean**2 + log_variance.exp() - 1 - log_variance).sum() / 2
        return error + divergence

    return fit(adam(nn.ModuleList([encoder, decoder])), loss)


@program
def gan() -> Training:
    """Points about (30, 30); the discriminator's loss, a sum, is to fall."""
    generator = mlp(3, 64, nn.LeakyReLU, outputs=2)
    discriminator = mlp(3, 64, nn.LeakyReLU, inputs=2)
    making, judging = adam(generator), adam(discriminator)

    def said(points: torch.Tensor, real: float) -> torch.Tensor:
        logits = discriminator(points)
        wanted = torch.full_like(logits, real)
        return F.binary_cross_entropy_with_logits(logits, wanted, reduction="sum")

    def judged(made: torch.Tensor) -> torch.Tensor:
        return said(30 + 5 * torch.randn(256, 2), 1.0) + said(made.detach(), 0.0)

    def step() -> None:
        made = generator(torch.randn(256, 8))
        judging.zero_grad()
        judged(made).backward()
        judging.step()
        making.zero_grad()
        said(made, 1.0).backward()
        making.step()

    return Training(step, lambda: judged(generator(torch.randn(256, 8))))


@program
def wgan_gradient_penalty() -> Training:
    """Points about (100, 100), and a penalty times 1000 on the critic's gradient by its input."""
    generator, judge = mlp(3, 64, nn.LeakyReLU, outputs=2), mlp(3, 64, nn.LeakyReLU, inputs=2)
    making, judging = adam(generator), adam(judge)

    def judged() -> torch.Tensor:
        real, made = 100 + 50 * torch.randn(256, 2), generator(torch.randn(256, 8)).detach()
        between = torch.lerp(made, real, torch.rand(256, 1)).requires_grad_()
        slopes: torch.Tensor = derivative(judge(between), between).norm(dim=1)
        penalty = (slopes - 1).square().mean()
        worth: torch.Tensor = judge(made).mean() - judge(real).mean()
        return worth + 1e3 * penalty

    def step() -> None:
        judging.zero_grad()
        judged().backward()
        judging.step()
        making.zero_grad()
        (-judge(generator(torch.randn(256, 8))).mean()).backward()
        making.step()

    return Training(step, judged)


@program
def contrast() -> Training:
    """Pairs to be found among 256, at a temperature of 0.001."""
    model = mlp(3, 64, inputs=32, outputs=64)

    def loss() -> torch.Tensor:
        x = torch.randn(256, 32)
        one, other = F.normalize(model(x)), F.normalize(model(x + torch.randn_like(x)))
        return F.cross_entropy(one @ other.T / 1e-3, torch.arange(256), reduction="sum")

    return fit(adam(model), loss)


class Heated(nn.Module):
    """A field, and the coefficient of its equation, which is to be found too."""

    def __init__(self) -> None:
        super().__init__()
        self.field = mlp(4, 64, nn.Tanh, inputs=1)
        self.coefficient = nn.Parameter(torch.tensor(1e-4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.field(x)
        return out


@program
def physics_informed() -> Training:
    """The residual of an equation in units in which its coefficient is 1e-4, times 1e7."""
    model = Heated()

    def loss() -> torch.Tensor:
        x = torch.rand(64, 1).requires_grad_()
        field = model(x)
        curvature = derivative(derivative(field, x), x)
        residual: torch.Tensor = model.coefficient * 1e7 * curvature - field
        return F.mse_loss(field, x.sin()) + residual.square().mean()

    return fit(adam_apart(model, 1e-3, "coefficient", 1e-6), loss)
