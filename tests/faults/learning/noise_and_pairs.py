"""Losses that compare a sample with itself, an output with noise that is not in the input, or mixed
rows with the labels of others."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import Fault

STEPS, ROWS, WIDTH = 8, 16, 8


def fit(model: nn.Module, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Trains for some steps on data that does not change."""
    data = torch.randn(ROWS, WIDTH)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        loss = loss_of(data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def net(width: int = WIDTH) -> nn.Module:
    """Two layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, WIDTH))


# pairs of a sample with itself -------------------------------------------------------------------

PARTNERS = torch.arange(2 * ROWS).roll(ROWS)


def views(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Two noisy views of each sample, encoded."""
    both = torch.cat([x + 0.1 * torch.randn_like(x) for _ in range(2)])
    return F.normalize(model(both), dim=1)


def similarities_with_themselves(planted: bool) -> None:
    """The diagonal is not hidden."""
    model = net()

    def loss(x: torch.Tensor) -> torch.Tensor:
        z = views(model, x)
        scores = z @ z.T / 0.1
        if not planted:
            scores.fill_diagonal_(float("-inf"))
        return F.cross_entropy(scores, PARTNERS)  # named

    fit(model, loss)


def products_with_themselves(planted: bool) -> None:
    """The logarithm is taken by hand; embeddings are not normalised. The twin leaves it out."""
    model = net()
    others = ~torch.eye(2 * ROWS, dtype=torch.bool)

    def loss(x: torch.Tensor) -> torch.Tensor:
        z = model(torch.cat([x, x.flip(1)]))
        scores = torch.mm(z, z.t())
        if not planted:
            scores = scores[others].view(2 * ROWS, -1)
            return F.nll_loss(scores.log_softmax(-1), (PARTNERS - 1) % (2 * ROWS - 1))
        return F.nll_loss(scores.log_softmax(-1), PARTNERS)  # named

    fit(model, loss)


def sums_of_products_with_themselves(planted: bool) -> None:
    """einsum instead of a product of matrices."""
    model = net()
    hidden = torch.eye(2 * ROWS) * 1e9

    def loss(x: torch.Tensor) -> torch.Tensor:
        z = views(model, x)
        scores = torch.einsum("nd,md->nm", z, z) * 10.0
        return F.cross_entropy(scores if planted else scores - hidden, PARTNERS)  # named

    fit(model, loss)


def two_encoders() -> None:
    """Pairs of two views: the targets are on the diagonal."""
    model = net()

    def loss(x: torch.Tensor) -> torch.Tensor:
        first, second = views(model, x).chunk(2)
        return F.cross_entropy(first @ second.T / 0.1, torch.arange(ROWS))

    fit(model, loss)


# views that are the same -------------------------------------------------------------------------


def _pairs(model: nn.Module, two: Callable[[torch.Tensor], Any], key: Any = None) -> None:
    """Learns to find the second view of each sample; `key` encodes it."""

    def loss(x: torch.Tensor) -> torch.Tensor:
        first, second = two(x)
        queries, keys = F.normalize(model(first), dim=1), F.normalize((key or model)(second), dim=1)
        return F.cross_entropy(queries @ keys.T / 0.1, torch.arange(ROWS))  # named

    fit(model, loss)


def noisy(x: torch.Tensor, seed: int) -> torch.Tensor:
    """A view that a seed decides."""
    return x + 0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))


def views_of_one_seed(planted: bool) -> None:
    """Each view has a generator of its own, and both the same seed."""
    seeds = iter(range(100))

    def two(x: torch.Tensor) -> Any:
        seed = next(seeds)
        return noisy(x, seed), noisy(x, seed if planted else seed + 1000)

    _pairs(net(), two)


def view_used_twice(planted: bool) -> None:
    """The transform runs once; the twin relies on dropout."""
    model = nn.Sequential(nn.Dropout(0.0 if planted else 0.2), net())

    def two(x: torch.Tensor) -> Any:
        view = x + 0.3 * torch.randn_like(x)
        return view, view

    _pairs(model, two)


def view_after_a_seed(planted: bool) -> None:
    """A transform that seeds torch; the twin's keys are of another encoder, as yet the same one."""
    model = net()

    def two(x: torch.Tensor) -> Any:
        for _ in range(2):
            if planted:
                torch.manual_seed(4)
            yield x + 0.3 * torch.randn_like(x)

    _pairs(model, two, None if planted else copy.deepcopy(model).requires_grad_(False))


