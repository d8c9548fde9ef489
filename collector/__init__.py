"""Records a PyTorch run.

    import lanescope.collector as ls
    with ls.record("runs/a"):
        with ls.phase("warm-up"): ...
        ls.mark("thread 3 start")
        ls.value("grad_norm", 0.3)

Importing this loads neither torch nor the reader's packages. With no recording active, the marks
cost one attribute look-up and do nothing.
"""

from .api import mark, phase, record, start, step, stop, value
from .validation.assertions import assert_finite_grad, assert_grad_norm, assert_nonzero_grad
from .validation.pinning import pin
from .validation.validators import validator

__all__ = [
    "assert_finite_grad", "assert_grad_norm", "assert_nonzero_grad", "mark", "phase", "pin",
    "record", "start", "step", "stop", "validator", "value",
]  # fmt: skip
