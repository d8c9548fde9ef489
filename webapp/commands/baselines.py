"""The option pair that `view` and `check` share: a baseline, and that baseline recorded again."""

from __future__ import annotations

import click

from lanescope.webapp.runs.run import Run, open_run

NOISE_HELP = "A second recording of RUN0; differences between the two count as noise."


def baselines(baseline: str | None, noise: str | None) -> tuple[Run | None, Run | None]:
    """Both runs, opened. click.UsageError for the second without the first."""
    if baseline is None:
        if noise is not None:
            raise click.UsageError(
                "--noise is the baseline recorded again; name the baseline too: --baseline RUN0"
            )
        return None, None
    return open_run(baseline), None if noise is None else open_run(noise)
