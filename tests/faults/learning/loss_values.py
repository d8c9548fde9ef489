"""Losses whose numbers are wrong: of shapes that are broadcast ([N, 1] and [N] become [N, N]), of
targets that the model cannot return, of scores that stay flat, of a ratio that stays 1, of a
divergence with the wrong sign, or of hard decisions."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Normal, kl_divergence

from tests.faults.learning.losses import fit, loss_faults, mlp


def squared_error_of_a_column(planted: bool) -> None:
    """Outputs of shape [N, 1] and targets of [N]."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        out = out if planted else out.squeeze(1)
        return (out - x.sum(1)).square().mean()  # named

    fit(mlp(outputs=1), loss_of)


def value_function_of_a_column(planted: bool) -> None:
    """Returns minus values; the twin compares all outputs with each other, on purpose."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        returns = x.sum(1)
        if planted:
            return 0.5 * (returns - out).pow(2).sum() / len(x)  # named
        scores = out.squeeze(1)
        margins = (scores[:, None] - scores) * (returns[:, None] - returns).sign()
        return (1 - margins).relu().mean()

    fit(mlp(outputs=1), loss_of)


def huber_loss_of_a_column(planted: bool) -> None:
    """torch's own loss, whose warning is lost in the log."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        targets = x.sum(1) if planted else x.sum(1, keepdim=True)
        return F.smooth_l1_loss(out, targets)  # named

    fit(mlp(outputs=1), loss_of)


def centres_beside_a_column(planted: bool) -> None:
    """Outputs and centres that are drawn to the rows: each centre is compared with all of them, on
    purpose, and in the twin nothing else is."""
    model = mlp(outputs=1)
    centres = nn.Parameter(torch.linspace(0.1, 2, 32)[:, None])
    model.register_parameter("centres", centres)

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        far = F.softplus(centres) + 0.1 - x[:, 0]
        out = out if planted else out.squeeze(1)
        return (out - x.sum(1)).square().mean() + far.square().mean()  # named

    fit(model, loss_of)


# targets out of reach ----------------------------------------------------------------------------


def relu_before_a_loss_of_any_sign(planted: bool) -> None:
    """Half of the targets are negative; those of the twin are squared."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        targets = x[:, :3] if planted else x[:, :3].square()
        return F.mse_loss(out, targets)  # named

    fit(mlp(nn.ReLU()), loss_of)


def sigmoid_of_pixels(planted: bool) -> None:
    """An autoencoder of pixels from 0 to 255, and an error that is written out."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        pixels = (x.sigmoid() * 255).round()
        pixels = pixels if planted else pixels / 255
        return (pixels - out.view_as(pixels)).abs().mean()  # named

    fit(mlp(nn.Unflatten(1, (3, 4)), nn.Flatten(), nn.Sigmoid(), outputs=12), loss_of)


def tanh_of_returns(planted: bool) -> None:
    """A critic ends in tanh; the returns of the twin are scaled, up to some noise."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        returns = 4 * x.sum(1) if planted else x.sum(1).tanh() + 0.005 * x[:, 0]
        return 0.5 * (torch.tanh(out[:, 0]) - returns).square().mean()  # named

    fit(mlp(outputs=1), loss_of)


# scores without a temperature --------------------------------------------------------------------


def temperature_as_a_factor(planted: bool) -> None:
    """Two views of each row."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        one, other = F.normalize(out, dim=1), F.normalize(out.roll(1, 1) + out, dim=1)
        scores = one @ other.T * 0.07 if planted else one @ other.T / 0.07
        return F.cross_entropy(scores, torch.arange(len(x)))  # named

    fit(mlp(outputs=16), loss_of)


def classes_of_unit_weights(planted: bool) -> None:
    """A cosine classifier of many classes; the twin has a scale, as ArcFace."""
    model = mlp(outputs=16)
    weights = nn.Parameter(torch.randn(8000, 16))
    model.register_parameter("weights", weights)

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        units = weights / weights.norm(dim=1, keepdim=True)
        scores = F.linear(out / out.norm(dim=1, keepdim=True), units)
        scores = scores if planted else 30.0 * scores
        return F.cross_entropy(scores, (x[:, 0].sigmoid() * 7999).long())  # named

    fit(model, loss_of)


