"""What a plugin hands to the page: figures of the run, pictures and places of a finding's evidence.

All are plain data; the page draws them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lanescope.webapp.runs.types import Float64Array

MAX_COLUMNS = 60
"""Steps, or calls, that a picture shows; of more, neighbours share a column."""


@dataclass(frozen=True)
class Headline:
    """One figure of a run, with its course over the steps."""

    value: str  # with its unit
    note: str  # one line that puts it into proportion
    course: Sequence[float] = ()  # a value per step, in their order; NaN: none
    tone: Literal["", "good", "warn", "bad"] = ""  # good and bad: against a limit only


@dataclass(frozen=True, eq=False)
class HeatPicture:
    """A small heat map: `values[row, column]` from 0 to 1, NaN: nothing to show."""

    title: str
    rows: tuple[str, ...]
    values: Float64Array
    first: str = ""  # what the first column is
    last: str = ""


@dataclass(frozen=True)
class CauseMark:
    """A stretch of a lane that shows the cause of a finding: ns from the start of the run."""

    lane: str  # key, see analysis.links
    start_ns: int
    end_ns: int
    words: str
    missing: bool = False  # what should be there and never came, drawn hatched
