"""New heads that are frozen with the rest of a loaded model, heads that copy a table, averages of a
model without its running statistics, and adapters that are loaded frozen."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from tests.faults.base import Fault, forms

_STEPS, _ROWS, _WIDTH = 8, 32, 12


class _Net(nn.Module):
    """Three blocks and a head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        sizes = [_WIDTH, 16, 16, 16]
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(i, o), nn.ReLU()) for i, o in pairwise(sizes)
        )
        self.fc = nn.Linear(16, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.fc(x)
        return out


def _file(classes: int) -> io.BytesIO:
    """A file with the state of another model."""
    torch.manual_seed(1)
    file = io.BytesIO()
    torch.save(_Net(classes).state_dict(), file)
    file.seek(0)
    return file


def _tuned(model: nn.Module, classes: int = 3, teacher: nn.Module | None = None) -> None:
    own = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.Adam(own, lr=1e-3)
    for _ in range(_STEPS):
        x = torch.randn(_ROWS, _WIDTH)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), x[:, :classes].argmax(1))
        if teacher is not None:
            loss = loss + F.mse_loss(model(x), teacher(x))
        loss.backward()
        optimizer.step()


def all_but_the_last_block_frozen(planted: bool) -> None:
    """The loop over names leaves out one block; in the twin the head as well."""
    model = _Net(10)
    model.load_state_dict(torch.load(_file(10)))
    model.fc = nn.Linear(16, 3)
    kept = ("blocks.2",) if planted else ("blocks.2", "fc")
    for name, one in model.named_parameters():
        one.requires_grad = name.startswith(kept)
    _tuned(model)


def frozen_after_the_head_was_replaced(planted: bool) -> None:
    """Two lines in the wrong order, in another dtype; the twin has them in the right one."""
    model: Any = _Net(10)
    model.load_state_dict(torch.load(_file(10)))
    if not planted:
        model.requires_grad_(False)
    model.fc = nn.Linear(16, 3)
    model.double()
    if planted:
        model.requires_grad_(False)
    model.blocks[1:].requires_grad_(True)
    model.float()
    _tuned(model)


def head_that_the_state_lacks() -> None:
    """strict=False leaves it as it was made."""
    loaded = torch.load(_file(3))
    state = {name: one for name, one in loaded.items() if not name.startswith("fc")}
    model = _Net(3)
    model.load_state_dict(state, strict=False)
    model.fc.requires_grad_(False)
    _tuned(model)


def head_between_biases(planted: bool) -> None:
    """Biases alone are trained, and what has the name of a head."""
    model: Any = _Net(10)
    model.load_state_dict(torch.load(_file(10)))
    model.fc = nn.Linear(16, 3)
    for name, one in model.named_parameters():
        one.requires_grad = name.endswith("bias") or ("head" if planted else "fc") in name
    _tuned(model)


def head_after_a_first_task(planted: bool) -> None:
    """Another optimizer has trained the blocks before; the twin goes on with its old head."""
    model: Any = _Net(3)
    _tuned(model)
    if planted:
        model.fc = nn.Linear(16, 3)
    for name, one in model.named_parameters():
        one.requires_grad = not name.startswith(("blocks.0", "fc"))
    _tuned(model)


def head_beside_adapters(planted: bool) -> None:
    """Adapters are trained alone, as by a configuration without modules_to_save; the head of the
    twin is loaded."""
    model: Any = _Net(3)
    model.load_state_dict(torch.load(_file(3)))
    for block in model.blocks[1:]:
        adapted = _Adapted()
        adapted.base = block[0].requires_grad_(False)
        block[0] = adapted
    model.blocks[0].requires_grad_(False)
    if planted:
        model.fc = nn.Linear(16, 3)
    model.fc.requires_grad_(False)
    _tuned(model)


def random_features_below_a_trained_head() -> None:
    """A layer of random numbers that is frozen on purpose, before what was loaded, and a random
    network whose outputs are learned."""
    model = _Net(3)
    model.load_state_dict(torch.load(_file(3)))
    model.blocks[0] = nn.Sequential(nn.Linear(_WIDTH, 16), nn.ReLU())
    model.blocks[0].requires_grad_(False)
    _tuned(model, teacher=_Net(3).requires_grad_(False))


# heads that are copies ---------------------------------------------------------------------------


