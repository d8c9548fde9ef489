"""Runs without a common rank are compared by the roles of their ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lanescope.webapp.plugins.diff.diff import compare
from lanescope.webapp.runs.run import Run, open_run
from tests.support.run_builder import START_NS, Builder


def run_of(path: Path, names: dict[int, str], **manifest: Any) -> Run:
    """A run in which each rank calls one operator, three times."""
    builder = Builder(path, world_size=16, complete=False, **manifest)
    for rank, name in names.items():
        thread = builder.thread(rank)
        for k in range(3):
            builder.op(START_NS + 100 * k, 50, name, rank=rank, thread=thread)
    return open_run(builder.write())


def test_without_groups_the_order_of_the_ranks_counts(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", {0: "aten::mm", 1: "aten::add"})
    run = run_of(tmp_path / "run", {8: "aten::mm", 9: "aten::add", 10: "aten::mul"})
    result = compare(base, run)
    assert (result.ops, [side.count for side in result.alone]) == (6, [0, 3])
    assert result.notes[0] == (
        "the runs have no rank in common, so ranks are compared by role: rank 0 of the baseline "
        "with rank 8 of the run, rank 1 of the baseline with rank 9 of the run"
    )


def test_groups_say_the_role(tmp_path: Path) -> None:
    def stages(*ranks: int) -> dict[str, Any]:
        return {"7": {"ranks": list(ranks), "description": "mesh_pp"}}

    base = run_of(tmp_path / "base", {0: "aten::mm", 1: "aten::add"}, groups=stages(0, 1))
    run = run_of(tmp_path / "run", {8: "aten::add", 9: "aten::mm"}, groups=stages(9, 8))
    result = compare(base, run)
    assert (result.ops, [side.count for side in result.alone]) == (6, [0, 0])
    assert "rank 0 of the baseline with rank 9 of the run (pp 0)" in result.notes[0]


def test_runs_with_a_common_rank_are_compared_by_rank(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", {0: "aten::mm", 1: "aten::add"})
    run = run_of(tmp_path / "run", {1: "aten::add", 2: "aten::mm"})
    result = compare(base, run)
    assert result.ops == 3
    assert not any("by role" in note for note in result.notes)
