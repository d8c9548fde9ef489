"""Programs that are compared with a baseline, and begin with something else than it does, compute
something else between two modules, load their data otherwise or share their batches out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from tests.faults.two_runs import Net, train, two_run_faults


def _with(change: Callable[[Any], object], loss: Any = F.cross_entropy) -> None:
    """Trains a model with dropout, after `change` got it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = Net()
    model.norm = nn.Sequential(nn.LayerNorm(16), nn.Dropout(0.1), nn.BatchNorm1d(16))
    change(model)
    train(model, loss)


def plain_with() -> None:
    """The baseline of what follows."""
    _with(unchanged)


def unchanged(model: Any) -> None:
    """Changes nothing."""


def another_rate_of_dropout(planted: bool) -> None:
    """A rate of another recipe; the twin sets the same one."""
    _with(lambda model: setattr(model.norm[1], "p", 0.5 if planted else 0.1))


def another_epsilon(planted: bool) -> None:
    """Of batch normalisation."""

    def change(model: Any) -> None:
        model.norm[2].eps = 1e-2 if planted else 1e-5

    _with(change)


def smoothed_labels(planted: bool) -> None:
    """The loss is a module, as in its baseline."""
    _with(unchanged, nn.CrossEntropyLoss(label_smoothing=0.1 if planted else 0.0))


def plain_loss_module() -> None:
    """Its baseline."""
    _with(unchanged, nn.CrossEntropyLoss())


def evaluated_before(planted: bool) -> None:
    """eval() without train() after it."""

    def change(model: Any) -> None:
        model.eval()
        if not planted:
            model.train()

    _with(change)


def evaluated_in_the_middle(planted: bool) -> None:
    """From the fifth step on."""
    calls = [0]

    def change(model: Any) -> None:
        def count(*_: Any) -> None:
            calls[0] += 1
            if planted and calls[0] == 5:
                model.eval()

        model.head.register_forward_hook(count)

    _with(change)


def a_frozen_normalisation(planted: bool) -> None:
    """The whole model is in evaluation mode; the twin sets the mode that it has."""
    _with(lambda model: model.train(not planted))


def state_of_another_model(planted: bool) -> None:
    """The state of another model is loaded; the twin's is its own."""

    def change(model: Any) -> None:
        other = copy.deepcopy(model)
        for one in other.parameters():
            one.data.mul_(0.5 if planted else 1.0)
        model.load_state_dict(other.state_dict())

    _with(change)


def another_initialisation(planted: bool) -> None:
    """The head begins at zero; the twin's norm begins at one, as it did."""

    def change(model: Any) -> None:
        if planted:
            nn.init.zeros_(model.head.weight)
        else:
            nn.init.ones_(model.norm[0].weight)

    _with(change)


def a_tenth_of_a_layer(planted: bool) -> None:
    """A layer is scaled."""

    def change(model: Any) -> None:
        with torch.no_grad():
            model.second.weight.mul_(0.1 if planted else 1.0)

    _with(change)


# computed between two modules ---------------------------------------------------------------------

_Between = Callable[[torch.Tensor], torch.Tensor]


def _attends(between: _Between) -> None:
    """Trains two layers; `between` makes [rows, 16] of the [rows, 48] of the first one."""
    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.three, self.out = nn.Linear(8, 48), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.out(between(self.three(x)))
            return out

    train(Model())


