"""Assertions about gradients; needs no torch.

    import lanescope.collector as ls

    ls.assert_nonzero_grad(model.head, after=1)
    ls.assert_grad_norm(model, most=100.0)

Call them once, anywhere before the last step. They add nothing to the model: the gradients of every
optimizer step are recorded anyway, and compared when the run is read. So compiled modules, shards
and devices make no difference, and the program is neither slowed nor stopped.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class Assertion:
    """An assertion; its parameters get their names when their model is called."""

    function: str
    bounds: dict[str, float]  # keyword -> number
    parameters: list[weakref.ref[Any]]
    noted: bool = False  # its mark was written

    @property
    def alive(self) -> list[Any]:
        """Parameters that still exist."""
        return [one for reference in self.parameters if (one := reference()) is not None]


ASSERTIONS: list[Assertion] = []
"""All assertions of this process."""


def assert_nonzero_grad(target: Any, *, after: int = 0) -> None:
    """Asserts that each trainable parameter of `target` has a nonzero gradient at every step.

    `target` is a module, compiled or not, a parameter, or several of them; `after` is the first
    step (B of a fresh LoRA is zero, so that its A has no gradient at step 0: `after=1`). Failures
    become findings of kind `validator` with the measured value. Without a recording nothing
    happens. Raises TypeError for a target without parameters, ValueError for a negative step.
    """
    _expect("assert_nonzero_grad", target, after)


def assert_finite_grad(target: Any, *, after: int = 0) -> None:
    """Asserts that no gradient of `target` is NaN or infinite at an optimizer step."""
    _expect("assert_finite_grad", target, after)


def assert_grad_norm(
    target: Any, *, least: float = 0.0, most: float = math.inf, after: int = 0
) -> None:
    """Asserts that the L2 norm of each parameter's gradient is from `least` to `most`.

    Checked after clipping, as the optimizer uses it. Raises ValueError for `least` above `most`.
    """
    if not least <= most:
        raise ValueError(f"least={least} is above most={most}; expected least <= most")
    _expect("assert_grad_norm", target, after, least=float(least), most=float(most))


def _expect(function: str, target: Any, after: int, **bounds: float) -> None:
    if after < 0:
        raise ValueError(f"after={after}: steps count from 0")
    parameters = list({id(one): one for one in _parameters(target)}.values())
    references = [weakref.ref(one) for one in parameters]
    ASSERTIONS.append(Assertion(function, {**bounds, "after": after}, references))


def _parameters(target: Any) -> Iterator[Any]:
    own: Callable[[], Iterable[Any]] | None = getattr(target, "parameters", None)
    if callable(own):
        found = list(own())
        if not found:
            raise TypeError(f"{type(target).__name__} has no parameters, and hence no gradients")
        yield from found
    elif hasattr(target, "requires_grad"):
        if not target.is_leaf:
            raise TypeError("a tensor that was computed; expected a module or a parameter")
        yield target
    elif isinstance(target, Iterable) and not isinstance(target, str):
        for one in target:
            yield from _parameters(one)
    else:
        raise TypeError(f"{target!r} has no gradients; expected a module or a parameter")


def names_by_module(names: set[str], known: Iterable[str], prefix: str = "") -> list[str]:
    """Returns `names`, with "module.*" in place of all `known` names below a module."""
    below = {name for name in (*known, *names) if name.startswith(prefix)}
    if len(names) > 1 and below == names:
        return [f"{prefix}*"]
    parts: dict[str, set[str]] = {}
    for name in sorted(names):
        head, dot, _ = name[len(prefix) :].partition(".")
        parts.setdefault(head + dot, set()).add(name)
    found = []
    for part, own in parts.items():
        inner = part.endswith(".")
        found += names_by_module(own, below, prefix + part) if inner else [prefix + part]
    return found
