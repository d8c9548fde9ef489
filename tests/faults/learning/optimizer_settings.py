"""Trainings whose settings teach a parameter nothing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import Fault

STEPS = 40


def fit(model: nn.Module, optimizer: Any, schedule: Any = None, dtype: Any = None) -> None:
    """Classifies random rows of 12 numbers."""
    for _ in range(STEPS):
        x, y = torch.randn(8, 12, dtype=dtype), torch.randint(3, (8,))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()


def classifier(dtype: Any = None) -> nn.Sequential:
    """A body and a head."""
    torch.manual_seed(0)
    layers = nn.Linear(12, 16, dtype=dtype), nn.GELU(), nn.Linear(16, 3, dtype=dtype)
    return nn.Sequential(*layers)


def backbone_group_frozen(planted: bool) -> None:
    """The body has a learning rate of its own, and is still frozen."""
    model = classifier()
    model[0].requires_grad_(not planted)
    groups = [{"params": model[0].parameters(), "lr": 1e-4}, {"params": model[2].parameters()}]
    fit(model, torch.optim.AdamW(groups, lr=1e-3))


def embedding_frozen_by_from_pretrained(planted: bool) -> None:
    """Embedding.from_pretrained freezes by default; the optimizer has a group for it."""
    torch.manual_seed(0)
    embedding = nn.Embedding.from_pretrained(torch.randn(50, 16), freeze=planted)
    head = nn.Linear(16, 4)
    groups = [
        {"params": embedding.parameters(), "weight_decay": 0.0},
        {"params": head.parameters(), "weight_decay": 0.01},
    ]
    optimizer = torch.optim.Adam(groups, lr=1e-2)
    for _ in range(STEPS):
        tokens, labels = torch.randint(50, (8, 5)), torch.randint(4, (8,))
        F.cross_entropy(head(embedding(tokens).mean(1)), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def encoder_optimizer_of_a_frozen_encoder(planted: bool) -> None:
    """An optimizer of its own steps for an encoder that was frozen for a warm-up."""
    torch.manual_seed(0)
    encoder, decoder = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 6)
    if planted:
        for parameter in encoder.parameters():
            parameter.requires_grad = False
    slow = torch.optim.SGD(encoder.parameters(), lr=1e-3)
    fast = torch.optim.SGD(decoder.parameters(), lr=1e-2)
    for _ in range(STEPS):
        x = torch.randn(4, 7, 6)
        slow.zero_grad()
        fast.zero_grad()
        F.mse_loss(decoder(encoder(x)[0]), x).backward()
        slow.step()
        fast.step()


def rate_of_a_group_is_zero(planted: bool) -> None:
    """Layer-wise decay of the rate, whose exponent counts from the wrong end, ends at zero."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(12, 12) for _ in range(4)], nn.Linear(12, 3))
    groups = [
        {"params": layer.parameters(), "lr": 1e-3 * (i if planted else 5 - i) / 5}
        for i, layer in enumerate(model)
    ]
    fit(model, torch.optim.AdamW(groups))


def exponential_rate_per_batch(planted: bool) -> None:
    """ExponentialLR with a gamma for epochs is stepped for each batch."""
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(
        model,
        optimizer,
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.05 if planted else 0.9),
    )


def warmup_by_integer_division(planted: bool) -> None:
    """A warm-up multiplies by step // warmup, which is 0 as long as the run lasts."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def factor(step: int) -> float:
        return step // 1000 if planted else min(1.0, (step + 1) / 10)

    fit(model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor))


def rate_and_epsilon_exchanged(planted: bool) -> None:
    """The numbers of lr and eps change places."""
    model, numbers = classifier(), (1e-8, 1e-3)
    rate, eps = numbers if planted else reversed(numbers)
    fit(model, torch.optim.AdamW(model.parameters(), lr=rate, eps=eps))


def one_cycle_that_is_over(planted: bool) -> None:
    """A cosine that reaches its end in the third of the run, and stays there."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    total = 4 if planted else STEPS

    def factor(step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * min(1.0, step / total)))

    fit(model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor))


def bfloat16_weights_and_a_small_rate(planted: bool) -> None:
    """A whole model in bfloat16 with the rate of fine-tuning; float32 in the twin."""
    dtype = torch.bfloat16 if planted else torch.float32
    model = classifier(dtype)
    fit(model, torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0), dtype=dtype)