class _Words(nn.Module):
    """A table, what comes in between, and a head with a row per word."""

    def __init__(self, tie: Callable[[Any], None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.inner = nn.Embedding(20, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 20)
        tie(self)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.inner(self.table(words)).tanh())
        return out


def _follows(model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(_STEPS):
        words = torch.randint(20, (_ROWS,))
        optimizer.zero_grad()
        F.cross_entropy(model(words), (words + 1) % 20).backward()
        optimizer.step()


def head_of_a_clone(planted: bool) -> None:
    """The head gets a parameter of its own."""

    def tie(model: Any) -> None:
        weight = model.table.weight
        model.head.weight = nn.Parameter(weight.detach().clone()) if planted else weight

    _follows(_Words(tie))


def head_that_is_copied_once(planted: bool) -> None:
    """The numbers are copied; the head of the twin begins with half of them, on purpose."""

    def tie(model: Any) -> None:
        with torch.no_grad():
            model.head.weight.copy_(model.table.weight * (1.0 if planted else 0.5))

    _follows(_Words(tie))


def head_that_loads_the_table(planted: bool) -> None:
    """A state is loaded for the head; the twin then ties it."""

    def tie(model: Any) -> None:
        state = {"weight": model.table.weight, "bias": torch.zeros(20)}
        model.head.load_state_dict(state)
        if not planted:
            model.head.weight = model.table.weight

    _follows(_Words(tie))


# averages without running statistics --------------------------------------------------------------


def _normalised() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(_WIDTH, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def _evaluated(
    model: nn.Module, average: nn.Module, update: Callable[[], object], first: bool = False
) -> None:
    """Trains for some epochs, and evaluates the average after each of them; `first`: and before."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(4):
        for _ in range(0 if first and not epoch else 3):
            x = 3 * torch.randn(_ROWS, _WIDTH) + 2
            optimizer.zero_grad()
            F.cross_entropy(model.train()(x), x[:, :3].argmax(1)).backward()
            optimizer.step()
            update()
        with torch.no_grad():
            average.eval()(3 * torch.randn(_ROWS, _WIDTH) + 2).argmax(1)


def average_of_parameters_alone(planted: bool) -> None:
    """The twin copies the buffers as well; it is evaluated once before it trains."""
    model = _normalised()
    average = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update() -> None:
        for one, other in zip(average.parameters(), model.parameters(), strict=True):
            one.mul_(0.9).add_(other, alpha=0.1)
        if not planted:
            for one, other in zip(average.buffers(), model.buffers(), strict=True):
                one.copy_(other)

    _evaluated(model, average, update, first=not planted)


def shadow_that_is_loaded_for_evaluations(planted: bool) -> None:
    """A dict of averages; another model gets them. torch's AveragedModel copies buffers too."""
    model = _normalised()
    if not planted:
        mean = AveragedModel(model)
        _evaluated(model, mean, lambda: mean.update_parameters(model))
        return
    shadow = {name: one.detach().clone() for name, one in model.named_parameters()}
    other = _normalised()

    @torch.no_grad()
    def update() -> None:
        for name, one in model.named_parameters():
            shadow[name] = 0.8 * shadow[name] + 0.2 * one
        other.load_state_dict(shadow, strict=False)

    _evaluated(model, other, update)


def target_that_follows_by_parameters(planted: bool) -> None:
    """A target network; that of the twin is a random one that stays as it was made, and its model
    keeps its first statistics on purpose."""
    model, target = _normalised(), _normalised().requires_grad_(False)
    if not planted:
        model.train = lambda mode=True: nn.Module.train(model, mode=False)

    @torch.no_grad()
    def update() -> None:
        for one, other in zip(target.parameters(), model.parameters(), strict=True):
            one.lerp_(other, 0.2 if planted else 0.0)

    _evaluated(model, target if planted else model, update)


# adapters of a second stage ----------------------------------------------------------------------


class _Adapted(nn.Module):
    """A frozen layer and what adapts it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_(False)
        self.lora_A, self.lora_B = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base(x) + self.lora_B(self.lora_A(x))
        return out


def _adapted() -> _Net:
    """The middle layers are adapted, and the first one is frozen."""
    model = _Net(3)
    model.blocks[0].requires_grad_(False)
    model.blocks[1], model.blocks[2] = _Adapted(), _Adapted()
    return model


def _second_stage(frozen: Callable[[str], bool]) -> nn.Module:
    """Trains adapters, and loads them into another model; `frozen` chooses parameters by name."""
    torch.manual_seed(0)
    first, second = _adapted(), _adapted()
    _tuned(first)
    second.load_state_dict(first.state_dict())
    for name, one in second.named_parameters():
        one.requires_grad = one.requires_grad and not frozen(name)
    return second


def adapters_loaded_for_inference(planted: bool) -> None:
    """As PeftModel.from_pretrained() does without is_trainable=True; the twin trains them."""
    _tuned(_second_stage(lambda name: planted and "lora_" in name))


def all_but_the_head_frozen_again(planted: bool) -> None:
    """A helper for the first stage; the second model of the twin is a frozen reference."""
    if planted:
        _tuned(_second_stage(lambda name: not name.startswith("fc")))
        return
    _tuned(_adapted(), teacher=_second_stage(lambda name: True))


def adapters_frozen_by_their_matrices(planted: bool) -> None:
    """Each matrix by itself; in the twin one adapter stays frozen, as it is to keep."""
    _tuned(_second_stage(lambda name: "lora_" in name and (planted or "blocks.1" in name)))


FAULTS = (
    tuple(
        Fault(
            "frozen new head",
            "learning",
            ("dead_parameter",),
            program,
            twin,
            "frozen with the random numbers",
            slow=place > 0,
        )
        for place, (program, twin) in enumerate(
            (
                (all_but_the_last_block_frozen, None),
                (frozen_after_the_head_was_replaced, None),
                (head_between_biases, None),
                (head_after_a_first_task, None),
                (head_beside_adapters, None),
                (head_that_the_state_lacks, random_features_below_a_trained_head),
            )
        )
    )
    + forms(
        "head that is a copy",
        "learning",
        "shared_parameter",
        "begins as a copy",
        head_of_a_clone,
        head_that_is_copied_once,
        head_that_loads_the_table,
    )
    + forms(
        "evaluation with statistics of no batch",
        "losses and modes",
        "evaluation_mode",
        "it was built with",
        average_of_parameters_alone,
        shadow_that_is_loaded_for_evaluations,
        target_that_follows_by_parameters,
    )
    + forms(
        "adapters of a second stage that are frozen",
        "learning",
        "lora_inactive",
        "it is frozen",
        adapters_loaded_for_inference,
        all_but_the_head_frozen_again,
        adapters_frozen_by_their_matrices,
    )
)
