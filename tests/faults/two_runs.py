"""Programs that are compared with a baseline: what was changed by mistake, and what was meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import lanescope.collector as ls
from tests.faults.base import Fault, Program

ROWS = 16
NUMERICS = ("--level", "numerics")


class Net(nn.Module):
    """Two layers, a normalisation and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.LayerNorm(16)
        self.second, self.head = nn.Linear(16, 16), nn.Linear(16, 4)
        self.approximate = "none"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.norm(self.first(x)), approximate=self.approximate)
        out: torch.Tensor = self.head(self.second(x).relu())
        return out


def net() -> Net:
    """The same model in each run."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Net()


def batches(order: tuple[int, ...] = tuple(range(10))) -> Iterator[tuple[Any, Any]]:
    """The same samples in each run."""
    numbers = torch.Generator().manual_seed(1)
    x = torch.randn(len(order), ROWS, 8, generator=numbers)
    for place in order:
        yield x[place], (x[place].sum(1) > 0).long()


def train(
    model: Any,
    loss: Callable[[Any, Any], torch.Tensor] = F.cross_entropy,
    optimizer: torch.optim.Optimizer | None = None,
    data: Iterator[tuple[Any, Any]] | None = None,
    autocast: bool = False,
    shown: Callable[[float], float] = float,
) -> None:
    """Trains, and logs a number of each step."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in data or batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            value = loss(model(x), y)
        value.backward()
        optimizer.step()
        ls.value("perplexity", shown(value.item()))


def plain() -> None:
    """The baseline of most."""
    train(net())


# operators that are split ------------------------------------------------------------------------


def norm_by_hand(planted: bool) -> None:
    """The normalisation is written with single operators; its variance is that of a sample."""
    model: Any = net()

    class Norm(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            variance = x.var(-1, keepdim=True, correction=1 if planted else 0)
            return (x - x.mean(-1, keepdim=True)) / (variance + 1e-5).sqrt()

    model.norm = Norm()
    train(model)


def norm_without_weights() -> None:
    """Its baseline."""
    model = net()
    model.norm = nn.LayerNorm(16, elementwise_affine=False)
    train(model)


def product_in_halves(planted: bool) -> None:
    """A product is summed in two halves, and the bias is added to both of them."""
    model: Any = net()
    weight, bias = model.second.weight, model.second.bias

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = weight, bias

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            halves = x[:, :8] @ self.weight[:, :8].T, x[:, 8:] @ self.weight[:, 8:].T
            return halves[0] + halves[1] + self.bias * (2 if planted else 1)

    model.second = Halves()
    train(model)


def loss_by_hand(planted: bool) -> None:
    """The loss is written with single operators, and divides by the wrong number of rows."""
    rows = ROWS + 1 if planted else ROWS

    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return -out.log_softmax(1)[torch.arange(ROWS), y].sum() / rows

    train(net(), loss)


# settings ----------------------------------------------------------------------------------------


def adamw(**settings: Any) -> None:
    """Trains with AdamW."""
    model = net()
    train(model, optimizer=torch.optim.AdamW(model.parameters(), **{"lr": 0.01, **settings}))


def plain_adamw() -> None:
    """The baseline of settings."""
    adamw()


def other_epsilon(planted: bool) -> None:
    """eps of another framework; the twin has the default by name."""
    adamw(eps=1e-3 if planted else 1e-8)


def other_betas(planted: bool) -> None:
    """The second beta of another recipe; the twin steps parameter by parameter."""
    adamw(**({"betas": (0.9, 0.95)} if planted else {"foreach": False}))


def other_order(planted: bool) -> None:
    """Two batches change places; the twin has the same ones."""
    order = (0, 1, 2, 4, 3, 5, 6, 7, 8, 9) if planted else tuple(range(10))
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer=optimizer, data=batches(order))


# values that are logged --------------------------------------------------------------------------


def metric_of_other_units(planted: bool) -> None:
    """A metric that is logged is computed otherwise; gradients are the same."""
    train(net(), shown=lambda value: value * (2 if planted else 1))


def metric_of_the_step_before(planted: bool) -> None:
    """It is logged one step late."""
    seen = [0.0]

    def shown(value: float) -> float:
        seen.append(value)
        return seen[-2] if planted else value

    train(net(), shown=shown)


def metric_rounded(planted: bool) -> None:
    """It is rounded to two digits."""
    train(net(), shown=lambda value: round(value, 2) if planted else value)


# precision and compilation -----------------------------------------------------------------------


def other_activation_in_autocast(planted: bool) -> None:
    """Mixed precision, and a target that moved by one class."""

    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out, (y + planted) % 4)

    train(net(), loss, autocast=True)


