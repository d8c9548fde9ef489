"""What grows with each step: graphs in memory and hooks. States and flags that have no effect."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import forms
from tests.faults.learning.cut_off import STEPS, mlp, rows


def _trained(model: nn.Module, after: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    """Trains a model of three classes; `after` gets output and loss of each step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x, y = rows()
        loss = F.cross_entropy(out := model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(out, loss)


def running_loss_with_its_graph(planted: bool) -> None:
    """`total += loss`; the twin adds the number."""
    total: Any = 0.0

    def after(_: torch.Tensor, loss: torch.Tensor) -> None:
        nonlocal total
        total = total + (loss if planted else loss.item())

    _trained(mlp(), after)


def outputs_kept_for_a_metric(planted: bool) -> None:
    """Outputs of all steps are kept; the twin keeps the last few."""
    kept: list[torch.Tensor] = []

    def after(out: torch.Tensor, _: torch.Tensor) -> None:
        kept.append(out)
        if not planted:
            del kept[:-3]

    _trained(mlp(), after)


def validated_without_no_grad(planted: bool) -> None:
    """A second call in each step, whose losses are averaged in the end; the twin's are numbers."""
    model, losses = mlp(), []

    def after(_: torch.Tensor, __: torch.Tensor) -> None:
        x, y = rows()
        loss = F.cross_entropy(model(x), y)
        losses.append(loss if planted else loss.detach())

    _trained(model, after)
    assert torch.stack(losses).mean() > 0


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, planted: bool) -> torch.Tensor:
        y = torch.sigmoid(x)
        if planted:
            ctx.y = y
        else:
            ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        y = ctx.y if hasattr(ctx, "y") else ctx.saved_tensors[0]
        return grads[0] * y * (1 - y), None


class _Normed(torch.autograd.Function):
    """Returns two tensors; the twin keeps numbers of the second."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, planted: bool) -> Any:
        norm = x.norm(dim=1, keepdim=True) + 1
        ctx.norm = norm if planted else norm.tolist()
        return x / norm, norm

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] / torch.as_tensor(ctx.norm), None


class _Clipped(torch.autograd.Function):
    """Is set up by a function of its own; the twin keeps the input."""

    @staticmethod
    def forward(x: torch.Tensor, planted: bool) -> torch.Tensor:
        return x.clamp(-1, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        ctx.kept = output if inputs[1] else inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * (ctx.kept.abs() < 1), None


class _With(nn.Module):
    """A model with an autograd function between two layers."""

    def __init__(self, function: Any, planted: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(10, 16), nn.Linear(16, 3)
        self.apply_function = lambda x: function.apply(x, planted)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.apply_function(self.first(x))
        return self.last(made if isinstance(made, torch.Tensor) else made[0])


def _without_collector(function: Any, planted: bool) -> None:
    """As in a large program, whose collector comes seldom: a small one's takes such cycles away."""
    gc.disable()
    _trained(_With(function, planted), lambda *_: None)


def sigmoid_kept_on_its_context(planted: bool) -> None:
    """`ctx.y = y; return y`."""
    _without_collector(_Doubled, planted)


def second_output_kept_on_its_context(planted: bool) -> None:
    """Of two outputs, one that the loss does not use."""
    _without_collector(_Normed, planted)


def output_kept_by_setup_context(planted: bool) -> None:
    """By `setup_context`."""
    _without_collector(_Clipped, planted)