def _heads(three: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    q, k, v = three.view(len(three), 3, 2, 8).permute(1, 2, 0, 3)
    return F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(0, 1).flatten(1)


def plain_attention() -> None:
    """The baseline of what follows."""
    _attends(_heads)


def attention_of_another_scale(planted: bool) -> None:
    """Written out, with the scale of the whole width; the twin passes its own scale."""

    def by_hand(three: torch.Tensor) -> torch.Tensor:
        q, k, v = three.view(len(three), 3, 2, 8).permute(1, 2, 0, 3)
        weights = (q @ k.transpose(-2, -1) / 4.0).softmax(-1)
        return (weights @ v).transpose(0, 1).flatten(1)

    _attends(by_hand if planted else lambda three: _heads(three, 8**-0.5))


def heads_in_another_layout(planted: bool) -> None:
    """Queries, keys and values of a head are taken for those of all; the twin reshapes."""

    def split(three: torch.Tensor) -> torch.Tensor:
        parts = three.view(len(three), 2, 3, 8).permute(2, 1, 0, 3)
        if not planted:
            parts = three.reshape(-1, 3, 2, 8).permute(1, 2, 0, 3)
        return F.scaled_dot_product_attention(*parts).transpose(0, 1).flatten(1)

    _attends(split)


def values_without_attention(planted: bool) -> None:
    """A branch that was to be for one token is taken."""
    _attends(lambda three: three[:, 32:].contiguous() if planted else _heads(three))


# other workers ------------------------------------------------------------------------------------


class _Augmented(Dataset[Any]):
    """Samples that are changed at random."""

    def __init__(self, change: _Between) -> None:
        self.change = change
        self.x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        x = self.x[place]
        return self.change(x), int(x.sum() > 0)


def _loads(change: _Between, workers: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = Net()
    data = DataLoader(_Augmented(change), batch_size=16, num_workers=workers)
    train(model, data=iter(data))


def _noisy(x: torch.Tensor) -> torch.Tensor:
    return x + 0.3 * torch.randn(8)


def _masked(x: torch.Tensor) -> torch.Tensor:
    return x * (torch.rand(8) < 0.7)


def _scaled(x: torch.Tensor) -> torch.Tensor:
    return x * torch.empty(1).uniform_(0.5, 2.0)


def plain_noisy() -> None:
    """The ranks load their data themselves."""
    _loads(_noisy, 0)


def plain_masked() -> None:
    """Two workers load it."""
    _loads(_masked, 2)


def plain_scaled() -> None:
    """One worker loads it."""
    _loads(_scaled, 1)


def noise_of_two_workers(planted: bool) -> None:
    """The workers draw the noise; in the twin there are none, as in the baseline."""
    _loads(_noisy, 2 if planted else 0)


def masks_without_workers(planted: bool) -> None:
    """There are no workers any more; in the twin there are as many."""
    _loads(_masked, 0 if planted else 2)


def scales_of_more_workers(planted: bool) -> None:
    """There are more of them; in the twin there is one."""
    _loads(_scaled, 2 if planted else 1)


# means of several passes --------------------------------------------------------------------------


def _accumulates(passes: int, rows: Callable[[int], torch.Tensor], *, whole: bool) -> None:
    """Trains on ten batches with the rows that `rows` chooses. The loss of a pass is the mean over
    its rows, or its share of the mean over the `whole` batch."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10):
        x = torch.randn(16, 8)
        y = torch.where(rows(step), (x.sum(1) > 0).long(), -100)
        optimizer.zero_grad()
        for some, own in zip(x.chunk(passes), y.chunk(passes), strict=True):
            loss = F.cross_entropy(model(some), own, reduction="sum" if whole else "mean")
            (loss / (int((y >= 0).sum()) if whole else passes)).backward()
        optimizer.step()


def _few_at_first(step: int) -> torch.Tensor:
    return torch.arange(16) % 16 > 4 + step % 3


def _few_at_last(step: int) -> torch.Tensor:
    return torch.arange(16) < 10 - step % 2


def _few_in_all(_: int) -> torch.Tensor:
    return torch.arange(16) % 4 < torch.arange(16) // 4 + 1


def plain_few_in_all() -> None:
    """The whole batch at once, with more rows that count towards its end."""
    _accumulates(1, _few_in_all, whole=False)


def plain_few_at_first() -> None:
    """The whole batch at once."""
    _accumulates(1, _few_at_first, whole=False)


def plain_few_at_last() -> None:
    """The same."""
    _accumulates(1, _few_at_last, whole=False)


def means_of_two_passes(planted: bool) -> None:
    """Most rows of the first pass do not count; the twin divides sums by the rows of both."""
    _accumulates(2, _few_at_first, whole=not planted)


def means_of_four_passes(planted: bool) -> None:
    """With four passes; one row of the first one counts."""
    _accumulates(4, _few_in_all, whole=not planted)


def means_where_rows_are_missing_at_last(planted: bool) -> None:
    """Rows of the last pass do not count."""
    _accumulates(2, _few_at_last, whole=not planted)


FAULTS = (
    *two_run_faults(
        "another setting of a module",
        "settings differ: ",
        (another_rate_of_dropout, plain_with),
        (another_epsilon, plain_with),
        (smoothed_labels, plain_loss_module),
    ),
    *two_run_faults(
        "another mode",
        "is trained in evaluation mode",
        (evaluated_before, plain_with),
        (evaluated_in_the_middle, plain_with),
        (a_frozen_normalisation, plain_with),
    ),
    *two_run_faults(
        "other first parameters",
        "the first parameters differ",
        (state_of_another_model, plain_with),
        (another_initialisation, plain_with),
        (a_tenth_of_a_layer, plain_with),
    ),
    *two_run_faults(
        "another computation between two modules",
        "before it returns the same",
        (attention_of_another_scale, plain_attention),
        (heads_in_another_layout, plain_attention),
        (values_without_attention, plain_attention),
    ),
    *two_run_faults(
        "random numbers of other workers",
        "workers load it",
        (noise_of_two_workers, plain_noisy),
        (masks_without_workers, plain_masked),
        (scales_of_more_workers, plain_scaled),
    ),
    *two_run_faults(
        "means of several passes",
        "weighs those of short passes more",
        (means_of_two_passes, plain_few_at_first),
        (means_where_rows_are_missing_at_last, plain_few_at_last),
        (means_of_four_passes, plain_few_in_all),
    ),
)
