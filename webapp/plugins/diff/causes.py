"""What may have made two runs differ, the most likely cause first."""

from __future__ import annotations

from typing import Any

import pandas as pd

from lanescope.webapp.plugins.diff.code_differences import code_differences
from lanescope.webapp.plugins.diff.data_differences import data_notes, file_notes
from lanescope.webapp.plugins.diff.initial_differences import (
    draws_notes,
    start_notes,
    update_notes,
)
from lanescope.webapp.plugins.diff.pairing.resumed import LOST, resumed_notes
from lanescope.webapp.plugins.diff.pairing.unpaired import own_calls, own_gradients
from lanescope.webapp.plugins.diff.settings import settings_notes
from lanescope.webapp.plugins.diff.values import world_sizes
from lanescope.webapp.runs.run import Run


def cause_notes(
    base: Run,
    run: Run,
    first: dict[str, Any] | None,
    norms: pd.DataFrame,
    calls: pd.DataFrame | None,
    said: list[str],
) -> list[str]:
    """Returns what may have made the runs differ; one that resumes draws other numbers anyway.

    `calls` are those of runs without values of operators, `said` the sentences that follow.
    """
    resumed = resumed_notes(base, run)
    own = [] if resumed else [*draws_notes(base, run, first), *start_notes(base, run)]
    own += [] if resumed else update_notes(base, run)
    code = code_differences(base, run)
    lost = any(note.startswith(LOST) for note in resumed)  # which explains other data
    data = [] if lost else data_notes(base, run, same_code=code.same)
    apart = first is not None or said or lost or data
    lines = code.notes if apart else []
    files = file_notes(base, run) if apart else []
    found = [*resumed, *settings_notes(base, run), *lines, *files, *own, *data]
    found += own_gradients(norms)
    shared = bool(resumed) or world_sizes.shares_differ(base, run)
    if first is None or calls is None or shared:
        return found
    return [*found, *own_calls(base, run, calls, first, [*set(found).difference(lines), *said])]
