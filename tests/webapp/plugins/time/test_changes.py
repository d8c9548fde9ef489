"""Steps of a run beside those of a baseline, worked out on paper."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.plugins.time.breakdown import CATEGORIES
from lanescope.webapp.plugins.time.changes import category_changes, steady, step_changes
from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import START_NS, Builder
from tests.webapp.plugins.time.test_breakdown import MS


def trained(path: Path, forward: list[int], first: int = 0) -> Run:
    """Steps of 100 ms with a forward of these lengths (ms) and an optimizer of 10."""
    builder = Builder(path)
    for i, length in enumerate(forward):
        at = START_NS + 100 * MS * i
        for kind, start, span in (("forward", 0, length), ("optimizer", 90, 10)):
            begin = at + start * MS
            builder.phase(begin, span * MS, kind, step=first + i)
            builder.op(begin, span * MS, step=first + i)
    return open_run(builder.write())


def test_what_got_longer(tmp_path: Path) -> None:
    base, run = trained(tmp_path / "a", [50, 20, 20]), trained(tmp_path / "b", [60, 30, 40])
    changes = step_changes(base, run)
    assert changes["step"].tolist() == [0, 1, 2]
    apart = changes["forward_ns"] - changes["base_forward_ns"]
    assert (apart / MS).tolist() == [10, 10, 20]
    found = category_changes(steady(changes)).set_index("category")
    assert found.index.tolist() == ["forward", "optimizer", "python"]
    assert (found["change_ns"] / MS).tolist() == [15, 0, -15]
    for side in ("", "base_"):
        total = sum(changes[f"{side}{name}_ns"] for name in CATEGORIES)
        assert total.tolist() == changes[f"{side}duration_ns"].tolist()


def test_steps_of_other_numbers_are_compared_by_place(tmp_path: Path) -> None:
    base, run = trained(tmp_path / "a", [20, 20, 20]), trained(tmp_path / "b", [30, 40], first=7)
    changes = step_changes(base, run)
    assert changes[["step", "base_step"]].to_numpy().tolist() == [[7, 0], [8, 1]]
    builder = Builder(tmp_path / "c")
    builder.op(START_NS, MS)
    with pytest.raises(NotApplicable, match="baseline holds no training step"):
        step_changes(open_run(builder.write()), run)