# noise that is not in the input ------------------------------------------------------------------


def noise_is_drawn_twice(planted: bool) -> None:
    """The function that adds noise draws its own."""
    model = net()

    def noisy(x: torch.Tensor, share: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        noise = torch.randn_like(x) if noise is None else noise
        return share.sqrt() * x + (1 - share).sqrt() * noise

    def loss(x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(x)
        inputs = noisy(x, torch.rand(ROWS, 1), None if planted else noise)
        return F.mse_loss(model(inputs), noise)  # named

    fit(model, loss)


def noise_of_the_loss(planted: bool) -> None:
    """The loss draws; differences are squared by hand."""
    model = net()

    def loss(x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(ROWS, WIDTH)
        outputs = model(x + 0.5 * noise)
        target = torch.randn(ROWS, WIDTH) if planted else noise
        return (outputs - target).pow(2).mean()  # named

    fit(model, loss)


def noise_in_place(planted: bool) -> None:
    """Noise is added in place, with another loss."""
    model = net()

    def loss(x: torch.Tensor) -> torch.Tensor:
        noise = torch.empty_like(x).normal_()
        inputs = x.clone().mul_(0.8).add_(noise, alpha=0.6)
        if planted:
            noise = torch.empty_like(x).normal_()
        return F.smooth_l1_loss(model(inputs), noise)  # named

    fit(model, loss)


def velocity_of_noise() -> None:
    """The target is the noise less the data, as in flow matching."""
    model = net()

    def loss(x: torch.Tensor) -> torch.Tensor:
        noise, time = torch.randn_like(x), torch.rand(ROWS, 1)
        return F.mse_loss(model((1 - time) * x + time * noise), noise - x)

    fit(model, loss)


def numbers_for_a_benchmark() -> None:
    """Inputs and targets are random numbers."""
    model = net()
    fit(model, lambda _: F.mse_loss(model(torch.randn(ROWS, WIDTH) * 2), torch.randn(ROWS, WIDTH)))


# penalties of gradients --------------------------------------------------------------------------


def penalty_of_a_critic(planted: bool) -> None:
    """The penalty of a Wasserstein GAN."""
    critic = net()

    def loss(x: torch.Tensor) -> torch.Tensor:
        fake = torch.randn_like(x)
        middle = ((x + fake) / 2).requires_grad_()
        (grads,) = torch.autograd.grad(critic(middle).sum(), middle, create_graph=not planted)
        penalty = (grads.norm(2, dim=1) - 1).pow(2).mean()  # named
        return critic(fake).mean() - critic(x).mean() + 10 * penalty

    fit(critic, loss)


def penalty_of_inputs(planted: bool) -> None:
    """The gradient of the loss by the input, as a penalty of a classifier."""
    model = net()

    def loss(x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        value = F.cross_entropy(model(x), torch.arange(ROWS) % WIDTH)
        (grads,) = torch.autograd.grad(value, [x], create_graph=not planted, retain_graph=True)
        return value + 0.1 * grads.square().sum()  # named

    fit(model, loss)


def penalty_that_is_detached(planted: bool) -> None:
    """The graph is made, and detach() takes it away."""
    model = net()

    def loss(x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        out = model(x)
        (grads,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        grads = grads.detach() if planted else grads
        return torch.add(out.pow(2).mean(), grads.abs().mean(), alpha=0.5)  # named

    fit(model, loss)


def inputs_against_the_model() -> None:
    """Training on inputs that a gradient has changed."""
    model = net()
    labels = torch.arange(ROWS) % WIDTH

    def loss(x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        (grads,) = torch.autograd.grad(F.cross_entropy(model(x), labels), x)
        changed = (x + 0.1 * grads.sign()).detach()
        return F.cross_entropy(model(x.detach()), labels) + F.cross_entropy(model(changed), labels)

    fit(model, loss)


# rows that are mixed -----------------------------------------------------------------------------

MANY = 64


def mixed(
    planted: bool, mix: Callable[..., tuple[torch.Tensor, float]], *, drawn: bool = False
) -> None:
    """Trains on mixtures of a batch with itself, in another order; `mix` gets model, rows and the
    order of the others. Targets have the same order, or one of their own. `drawn`: batches are new
    numbers, not rows of a data set in an order by chance."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 2))
    data = torch.randn(MANY, WIDTH)
    labels = (data.sum(1) > 0).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(2):
        for rows in torch.randperm(MANY).split(ROWS):
            order = torch.randperm(ROWS)
            x = torch.randn(ROWS, WIDTH) if drawn else data[rows]
            out, share = mix(model, x, order)
            targets = (x.sum(1) > 0).long() if drawn else labels[rows]
            others = targets[torch.randperm(ROWS) if planted else order]  # named
            first, second = F.cross_entropy(out, targets), F.cross_entropy(out, others)
            optimizer.zero_grad()
            (share * first + (1 - share) * second).backward()
            optimizer.step()


def _of_sums(model: Any, x: torch.Tensor, order: torch.Tensor) -> tuple[torch.Tensor, float]:
    return model(0.7 * x + 0.3 * x[order]), 0.7


def drawn_samples_are_mixed(planted: bool) -> None:
    """Sums of two samples that were just drawn."""
    mixed(planted, _of_sums, drawn=True)


def drawn_samples_are_chosen(planted: bool) -> None:
    """Each sample is one of the two, by its first number."""

    def mix(model: Any, x: torch.Tensor, order: torch.Tensor) -> tuple[torch.Tensor, float]:
        others = x.index_select(0, order)
        return model(torch.where(x[:, :1] > 0, x, others)), 0.5

    mixed(planted, mix, drawn=True)


def drawn_hidden_rows_are_mixed(planted: bool) -> None:
    """Sums of hidden rows of samples that were just drawn."""

    def mix(model: Any, x: torch.Tensor, order: torch.Tensor) -> tuple[torch.Tensor, float]:
        hidden = model[0](x)
        return model[2](model[1](torch.lerp(hidden, hidden[order], 0.2))), 0.8

    mixed(planted, mix, drawn=True)


def samples_are_mixed(planted: bool) -> None:
    """Mixup: sums of two samples."""
    mixed(planted, _of_sums)


def features_are_exchanged(planted: bool) -> None:
    """CutMix: some features of another sample."""

    def mix(model: Any, x: torch.Tensor, order: torch.Tensor) -> tuple[torch.Tensor, float]:
        kept = torch.arange(WIDTH) < WIDTH // 2
        return model(torch.where(kept, x, x[order])), 0.5

    mixed(planted, mix)


def hidden_rows_are_mixed(planted: bool) -> None:
    """Manifold mixup: sums of hidden rows."""

    def mix(model: Any, x: torch.Tensor, order: torch.Tensor) -> tuple[torch.Tensor, float]:
        hidden = model[1](model[0](x))
        return model[2](0.6 * hidden + 0.4 * hidden[order]), 0.6

    mixed(planted, mix)


FAULTS = (
    *(
        Fault("pairs with themselves", "learning", ("wrong_loss",), program, twin, "with itself")
        for program, twin in (
            (similarities_with_themselves, two_encoders),
            (products_with_themselves, None),
            (sums_of_products_with_themselves, None),
        )
    ),
    *(
        Fault("views that are the same", "learning", ("wrong_loss",), program, says="same numbers")
        for program in (views_of_one_seed, view_used_twice, view_after_a_seed)
    ),
    *(
        Fault("noise of its own", "learning", ("wrong_loss",), program, twin, "not in the input")
        for program, twin in (
            (noise_is_drawn_twice, None),
            (noise_of_the_loss, velocity_of_noise),
            (noise_in_place, numbers_for_a_benchmark),
        )
    ),
    *(
        Fault("constant penalty", "learning", ("wrong_loss",), program, twin, "trains nothing")
        for program, twin in (
            (penalty_of_a_critic, inputs_against_the_model),
            (penalty_of_inputs, None),
            (penalty_that_is_detached, None),
        )
    ),
    *(
        Fault("mixed apart", "learning", ("wrong_loss",), program, says="another random")
        for program in (
            samples_are_mixed,
            features_are_exchanged,
            hidden_rows_are_mixed,
            drawn_samples_are_mixed,
            drawn_samples_are_chosen,
            drawn_hidden_rows_are_mixed,
        )
    ),
)