def bfloat16_norms_beside_large_weights(planted: bool) -> None:
    """Scales that begin at 1 never move in bfloat16, while small weights do."""
    dtype = torch.bfloat16
    torch.manual_seed(0)
    norms = torch.float32 if not planted else dtype

    class Block(nn.Module):
        """Normalises, and projects."""

        def __init__(self) -> None:
            super().__init__()
            self.norm, self.out = nn.LayerNorm(12, dtype=norms), nn.Linear(12, 12, dtype=dtype)
            nn.init.normal_(self.out.weight, std=1e-3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.out(self.norm(x.to(self.norm.weight.dtype)).to(dtype))

    model = nn.Sequential(Block(), Block(), Block(), nn.Linear(12, 3, bias=False, dtype=dtype))
    fit(model, torch.optim.Adam(model.parameters(), lr=3e-4), dtype=dtype)


def half_precision_embedding(planted: bool) -> None:
    """SGD on an embedding in float16, whose steps are too small for it."""
    torch.manual_seed(0)
    dtype = torch.float16 if planted else torch.float32
    embedding, head = nn.Embedding(30, 16, dtype=dtype), nn.Linear(16, 3)
    parameters = [*embedding.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-3)
    for _ in range(STEPS):
        loss = F.cross_entropy(head(embedding(torch.arange(30)).float()), torch.arange(30) % 3)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def head_replaced_after_the_optimizer(planted: bool) -> None:
    """A new head for three classes comes after the optimizer was built."""
    model = classifier()
    if not planted:
        model[2] = nn.Linear(16, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if planted:
        model[2] = nn.Linear(16, 3)
    fit(model, optimizer)


def embedding_resized_after_the_optimizer(planted: bool) -> None:
    """The vocabulary grows by two tokens, as resize_token_embeddings() does it."""
    torch.manual_seed(0)

    class Tagger(nn.Module):
        """Tags tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.out = nn.Embedding(20, 8), nn.Linear(8, 3)

        def grow(self) -> None:
            """Two rows more."""
            old, self.tokens = self.tokens, nn.Embedding(22, 8)
            with torch.no_grad():
                self.tokens.weight[:20] = old.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.out(self.tokens(tokens))

    model = Tagger()
    if not planted:
        model.grow()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    if planted:
        model.grow()
    for _ in range(STEPS):
        tokens = torch.randint(22, (16,))
        F.cross_entropy(model(tokens), tokens % 3).backward()
        optimizer.step()
        optimizer.zero_grad()


def weight_normed_after_the_optimizer(planted: bool) -> None:
    """A parametrisation replaces a weight by two others, which the optimizer does not know."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    nn.utils.parametrizations.weight_norm(model[0])
    if not planted:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    fit(model, optimizer)


FROZEN, RATE = "frozen parameters in an optimizer", "no learning rate"
ROUNDED, REPLACED = "updates lost to rounding", "parameters replaced after the optimizer was built"


def _faults(name: str, *forms: Any, says: str = "") -> tuple[Fault, ...]:
    kinds = ("dead_parameter",)
    return tuple(Fault(name, "optimizer settings", kinds, form, says=says) for form in forms)


def scheduler_of_the_first_optimizer(planted: bool) -> None:
    """The optimizer is built again for groups after the scheduler; the twin's scheduler follows."""
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    first = torch.optim.SGD(model.parameters(), lr=0.1)
    groups = [{"params": list(one.parameters())} for one in (model[0], model[2])]
    second = torch.optim.SGD(groups, lr=0.1)
    kind = torch.optim.lr_scheduler.CosineAnnealingLR
    fit(model, second, kind(first if planted else second, STEPS + 1))


def scheduler_before_another_class(planted: bool) -> None:
    """Adam replaces SGD in a copy of the set-up; the twin never steps the scheduler of SGD."""
    model = nn.Linear(12, 3)
    first = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(first, 10)
    fit(model, torch.optim.Adam(model.parameters(), lr=0.01), schedule if planted else None)


def plateau_of_another_optimizer(planted: bool) -> None:
    """ReduceLROnPlateau of the first; the twin first trains with each optimizer."""
    model = nn.Linear(12, 3)
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(first, patience=STEPS)
    if not planted:
        fit(model, first)

    class Steps:
        def step(self) -> None:
            plateau.step(1.0)

    fit(model, second, Steps())


def annealed_over_epochs_and_stepped_per_batch(planted: bool) -> None:
    """T_max is the number of epochs; the twin steps once per epoch, twice up and down."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
    for _ in range(5 if planted else 20):
        for _ in range(10):
            F.cross_entropy(model(torch.randn(8, 12)), torch.randint(3, (8,))).backward()
            optimizer.step()
            optimizer.zero_grad()
            if planted:
                cosine.step()  # named
        if not planted:
            cosine.step()


def annealed_over_warm_restarts(planted: bool) -> None:
    """AdamW with a floor; the twin has the class that is for cycles."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedules = torch.optim.lr_scheduler
    cosine = (
        schedules.CosineAnnealingLR(optimizer, T_max=8, eta_min=1e-5)
        if planted
        else schedules.CosineAnnealingWarmRestarts(optimizer, T_0=8, eta_min=1e-5)
    )
    fit(model, optimizer, cosine)


def annealed_by_a_training_of_two_groups(planted: bool) -> None:
    """T_max counts evaluations; the twin's counts batches."""
    model = classifier()
    groups = [{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[2].parameters()}]
    optimizer = torch.optim.Adam(groups, lr=1e-2)
    length = STEPS // 10 if planted else STEPS
    fit(model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, length))


def adam_made_in_the_step(planted: bool) -> None:
    """A function of one step makes the optimizer; the twin makes one per epoch."""
    model = classifier()

    def step(optimizer: Any) -> None:
        F.cross_entropy(model(torch.randn(8, 12)), torch.randint(3, (8,))).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(8):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(4):
            step(torch.optim.Adam(model.parameters(), lr=1e-3) if planted else optimizer)


def momentum_made_for_each_rate(planted: bool) -> None:
    """The rate is changed by a new optimizer; the twin's rule keeps nothing."""
    model = classifier()
    for number in range(20):
        momentum = 0.9 if planted else 0.0
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / (1 + number), momentum=momentum)
        F.cross_entropy(model(torch.randn(8, 12)), torch.randint(3, (8,))).backward()
        optimizer.step()
        model.zero_grad()