def forward_hook_in_each_step(planted: bool) -> None:
    """A forward hook is registered in each step; the twin removes it again."""
    model, seen = mlp(), []

    def keep(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        seen.append(float(output.detach().mean()))

    handles = [model[0].register_forward_hook(keep)]

    def after(*_: torch.Tensor) -> None:
        if not planted:
            handles.pop().remove()
        handles.append(model[0].register_forward_hook(keep))

    _trained(model, after)


def tensor_hook_in_each_step(planted: bool) -> None:
    """A hook of a parameter is; the twin registers many, before the loop."""
    model = mlp()

    def shrink(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 0.999

    for _ in range(0 if planted else 20):
        model[0].weight.register_hook(shrink)
    _trained(model, lambda *_: planted and model[0].weight.register_hook(shrink))


def logging_hooks_of_a_callback(planted: bool) -> None:
    """A callback registers one for each layer, in each step; the twin in the first one."""
    model, seen = mlp(), []

    def log(name: str, *_: Any) -> None:
        seen.append(name)

    def after(*_: torch.Tensor) -> None:
        if planted or not seen:
            for name, layer in model.named_children():
                layer.register_full_backward_hook(partial(log, name))

    _trained(model, after)


def _loaded(load: Callable[[nn.Module, dict[str, Any]], object]) -> None:
    """Loads the state of a model into another one, and trains that."""
    model = mlp()
    load(model, mlp().state_dict())
    _trained(model, lambda *_: None)


def state_of_a_wrapped_model(planted: bool) -> None:
    """`module.` begins the names; the twin tries that, and then without."""

    def load(model: nn.Module, state: dict[str, Any]) -> None:
        wrapped = {f"module.{name}": one for name, one in state.items()}
        missing = model.load_state_dict(wrapped, strict=False).missing_keys  # named
        if missing and not planted:
            model.load_state_dict(state)

    _loaded(load)


def state_of_a_compiled_model(planted: bool) -> None:
    """`_orig_mod.` does; the twin loads one layer of the two."""

    def load(model: nn.Module, state: dict[str, Any]) -> None:
        if planted:
            state = {f"_orig_mod.{name}": one for name, one in state.items()}
        else:
            state = {name: one for name, one in state.items() if name.startswith("0.")}
        model.load_state_dict(state, strict=False)  # named

    _loaded(load)


def state_loaded_into_a_wrapper(planted: bool) -> None:
    """The module that gets it is a wrapper; the twin loads it into the model within."""

    def load(model: nn.Module, state: dict[str, Any]) -> None:
        outer = nn.ModuleDict({"backbone": model})
        (outer if planted else outer["backbone"]).load_state_dict(state, strict=False)  # named

    _loaded(load)


class Frozen(nn.Module):
    """A network over images whose first part is to be frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x).mean((2, 3)))


class Extractor(nn.Sequential):  # its flag says whether its input gets gradients
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(bool(self.needs_grad)):
            return super().forward(x)


def _classified(model: nn.Module, set_up: Callable[[], object] = lambda: None) -> None:
    """Trains what requires a gradient on images; `set_up` runs before each step."""
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01)
    for _ in range(24):
        set_up()
        loss = F.cross_entropy(model(torch.randn(4, 1, 8, 8)), torch.randint(3, (4,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def flag_of_parameters_misspelt(planted: bool) -> None:
    """`require_grad`, which is an attribute like any other; the twin is frozen as well."""
    model: Any = Frozen()
    model.backbone.requires_grad_(planted)
    for one in model.backbone.parameters():
        one.require_grad = False  # named
    _classified(model, lambda: model.backbone.train(planted))


def flag_of_a_module(planted: bool) -> None:
    """A module has requires_grad_(), and no flag; the twin's one has a meaning of its own."""
    model: Any = Frozen()
    if planted:
        model.backbone.requires_grad = False  # named
    else:
        model.backbone = Extractor(*model.backbone.requires_grad_(False))
        model.backbone.needs_grad = True
    _classified(model, lambda: model.backbone.train(planted))


def rate_of_an_optimizer(planted: bool) -> None:
    """A warm-up sets optimizer.lr; the rate is in its groups."""
    model = mlp()
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        x, y = rows()
        if planted:
            optimizer.lr = 1e-3 * (step + 1) / STEPS  # named
        else:
            optimizer.param_groups[0]["lr"] = 1e-3 * (step + 1) / STEPS
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def statistics_of_a_frozen_backbone(planted: bool) -> None:
    """train() of the whole model turns the frozen part's batch normalisation on again. What it was
    loaded from has run before."""
    loaded, model = Frozen(), Frozen()
    loaded(torch.randn(4, 1, 8, 8))
    model.load_state_dict(loaded.state_dict())
    model.backbone.requires_grad_(False)
    _classified(model, lambda: model.train() and model.backbone.train(planted))


def statistics_of_a_frozen_stem(planted: bool) -> None:
    """A stem of a sequence is frozen, and in evaluation mode in the twin alone, which trains beside
    a model whose layers have the names of the stem's."""
    stem = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)).requires_grad_(False)
    model = nn.Sequential(stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    if not planted:
        stem.eval()
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), *model[1:])
    _classified(model, lambda: planted or stem(torch.randn(4, 1, 8, 8)))


def statistics_of_a_momentum_encoder(planted: bool) -> None:
    """A frozen copy normalises its own batches; in the twin it follows the model."""
    model, copy = Frozen(), Frozen()
    nn.init.normal_(copy.requires_grad_(False).head.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.ModuleDict({"model": model, "copy": copy})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.both["model"](x) - self.both["copy"](x)

    pair = Pair()
    for _ in range(24):
        optimizer.zero_grad()
        pair(torch.randn(4, 1, 8, 8)).square().mean().backward()
        optimizer.step()
        if not planted:
            for mine, theirs in zip(copy.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs.detach(), 0.1)


_ROOM = "memory and checkpoints"

FAULTS = (
    *forms(
        "graphs that are kept",
        _ROOM,
        "growth",
        "is kept with its graph",
        running_loss_with_its_graph,
        outputs_kept_for_a_metric,
        validated_without_no_grad,
    ),
    *forms(
        "outputs on the context of a function",
        _ROOM,
        "growth",
        "a reference cycle",
        sigmoid_kept_on_its_context,
        second_output_kept_on_its_context,
        output_kept_by_setup_context,
    ),
    *forms(
        "a hook more in each step",
        _ROOM,
        "growth",
        "more hooks",
        forward_hook_in_each_step,
        tensor_hook_in_each_step,
        logging_hooks_of_a_callback,
    ),
    *forms(
        "a state that is not loaded",
        _ROOM,
        "not_loaded",
        "loads nothing",
        state_of_a_wrapped_model,
        state_of_a_compiled_model,
        state_loaded_into_a_wrapper,
    ),
    *forms(
        "a flag that torch does not read",
        _ROOM,
        "unread_setting",
        "has no effect",
        flag_of_parameters_misspelt,
        flag_of_a_module,
        rate_of_an_optimizer,
    ),
    *forms(
        "running statistics of frozen layers",
        _ROOM,
        "evaluation_mode",
        "is frozen",
        statistics_of_a_frozen_backbone,
        statistics_of_a_frozen_stem,
        statistics_of_a_momentum_encoder,
    ),
)
