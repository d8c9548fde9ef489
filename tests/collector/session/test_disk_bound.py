"""A recording that comes near its disk bound leaves out steps, says so, and harms nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lanescope.collector.recorder import disk_bound
from lanescope.collector.recorder.disk_bound import ONE_OF, DiskBound
from lanescope.webapp.analysis.incomplete_collectives import cut_short
from lanescope.webapp.runs.run import open_run
from tests.support.recording import record_program


def written(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes([1]) * size)
    return path


def looked(bound: DiskBound, journal: Path, world_size: int = 1) -> list[int]:
    """Which of the first steps are recorded after a look."""
    bound._due_ns = 0  # measured whenever it is asked for
    bound.look(journal, 7, 0, world_size)
    return [step for step in range(2 * ONE_OF + 1) if not bound.leaves_out(step)]


ALL, SOME = list(range(2 * ONE_OF + 1)), [0, ONE_OF, 2 * ONE_OF]


def test_a_journal_that_is_not_compacted_thins_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_bound, "JOURNAL_BYTES", 1_000_000)
    journal = tmp_path / "journal/7-1"
    bound = DiskBound(tmp_path, None, ring=False)
    for size, recorded in (
        (700_000, ALL),
        (850_000, SOME),
        (600_000, SOME),  # not before it is below half
        (1_100_000, []),
        (600_000, []),
        (400_000, ALL),
    ):
        written(journal / "0.seg", size)
        assert looked(bound, journal) == recorded, size
    written(journal / "0.seg", 2_000_000)
    assert looked(DiskBound(tmp_path, None, ring=True), journal) == ALL


def test_the_bound_of_a_run_is_shared_by_its_ranks(tmp_path: Path) -> None:
    journal = tmp_path / "journal/7-1"
    written(journal / "0.seg", 200_000)
    written(tmp_path / "rank=00000/thread=7-0/op-00000.parquet", 300_000)
    written(tmp_path / "rank=00000/thread=7-0/.op-00001.parquet.9", 900_000)  # being written
    written(tmp_path / "rank=00000/thread=71-0/op-00000.parquet", 900_000)  # another process
    bound = DiskBound(tmp_path, 4_000_000, ring=False)
    assert looked(bound, journal, world_size=4) == ALL
    assert looked(bound, journal, world_size=7) == SOME
    assert looked(bound, journal, world_size=9) == []


def test_a_folder_that_can_no_longer_be_reached_is_not_a_full_disk(tmp_path: Path) -> None:
    run = tmp_path / "project" / "run"
    run.mkdir(parents=True)
    bound = DiskBound(run, None, ring=False)
    shutil.rmtree(run.parent)
    assert looked(bound, run / "journal") == ALL


def test_a_disk_that_fills_counts_also_for_other_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 1_000
    monkeypatch.setattr(disk_bound, "_free_bytes", lambda run: free)
    bound = DiskBound(tmp_path, None, ring=False)
    for free, recorded in ((400, ALL), (350, SOME), (200, []), (0, []), (900, ALL)):
        assert looked(bound, tmp_path / "none") == recorded, free


PROGRAM = """
import threading
import torch
from lanescope.collector.api import active

layer = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
bound, lock = active().recorder.bound, threading.Lock()

def step():
    layer(torch.ones(4, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with lock:
        pass

def beside():
    with lock:
        shared.add_(1)

step()
shared = torch.zeros(4)
while not bound.full:
    step()
for _ in range(20):  # of these nothing is recorded but what orders the threads
    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    step()
shared.add_(1)
print(active().recorder.step, layer.weight.sum().item())
"""


def test_ops_stop_before_the_bound_and_order_is_kept(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, PROGRAM, "--max-disk", "1MB")
    assert recorded.status == 0, recorded.stderr
    run = open_run(recorded.run)
    steps, _ = recorded.stdout.split()
    seen = {row["step"] for row in recorded.rows("op")}
    assert seen
    assert max(seen) < int(steps) - 19
    thinned = run.coverage["thinned_steps"]
    assert 20 <= thinned <= int(steps)
    assert any(f"{thinned:,} steps of process" in one for one in run.warnings)
    assert run.size_bytes < 1_500_000
    assert cut_short(run)
    kinds = [row["kind"] for row in recorded.rows("sync")]
    assert min(kinds.count(one) for one in ("thread_start", "thread_begin", "thread_join")) >= 20


def test_a_program_without_a_bound_in_sight_records_all(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, "import torch; torch.ones(1).sin()", "--max-disk", "1TB")
    assert recorded.op_names() == ["aten::ones", "aten::sin"]
    assert "thinned_steps" not in open_run(recorded.run).coverage
    (tmp_path / "refused").mkdir()
    refused = record_program(tmp_path / "refused", "", "--max-disk", "1KB", real=True)
    assert refused.status == 2
    assert "max-disk is 1,000 bytes; it must be at least 1,000,000" in refused.stderr
