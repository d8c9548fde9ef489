"""What a program asserts of gradients; needs no torch.

    import lanescope.collector as ls

    ls.assert_nonzero_grad(model.head, after=1)
    ls.assert_grad_norm(model, most=100.0)

Said once, anywhere before the last step. Nothing is put into the model: what every optimizer step
used is recorded anyway and held against it when the run is read. So compiled modules, shards and
gradients on devices are no different, and the program is neither slowed nor ended.
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
    noted: bool = False  # in a recording of this process

    @property
    def alive(self) -> list[Any]:
        """The parameters that are still there."""
        return [one for reference in self.parameters if (one := reference()) is not None]


ASSERTIONS: list[Assertion] = []
"""All assertions of this process."""


def assert_nonzero_grad(target: Any, *, after: int = 0) -> None:
    """Every trainable parameter of `target` has a gradient other than zero at every step.

    `target` is a module, compiled or not, a parameter, or several of them; `after`: the first step
    (B of a fresh LoRA is zero, so that its A has no gradient at step 0: `after=1`). Outcomes are
    findings of kind `validator` with what was measured. Without a recording nothing happens.
    Raises TypeError for what has no parameters, ValueError for a step below 0.
    """
    _expect("assert_nonzero_grad", target, after)


def assert_finite_grad(target: Any, *, after: int = 0) -> None:
    """No gradient of `target` that an optimizer uses is NaN or infinite."""
    _expect("assert_finite_grad", target, after)


def assert_grad_norm(
    target: Any, *, least: float = 0.0, most: float = math.inf, after: int = 0
) -> None:
    """The L2 norm of each parameter's gradient is from `least` to `most` at every step.

    After clipping, as the optimizer uses it. Raises ValueError where `least` is above `most`.
    """
    if not least <= most:
        raise ValueError(f"a norm of at least {least} and at most {most}: there is none")
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


def compressed(names: set[str], known: Iterable[str], prefix: str = "") -> list[str]:
    """`names`, or "module.*" for those that are all that is `known` below a module."""
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
        found += compressed(own, below, prefix + part) if inner else [prefix + part]
    return found