def scores_divided_by_a_large_temperature(planted: bool) -> None:
    """Image and text, and both directions of the loss."""
    model, texts = mlp(outputs=16), nn.Linear(12, 16)
    model[0].register_module("texts", texts)

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        image, text = F.normalize(out, dim=-1), F.normalize(texts(x), dim=-1)
        scores = image @ text.t() / (14.0 if planted else 0.1)
        own = torch.arange(len(x))
        return (F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)) / 2

    fit(model, loss_of)


# ratios of a policy to itself --------------------------------------------------------------------


def _policy(
    model: nn.Module, log_prob: Callable[[torch.Tensor], torch.Tensor], *, planted: bool, swap: bool
) -> None:
    """Two passes over each batch of samples; `log_prob` gets the model's output."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(4):
        x = torch.randn(32, 12)
        weights = x[:, 0] - x[:, 1]
        with torch.no_grad():
            old = log_prob(model(x))
        for _ in range(2):
            new = log_prob(model(x))
            ratio = torch.exp(new - (new.detach() if planted else old))  # named
            clipped = ratio.clamp(0.8, 1.2)
            both = (
                (weights * ratio, weights * clipped)
                if swap
                else (ratio * weights, clipped * weights)
            )
            optimizer.zero_grad()
            (-torch.min(*both).mean()).backward()
            optimizer.step()


def ratio_of_classes_to_themselves(planted: bool) -> None:
    """Actions are classes."""
    actions = torch.arange(32) % 3
    _policy(
        mlp(), lambda out: Categorical(logits=out).log_prob(actions), planted=planted, swap=False
    )


def ratio_of_numbers_to_themselves(planted: bool) -> None:
    """Actions are numbers."""
    actions = torch.linspace(-1, 1, 32)
    _policy(
        mlp(outputs=1),
        lambda out: Normal(out[:, 0], 1.0).log_prob(actions),
        planted=planted,
        swap=True,
    )


def ratio_of_tokens_to_themselves(planted: bool) -> None:
    """Log probabilities of tokens that were gathered."""
    tokens = torch.arange(32)[:, None] % 3
    _policy(
        mlp(),
        lambda out: out.log_softmax(-1).gather(1, tokens).squeeze(1),
        planted=planted,
        swap=False,
    )


def ratio_of_shuffled_samples_to_themselves(planted: bool) -> None:
    """Each pass draws other batches. The twin takes each sample once, with a ratio of 1 on purpose,
    and weighs it by one of a few rewards."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(4):
        x = torch.randn(32, 12)
        weights = x[:, 0] if planted else (x[:, 0] * 4).round()
        for _ in range(2 if planted else 1):
            for rows in torch.randperm(32).split(16):
                new = model(x[rows]).log_softmax(-1)[:, 0]
                ratio = torch.exp(new - new.detach())  # named
                both = ratio * weights[rows], ratio.clamp(0.8, 1.2) * weights[rows]
                optimizer.zero_grad()
                (-torch.min(*both).mean()).backward()
                optimizer.step()


# divergences with the wrong sign -----------------------------------------------------------------


def sign_of_a_divergence(planted: bool) -> None:
    """The minus of -0.5 was lost."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        mean, logvar = out.chunk(2, dim=1)
        sign = 0.5 if planted else -0.5
        divergence = sign * torch.sum(1 + logvar - mean.pow(2) - logvar.exp(), dim=1)
        return F.mse_loss(mean, x[:, :2]) + 0.01 * divergence.mean()

    fit(mlp(outputs=4), loss_of)


def divergence_that_is_subtracted(planted: bool) -> None:
    """The loss is the bound itself, or the minus of it."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        made = Normal(out[:, :2], F.softplus(out[:, 2:]) + 0.1)
        prior = Normal(torch.zeros(2), torch.ones(2))
        divergence = kl_divergence(made, prior).sum(1)
        error = (made.rsample() - x[:, :2]).square().sum(1)
        return (error - divergence if planted else error + divergence).mean()

    fit(mlp(outputs=4), loss_of)


def divergence_of_variances(planted: bool) -> None:
    """Written out with variances, and the bound is minimised; the twin maximises it."""
    model = mlp(outputs=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, maximize=not planted)
    for _ in range(8):
        x = torch.randn(32, 12)
        mean, logits = model(x).chunk(2, dim=1)
        var = F.softplus(logits) + 1e-3
        divergence = 0.5 * (var + mean**2 - 1 - torch.log(var)).sum(1)
        optimizer.zero_grad()
        (-(mean - x[:, :2]).square().sum(1) - divergence).mean().backward()
        optimizer.step()


