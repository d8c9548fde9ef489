"""Texts of a process: bounded, and what does not fit is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.collector.compaction.reader import read_texts
from lanescope.collector.journal import string_table
from lanescope.collector.journal.string_table import CUT_OFF, MAX_SIGNATURES, StringTable
from lanescope.webapp import open_run
from tests.support.recording import SLOW_ON_PORTABLE, record_program


def test_names_past_the_bound_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(string_table, "MAX_TEXT_BYTES", 1_000)
    table = StringTable()
    table.attach(tmp_path)
    ids = [table.intern(f"name {i:05d}") for i in range(500)]
    known = read_texts(tmp_path)
    assert known[-1] == CUT_OFF
    assert set(ids[len(known) - 2 :]) == {len(known) - 1}
    assert table.left_out == {"texts_left_out": 500 - (len(known) - 2)}
    assert table.intern("name 00000") == ids[0]
    table.close()
    assert (tmp_path / "strings.bin").stat().st_size < 1_200


def test_signatures_have_a_bound_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(string_table, "MAX_SIGNATURES", 3)
    table = StringTable()
    found = [table.intern_signature(f"[{i}]") for i in (1, 2, 3, 4, 1, 4)]
    assert found == [(1, True), (2, True), (3, True), (4, False), (1, True), (4, False)]
    assert table.left_out == {"signatures_left_out": 2}
    assert table.intern("a name") == 5


@pytest.mark.parametrize("engine", SLOW_ON_PORTABLE)
@pytest.mark.slow
def test_shapes_that_never_repeat(tmp_path: Path, engine: str) -> None:
    recorded = record_program(
        tmp_path,
        """
        import torch
        for i in range(70_000):
            torch.empty((i, 0)).neg()
        """,
        "--engine",
        engine,
        "--level",
        "timing",
    )
    assert recorded.status == 0, recorded.stderr
    shapes = recorded.table("op")["shapes"].to_pylist()
    left_out = shapes.count(CUT_OFF)
    assert len(shapes) >= 70_000
    assert 70_000 - MAX_SIGNATURES <= left_out <= 70_010 - MAX_SIGNATURES
    assert open_run(recorded.run).coverage["signatures_left_out"] == left_out