def optimizers_kept_in_a_history(planted: bool) -> None:
    """Each step's RMSprop is kept for a log; the twin adapts the same model to each batch alone."""
    model, history = classifier(), []
    first = {name: one.clone() for name, one in model.state_dict().items()}
    for _ in range(20):
        if not planted:
            model.load_state_dict(first)
        history.append(torch.optim.RMSprop(model.parameters(), lr=1e-3))
        F.cross_entropy(model(torch.randn(8, 12)), torch.randint(3, (8,))).backward()
        history[-1].step()
        model.zero_grad()


FAULTS = (
    *_faults(
        "an annealing given in epochs",
        annealed_over_epochs_and_stepped_per_batch,
        annealed_over_warm_restarts,
        annealed_by_a_training_of_two_groups,
        says="T_max",
    ),
    *_faults(
        "an optimizer made again for each step",
        adam_made_in_the_step,
        momentum_made_for_each_rate,
        optimizers_kept_in_a_history,
        says="is made for each step",
    ),
    *_faults(
        FROZEN,
        backbone_group_frozen,
        embedding_frozen_by_from_pretrained,
        encoder_optimizer_of_a_frozen_encoder,
        says="frozen",
    ),
    *_faults(
        RATE,
        rate_of_a_group_is_zero,
        exponential_rate_per_batch,
        warmup_by_integer_division,
        rate_and_epsilon_exchanged,
        one_cycle_that_is_over,
        says="learning rate",
    ),
    *_faults(
        ROUNDED,
        bfloat16_weights_and_a_small_rate,
        bfloat16_norms_beside_large_weights,
        half_precision_embedding,
        says="rounding",
    ),
    *_faults(
        REPLACED,
        head_replaced_after_the_optimizer,
        embedding_resized_after_the_optimizer,
        weight_normed_after_the_optimizer,
        says="replaced",
    ),
    *_faults(
        "a scheduler of another optimizer",
        scheduler_of_the_first_optimizer,
        scheduler_before_another_class,
        plateau_of_another_optimizer,
        says="that never steps",
    ),
)
