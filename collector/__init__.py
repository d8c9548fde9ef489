"""Records a PyTorch run.

    import lanescope.collector as ls
    with ls.record("runs/a"):
        with ls.phase("warm-up"): ...
        ls.mark("thread 3 start")
        ls.value("grad_norm", 0.3)

Importing this loads neither torch nor the reader's packages, and no module of its own until one of
its names is used. With no recording active, the marks cost one attribute look-up and do nothing.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .api import mark, phase, record, start, step, stop, value
    from .validation.assertions import assert_finite_grad, assert_grad_norm, assert_nonzero_grad
    from .validation.pinning import pin
    from .validation.validators import validator

_MODULES = {
    "api": ("mark", "phase", "record", "start", "step", "stop", "value"),
    "validation.assertions": ("assert_finite_grad", "assert_grad_norm", "assert_nonzero_grad"),
    "validation.pinning": ("pin",),
    "validation.validators": ("validator",),
}
"""Where each name is defined."""

__all__ = [
    "assert_finite_grad",
    "assert_grad_norm",
    "assert_nonzero_grad",
    "mark",
    "phase",
    "pin",
    "record",
    "start",
    "step",
    "stop",
    "validator",
    "value",
]


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            from importlib import import_module

            found: object = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
