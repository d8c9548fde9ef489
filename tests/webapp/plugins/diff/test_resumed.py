"""A run that goes on from a checkpoint of its base, as the bits of its gradients show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from lanescope.webapp.plugins.diff.diff import compare
from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import START_NS, Builder

MS = 1_000_000


def trained(path: Path, norms: Sequence[float]) -> Run:
    """A run of one step for each norm, which both of its parameters have."""
    builder = Builder(path)
    thread = builder.thread()
    for step, norm in enumerate(norms):
        for parameter in ("weight", "bias"):
            builder.row(
                "gradient",
                0,
                thread,
                time_ns=START_NS + step * MS,
                step=step,
                norm=norm,
                parameter=parameter,
                numel=4,
                dtype="float32",
            )
    return open_run(builder.write())


@pytest.mark.parametrize(
    ("norms", "answer"),
    [
        (
            [3.0, 4.0],
            "step 0 has the gradients of step 2 of the baseline, to the last bit, and so have",
        ),
        ([3.0, 4.5], "step 1 not those of step 3: the run resumes with the baseline's parameters"),
        ([4.0, 5.0], "step 0 has the gradients of step 3 of the baseline, to the last bit"),
        ([1.0, 2.5], ""),  # begins where the baseline did
        ([3.0000002, 4.0], ""),
        ([2.0, 2.0], "step 1 not those of step 2"),
    ],
)
def test_where_a_run_goes_on(tmp_path: Path, norms: list[float], answer: str) -> None:
    base = trained(tmp_path / "base", [1.0, 2.0, 3.0, 4.0])
    notes = compare(base, trained(tmp_path / "run", norms)).notes
    found = [note for note in notes if "the gradients of step" in note]
    assert len(found) == bool(answer)
    assert answer in "".join(found)


def test_gradients_that_stay_the_same_show_nothing(tmp_path: Path) -> None:
    base = trained(tmp_path / "base", [1.0, 3.0, 3.0])
    notes = compare(base, trained(tmp_path / "run", [3.0, 3.0])).notes
    assert not any("the gradients of step" in note for note in notes)