def other_activation_compiled(planted: bool) -> None:
    """Compiled, and with the approximate activation."""
    model = net()
    model.approximate = "tanh" if planted else "none"
    train(torch.compile(model, backend="aot_eager"))


def other_epsilon_in_double_precision(planted: bool) -> None:
    """In double precision, and with another epsilon in the normalisation."""
    model = net().double()
    model.norm.eps = 1e-2 if planted else 1e-5
    train(model, data=((x.double(), y) for x, y in batches()))


# random numbers of one run -----------------------------------------------------------------------


class Dropped(Net):
    """With dropout before the head."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.norm(self.first(x)))
        out: torch.Tensor = self.head(F.dropout(x, 0.5, self.training))
        return out


def seeded(before: Callable[[], object] = int) -> None:
    """Makes the model after what `before` does."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    before()
    train(Net())


def dropping(noise: Callable[[], object] = int) -> None:
    """Trains with dropout; `noise` runs before each batch."""

    def noisy() -> Iterator[tuple[Any, Any]]:
        for batch in batches():
            noise()
            yield batch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    train(Dropped(), data=noisy())


def number_before_the_model(planted: bool) -> None:
    """A number is drawn before the weights are. The twin has a generator for it."""
    own = None if planted else torch.Generator().manual_seed(3)
    seeded(lambda: torch.rand(3, generator=own))


def layer_before_the_model(planted: bool) -> None:
    """A layer is made that nothing uses. The twin makes none of random numbers."""
    seeded(lambda: nn.Linear(3, 3) if planted else nn.LayerNorm(3))


def noise_before_the_dropout(planted: bool) -> None:
    """Noise is drawn for each batch and not used. The twin has a generator for it."""
    own = None if planted else torch.Generator().manual_seed(3)
    dropping(lambda: torch.randn(4, generator=own))


def plain_seeded() -> None:
    """The baseline of the first two."""
    seeded()


def plain_dropping() -> None:
    """The baseline of the last one."""
    dropping()


# losses ------------------------------------------------------------------------------------------


def weighed_classes(planted: bool) -> None:
    """Classes of one run have weights."""
    weights = torch.tensor([1.0, 3.0, 1.0, 1.0]) if planted else None
    train(net(), lambda out, y: F.cross_entropy(out, y, weight=weights))


def mean_of_two_means(planted: bool) -> None:
    """Parts of unequal size count alike."""

    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if not planted:
            return F.cross_entropy(out, y)
        means = [F.cross_entropy(out[part], y[part]) for part in (slice(3), slice(3, ROWS))]
        return torch.stack(means).mean()

    train(net(), loss)


def smoothed_targets(planted: bool) -> None:
    """An argument of a function; modules have none that differs."""
    train(net(), lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1 * planted))


def two_run_faults(
    name: str, says: str, *programs: tuple[Program, Program], options: tuple[str, ...] = ()
) -> tuple[Fault, ...]:
    """Forms of a fault: programs, each with its baseline."""
    return tuple(
        Fault(
            name,
            "two runs",
            ("divergence",),
            one,
            says=says,
            baseline=baseline,
            options=options,
            slow=place > 0,
        )
        for place, (one, baseline) in enumerate(programs)
    )


FAULTS = (
    *two_run_faults(
        "an operator split by mistake",
        "differ from the baseline since step 0",
        (norm_by_hand, norm_without_weights),
        (product_in_halves, plain),
        (loss_by_hand, plain),
        options=NUMERICS,
    ),
    *two_run_faults(
        "another setting",
        "differ from the baseline since step",
        (other_epsilon, plain_adamw),
        (other_betas, plain_adamw),
        (other_order, plain_adamw),
    ),
    *two_run_faults(
        "another loss",
        "compare the losses",
        (weighed_classes, plain),
        (mean_of_two_means, plain),
        (smoothed_targets, plain),
    ),
    *two_run_faults(
        "another logged value",
        "he logged value perplexity differs",
        (metric_of_other_units, plain),
        (metric_of_the_step_before, plain),
        (metric_rounded, plain),
    ),
    *two_run_faults(
        "a difference beside another precision or a compiler",
        "differ from the baseline since step 0",
        (other_activation_in_autocast, plain),
        (other_activation_compiled, plain),
        (other_epsilon_in_double_precision, plain),
    ),
    *two_run_faults(
        "random numbers of one run",
        "the run draws random numbers",
        (number_before_the_model, plain_seeded),
        (layer_before_the_model, plain_seeded),
        (noise_before_the_dropout, plain_dropping),
    ),
)