# texts that are too long -------------------------------------------------------------------------


def _aligned(lengths: Callable[[int], torch.Tensor], *, positions: int, labels: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(12, 6)
    loss, targets = nn.CTCLoss(zero_infinity=True), torch.arange(4 * labels).view(4, labels) % 5 + 1

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        made = out.view(8, 4, 6).log_softmax(-1)
        given = torch.full((4,), positions)
        value: torch.Tensor = loss(made, targets, given, lengths(labels))  # named
        return value

    fit(model, loss_of)


def more_labels_than_positions(planted: bool) -> None:
    """The convolutions left fewer positions than the text has letters."""
    _aligned(lambda labels: torch.full((4,), labels), positions=8, labels=10 if planted else 3)


def lengths_of_inputs_in_other_units(planted: bool) -> None:
    """The lengths of the inputs are given after another reduction."""
    _aligned(lambda labels: torch.full((4,), labels), positions=2 if planted else 8, labels=4)


def lengths_with_the_padding(planted: bool) -> None:
    """The lengths of the targets are those of the padded rows, in half of the samples."""
    _aligned(
        lambda labels: torch.tensor([labels, 3, labels, 2] if planted else [4, 3, 4, 2]),
        positions=8,
        labels=9,
    )


# hard decisions ----------------------------------------------------------------------------------


def dice_of_classes(planted: bool) -> None:
    """The overlap of what argmax chose."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        targets = x[:, :3].argmax(1)
        wanted = F.one_hot(targets, 3)
        chosen = F.one_hot(out.argmax(1), 3) if planted else out.softmax(1)  # named
        dice = 2 * (chosen * wanted).sum() / (chosen.sum() + wanted.sum())
        return F.cross_entropy(out, targets) + 1 - dice

    fit(mlp(), loss_of)


def threshold_of_a_sigmoid(planted: bool) -> None:
    """The share of wrong labels, as a penalty; the twin adds a weight of the labels themselves."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        labels = (x[:, :3] > 0).float()
        found = (out.sigmoid() > 0.5).float() if planted else (x[:, 3:6] > 0.5).float()  # named
        wrong = (found - labels).abs().mean()
        return F.binary_cross_entropy_with_logits(out, labels) + 0.5 * wrong

    fit(mlp(), loss_of)


def rate_of_active_units(planted: bool) -> None:
    """How many units are used, as a penalty of sparsity; the twin adds a remainder to
    each count, as adaptive computation time does."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        codes = out.relu()
        used = codes.gt(0).float().mean(1)  # named
        used = used.mean() if planted else (used + codes.sigmoid().mean(1)).mean()
        return F.mse_loss(codes, x[:, :3].abs()) + 0.1 * used

    fit(mlp(), loss_of)


FAULTS = (
    *loss_faults(
        "a loss that is broadcast",
        "wrong_loss",
        "are broadcast to",
        squared_error_of_a_column,
        value_function_of_a_column,
        huber_loss_of_a_column,
        centres_beside_a_column,
    ),
    *loss_faults(
        "targets out of reach",
        "wrong_loss",
        "cannot come near them",
        relu_before_a_loss_of_any_sign,
        sigmoid_of_pixels,
        tanh_of_returns,
    ),
    *loss_faults(
        "scores that stay flat",
        "wrong_loss",
        "stays flat",
        temperature_as_a_factor,
        classes_of_unit_weights,
        scores_divided_by_a_large_temperature,
    ),
    *loss_faults(
        "a ratio that stays 1",
        "wrong_loss",
        "is exactly 1",
        ratio_of_classes_to_themselves,
        ratio_of_numbers_to_themselves,
        ratio_of_tokens_to_themselves,
        ratio_of_shuffled_samples_to_themselves,
    ),
    *loss_faults(
        "a divergence with the wrong sign",
        "wrong_loss",
        "no least value",
        sign_of_a_divergence,
        divergence_that_is_subtracted,
        divergence_of_variances,
    ),
    *loss_faults(
        "texts that are too long",
        "wrong_loss",
        "more labels than positions",
        more_labels_than_positions,
        lengths_of_inputs_in_other_units,
        lengths_with_the_padding,
    ),
    *loss_faults(
        "terms of hard decisions",
        "wrong_loss",
        "passes no gradient",
        dice_of_classes,
        threshold_of_a_sigmoid,
        rate_of_active_units,
    ),
)
