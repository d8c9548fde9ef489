"""A validator that compares a module's backward with finite differences.

    import lanescope.collector as ls
    from lanescope.collector.gradcheck import gradcheck

    ls.validator(MyLayer)(gradcheck())

For backward functions written by hand. torch.autograd.gradcheck checks a copy of the module in
double precision, in its first call and then once in `every` steps, near the call's inputs: at a
kink (a ReLU at exactly 0) there is no derivative to compare with.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError
from torch.utils._pytree import tree_flatten, tree_unflatten

from .reference import is_sharded
from .validation.validators import Event, NowAndThen

NOISE = 1e-3
"""Standard deviation of the noise added to inputs, as a share of their root mean square."""

TRIALS = 3
"""Points that must all disagree, because one may be at a kink."""

_SIDES = re.compile(r"output (\d+) with respect to input (\d+)")


class GradCheck(NowAndThen):
    """Made by `gradcheck`."""

    __name__ = "gradcheck"

    def __init__(self, every: int, tolerance: float) -> None:
        super().__init__(every)
        self._tolerance = tolerance

    def __call__(self, event: Event, inputs: Sequence[Any], outputs: Any) -> None:
        """Raises AssertionError where they disagree, and any exception of the module."""
        if torch.is_inference_mode_enabled() or is_sharded(event.module):
            return
        own = _copied(event.module)
        weights = {n: w.detach() for n, w in own.named_parameters() if w.requires_grad}
        given, structure = tree_flatten((tuple(inputs), event.keywords))
        floating = [k for k, one in enumerate(given) if _floating(one)]
        seed = torch.initial_seed()

        def compute(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            torch.manual_seed(seed)  # the same dropout mask each time
            arguments = list(given)
            for k, value in zip(floating, values, strict=False):
                arguments[k] = value
            used = dict(zip(weights, values[len(floating) :], strict=True))
            args, keywords = tree_unflatten(arguments, structure)
            with torch.enable_grad():
                made = torch.func.functional_call(own, used, args, keywords)
            flat, _ = tree_flatten(made)
            return tuple(one for one in flat if _floating(one) and one.requires_grad)

        names = [f"input {k}" for k in range(len(floating))] + list(weights)
        values = [given[k].detach().double() for k in floating] + list(weights.values())
        said = ""
        for trial in range(TRIALS):
            torch.manual_seed(seed + trial)
            near = [_near(value).requires_grad_() for value in values]
            with torch.enable_grad():
                if not compute(*near):
                    return  # no output has a gradient
                said = self._disagreement(compute, near)
            if not said:
                return
        sides = _SIDES.search(said)
        which = f" of output {sides[1]} by {names[int(sides[2])]}" if sides else ""
        raise AssertionError(
            f"the gradient{which} that backward computes is not the one of finite differences"
            + ("" if sides else f": {said}")
        )

    def _disagreement(self, compute: Callable[..., Any], values: list[torch.Tensor]) -> str:
        try:
            torch.autograd.gradcheck(
                compute,
                values,
                rtol=self._tolerance,
                fast_mode=True,
                nondet_tol=1e-6,
                check_undefined_grad=False,
            )
        except GradcheckError as error:
            return str(error).strip().partition("\n")[0]
        return ""


def gradcheck(*, every: int = 1 << 62, tolerance: float = 1e-3) -> GradCheck:
    """Returns a validator of module classes; by default it checks each module once.

    `tolerance` is relative. A check costs about six forwards and two backwards in double precision,
    and a copy of the module.
    """
    return GradCheck(every, tolerance)


def _copied(module: torch.nn.Module) -> torch.nn.Module:
    """Returns a copy in double precision, without the program's hooks."""
    own = copy.deepcopy(module).double()
    for each in own.modules():
        for name in ("_forward_hooks", "_backward_hooks", "_backward_pre_hooks"):
            vars(each)[name].clear()
    return own


def _floating(value: Any) -> bool:
    return torch.is_tensor(value) and value.is_floating_point()


def _near(value: torch.Tensor) -> torch.Tensor:
    size = value.square().mean().sqrt() if value.numel() else 0.0
    return value + NOISE * (size or 1.0) * torch.randn_like(value)
