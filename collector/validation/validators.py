"""Registers the user's validators of operators, collectives and modules; needs no torch."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


class Event(NamedTuple):
    """The call that a validator checks."""

    name: str  # the operator, the collective, or the module's class
    rank: int
    step: int
    start_ns: int  # monotonic clock
    end_ns: int
    keywords: dict[str, Any]  # keyword arguments
    module: Any = None  # the module itself; do not change it


class Validator(NamedTuple):
    """A function and its target."""

    target: str | type
    function: Callable[[Event, Any, Any], Any]
    compiled: bool = False  # also checks modules inside compiled code

    @property
    def name(self) -> str:
        """Name on the timeline."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    @property
    def place(self) -> str:
        """Name of the target."""
        return self.target if isinstance(self.target, str) else self.target.__name__

    def looks_at(self, module: Any, step: int) -> bool:
        """Returns True if it checks this call of a module; the function's `due` may skip it."""
        if not isinstance(self.target, type) or not isinstance(module, self.target):
            return False
        due = getattr(self.function, "due", None)
        return True if due is None else bool(due(module, step))


class NowAndThen:
    """Base of validators that check a module's first call, then one in `every` steps."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._last: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def due(self, module: Any, step: int) -> bool:
        """Returns True if this call of the module is to be checked."""
        last = self._last.get(module)
        if last is not None and step - last < self._every:
            return False
        self._last[module] = step
        return True


VALIDATORS: list[Validator] = []
ENTRY_POINTS = "lanescope.validators"
"""Group of entry points: each is a function that registers validators when a recording starts, or a
module that registers them when it is imported."""

LOADED: set[Any] = set()
"""Entry points that were loaded in this process."""

LISTENERS: list[Callable[[Validator], None]] = []
"""Called with each validator registered during a recording."""


def validator(target: str | type, *, compiled: bool = False) -> Callable[[Function], Function]:
    """Checks every call of an operator, a collective or a module while recording.

    `target` is an operator ("aten::softmax", which also means aten::_softmax), the name of a
    collective as in the collective table ("all_reduce"), or a module class. The function is called
    as `function(event, inputs, outputs)` with an Event and copies of inputs and outputs. A returned
    number becomes the value `validator/<function>`; False, an AssertionError or another exception
    becomes a finding.

    With `compiled=True` modules inside code of torch.compile are checked too: an operator is added
    to the graph, so that values are materialised that fusion would have removed, and roundings may
    differ. Raises TypeError for a target that is neither a name nor a class, and for `compiled`
    with a name: operators are visible only if they are not fused.
    """
    if not isinstance(target, (str, type)):
        raise TypeError(
            f"a validator looks at {target!r}, expected an operator, a collective or a module class"
        )
    if compiled and isinstance(target, str):
        raise TypeError(f"compiled=True is for classes of modules, and {target!r} is a name")

    def register(function: Function) -> Function:
        new = Validator(target, function, compiled)
        VALIDATORS.append(new)
        for listener in LISTENERS:
            listener(new)
        return function

    return register
