"""Functions of the user's that look at operators, collectives and modules; needs no torch."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


class Event(NamedTuple):
    """The call that a validator looks at."""

    name: str  # the operator, the collective, or the module's class
    rank: int
    step: int
    start_ns: int  # monotonic clock
    end_ns: int
    keywords: dict[str, Any]  # arguments that were given by name
    module: Any = None  # the module itself, of which nothing may be changed


class Validator(NamedTuple):
    """A function and what it looks at."""

    target: str | type
    function: Callable[[Event, Any, Any], Any]
    compiled: bool = False  # looks at modules inside of compiled code, too

    @property
    def name(self) -> str:
        """As it stands on the timeline."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    @property
    def place(self) -> str:
        """What it looks at, in words."""
        return self.target if isinstance(self.target, str) else self.target.__name__

    def looks_at(self, module: Any, step: int) -> bool:
        """Whether it looks at this call of a module; the function's own `due` may say no."""
        if not isinstance(self.target, type) or not isinstance(module, self.target):
            return False
        due = getattr(self.function, "due", None)
        return True if due is None else bool(due(module, step))


class NowAndThen:
    """For validators that look at a module's first call, then once in `every` steps."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._last: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def due(self, module: Any, step: int) -> bool:
        """Whether this call of the module is to be looked at."""
        last = self._last.get(module)
        if last is not None and step - last < self._every:
            return False
        self._last[module] = step
        return True


VALIDATORS: list[Validator] = []
ENTRY_POINTS = "lanescope.validators"
"""Group of entry points: each is a function that is called, to register, when a recording starts,
or a module that registers when it is imported."""

LOADED: set[Any] = set()
"""Entry points that had their turn in this process."""

LISTENERS: list[Callable[[Validator], None]] = []
"""Called with each validator that is registered while a recording is active."""


def validator(target: str | type, *, compiled: bool = False) -> Callable[[Function], Function]:
    """Look at every call of an operator, a collective or a module while recording.

    `target` is an operator ("aten::softmax", which also means aten::_softmax), the name of a
    collective as in the collective table ("all_reduce"), or a module class. The function is called
    as `function(event, inputs, outputs)` with an Event and copies of what went in and came out. A
    number that it returns becomes the value `validator/<function>`, False or an AssertionError a
    finding; any other exception too.

    Inside of what torch.compile compiles, modules are looked at with `compiled=True`: an operator
    is put into the graph for it, so that values are computed there which may have been left out,
    and roundings may differ. Raises TypeError for what is neither a name nor a class, and for
    `compiled` with a name: operators are seen where they are not fused with others.
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
