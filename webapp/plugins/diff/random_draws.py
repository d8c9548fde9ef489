"""Says which random numbers one of two runs draws beside those that both draw.

From such a call on, torch's generator is in another state, so weights, dropout and the order of
data are others although the seed is the same.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from lanescope.webapp.analysis.arrow_columns import ops_named, stack_of
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_DRAW = re.compile(
    r"aten::(bernoulli_|exponential_|multinomial|native_dropout|normal_|random_|randperm|uniform_)"
)
_EXTRA, _FOLLOWING = 16, 8
"""Draws of one run in a row, and later ones that have to be the same in both runs."""


class _Draw(NamedTuple):
    key: tuple[str, str]  # operator, shapes
    step: int
    stack: int | None


def draws_notes(base: Run, run: Run, first: dict[str, Any] | None) -> list[str]:
    """Returns a sentence about the first call that one run makes alone, up to the step of the first
    difference; none where the order of calls does not prove one."""
    if first is None or first["rank"] not in base.ranks:
        return []
    rank, step = int(first["rank"]), int(first["step"])
    was, now = _draws(base, rank, step), _draws(run, rank, step)
    at = next((at for at, pair in enumerate(zip(was, now, strict=False)) if _apart(*pair)), None)
    if at is None:
        return []
    for one, draws, others, names in (
        (run, now, was, ("run", "baseline")),
        (base, was, now, ("baseline", "run")),
    ):
        later = [draw.key for draw in others[at : at + _FOLLOWING]]
        known = [draw.key for draw in draws[at + 1 : at + _EXTRA + _FOLLOWING]]
        extra = (known[more : more + len(later)] for more in range(_EXTRA))
        if later and any(keys == later for keys in extra):
            place = own_place(one, rank, draws[at].stack)
            shown = f"{draws[at].key[0]}{f' at {place}' if place else ''}"
            return [
                f"the {names[0]} draws random numbers that the {names[1]} does not, "
                f"{units.printable(shown)} in step {draws[at].step}: all that it draws later are "
                "others"
            ]
    return []


def _draws(run: Run, rank: int, until_step: int) -> list[_Draw]:
    """Calls of the first thread of a rank that draws numbers, in their order."""
    columns = ["start_ns", "name", "shapes", "step", "stack"]
    for thread in run.threads_of(rank):
        ops = ops_named(run, rank, thread.thread, columns, _DRAW.fullmatch)
        if len(ops):
            own = ops[ops["step"] <= until_step]
            return [
                _Draw((str(op["name"]), str(op["shapes"])), int(op["step"]), stack_of(op))
                for _, op in own.iterrows()
            ]
    return []


def _apart(was: _Draw, now: _Draw) -> bool:
    return was.key != now.key
