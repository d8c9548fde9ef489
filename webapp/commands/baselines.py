"""Opens a baseline beside the run, and the baseline recorded again (`view`, `check`, `diff`)."""

from __future__ import annotations

import click

from lanescope.webapp.runs.run import Run, open_run

NOISE_HELP = "A second recording of RUN0; differences between the two count as noise."


def open_baseline(place: str, run: Run) -> Run:
    """Returns the run at a place, from the step on whose checkpoint `run` resumes from, if any."""
    from lanescope.webapp.plugins.diff.pairing.resumed import continued  # needs pandas

    return continued(open_run(place), run)


def baselines(run: Run, baseline: str | None, noise: str | None) -> tuple[Run | None, Run | None]:
    """Returns both, opened beside `run`. click.UsageError for the second without the first."""
    if baseline is None:
        if noise is not None:
            raise click.UsageError(
                "--noise is the baseline recorded again; name the baseline too: --baseline RUN0"
            )
        return None, None
    return open_baseline(baseline, run), None if noise is None else open_baseline(noise, run)
