"""Finds calls that get nothing to do, or do it to the wrong thing.

- clippings that get no parameter, or none with a gradient;
- states that are loaded into the module that they were just taken from;
- steps on gradients of the loss of another optimizer;
- checkpointed functions that draw other random numbers when backward runs them again.
"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format.loop_names import (
    CLIPPED_NOTHING,
    LEFT_GRADIENTS,
    NUMBERS_DRAWN_AGAIN,
    OWN_STATE,
)
from lanescope.webapp.plugins.training_loop.line_findings import each_line
from lanescope.webapp.runs import units

_MIN_CLIPPINGS = 4
_MIN_MIXED = 4
_MIN_STATES = 2  # in different steps


@each_line(CLIPPED_NOTHING, "exploding_gradient", "clipped_nothing")
def clipped_nothing(at: str, rest: str, rows: pd.DataFrame) -> str | None:
    """Returns findings of kind `exploding_gradient`, one per line. Raises NotApplicable."""
    count = int(rows["value"].max())
    if len(rows) < _MIN_CLIPPINGS or (rows["value"] < 0).any():
        return None
    clips = f"clip_grad_norm_(){at} clips nothing, in {units.count(len(rows))} calls"
    if not count:
        return (
            f"{clips}: it gets no parameter. A generator such as model.parameters() is used up "
            "once an optimizer or a loop has gone through it: call model.parameters() again, or "
            "keep a list."
        )
    are = "parameter that it gets has" if count == 1 else "parameters that it gets have"
    return (
        f"{clips}: the {units.count(count)} {are} no gradient at that time. Call it after "
        "backward() and before step(), with the parameters that the loss trains."
    )


@each_line(OWN_STATE, "shared_parameter", "own_state")
def own_states(at: str, kind: str, rows: pd.DataFrame) -> str | None:
    """Returns findings of kind `shared_parameter`, one per line. Raises NotApplicable."""
    if rows["step"].nunique() < _MIN_STATES:
        return None
    return (
        f"load_state_dict(){at} copies {kind} onto itself, {units.count(len(rows))} times: both "
        "names are the same model, so a target, a teacher or a backup has the weights of now. "
        "Begin with a copy: copy.deepcopy(model)."
    )


@each_line(LEFT_GRADIENTS, "wrong_gradient", "left_gradients")
def left_gradients(at: str, rest: str, rows: pd.DataFrame) -> str | None:
    """Returns findings of kind `wrong_gradient`, one per line. Raises NotApplicable."""
    if len(rows) < _MIN_MIXED:
        return None
    own, other = rest.split("/", 1)
    return (
        f"step(){at} uses gradients of two losses, in {units.count(len(rows))} steps: the loss "
        f"that the optimizer of {other} has stepped by leads to {own} as well, and nothing zeroed "
        f"its gradients there. Call zero_grad() of the optimizer of {own} right before the "
        "backward() of its own loss."
    )


@each_line(NUMBERS_DRAWN_AGAIN, "wrong_gradient", "drawn_again", "certain")
def drawn_again(at: str, rest: str, rows: pd.DataFrame) -> str:
    """Returns findings of kind `wrong_gradient`, one per line. Raises NotApplicable."""
    return (
        f"The function that is checkpointed{at} draws random numbers, and checkpoint() does not "
        "keep the generator's state: backward runs it again with other ones (dropout drops other "
        "elements), so its gradients are those of another function. Leave out "
        "preserve_rng_state=False."
    )
