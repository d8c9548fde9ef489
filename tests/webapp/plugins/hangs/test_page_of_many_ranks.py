"""The table of ranks on the page Hangs: those concerned first, no more than are shown at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lanescope.webapp.plugins.hangs import page
from lanescope.webapp.runs.run import open_run
from lanescope.webapp.ui.context import Context
from tests.support.run_builder import START_NS, Builder


def test_ranks_that_wait_or_are_missing_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = Builder(tmp_path / "run", world_size=6)
    groups = {"0": [0, 1, 2, 5], "1": [3, 4]}
    for group, ranks in groups.items():
        builder.manifest["groups"][group] = {"ranks": ranks, "description": ""}
        for rank in ranks:
            thread = builder.thread(rank)
            for sequence in range(2 if rank == 3 else 1):
                builder.row(
                    "collective",
                    rank,
                    thread,
                    start_ns=START_NS + 100 + 1000 * sequence,
                    name="all_reduce",
                    group=group,
                    group_size=len(ranks),
                    sequence=sequence,
                    bytes=64,
                    duration_ns=None if sequence else 100,
                    complete_ns=None if sequence else START_NS + 200,
                )
    run = open_run(builder.write())
    assert page._shown(run, 0) == [0, 1, 2, 3, 4, 5]
    monkeypatch.setattr(page, "RANKS", 4)
    held = page._shown(run, 0)
    assert set(held[:2]) == {3, 4}
    assert page._shown(run, 4) == [2, 5]
    table = json.dumps(
        page._ranks(Context(run), 4).to_plotly_json(), default=lambda part: part.to_plotly_json()
    )
    assert table.count('"type": "Tr"') == 1 + 2
