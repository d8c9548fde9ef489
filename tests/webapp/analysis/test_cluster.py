"""Ranks asked side by side answer as they do one by one, wherever the work is done."""

from __future__ import annotations

import os
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from pathlib import Path

import pytest

from lanescope.webapp.analysis.cluster import each_rank, in_own_process
from lanescope.webapp.bundles.writer import pack
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import write_run


def time_in_ops(run: Run, rank: int) -> int:
    return int(run.events("op", rank, columns=["self_ns"])["self_ns"].to_numpy().sum())


@pytest.mark.slow
def test_every_executor_gives_the_same(tmp_path: Path) -> None:
    from distributed import Client  # which takes long, and all workers collect this file

    pack(open_run(write_run(tmp_path / "run", ranks=3, steps=2, ops=8)), tmp_path / "run.lanes")
    run = open_run(tmp_path / "run.lanes")
    expected = {rank: time_in_ops(run, rank) for rank in run.ranks}
    assert len(expected) == 3
    assert all(expected.values())
    assert each_rank(run, time_in_ops) == expected
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        assert each_rank(run, time_in_ops, processes) == expected
    with Client(processes=False, dashboard_address=None, n_workers=1) as client:
        assert each_rank(run, time_in_ops, client) == expected
        with pytest.raises(RunError, match="gone wrong"):
            each_rank(run, _fails, client)
        # Another run is at the address by now: its figures must not pass for this one's.
        pack(open_run(write_run(tmp_path / "other", steps=1)), tmp_path / "new.lanes")
        (tmp_path / "new.lanes").replace(tmp_path / "run.lanes")
        _opened_again()
        with pytest.raises(RunError, match=re.escape(f"expected {run.etag}")):
            each_rank(run, time_in_ops, client)


def _opened_again() -> None:
    from lanescope.webapp.analysis.cluster import _opened

    _opened.cache_clear()  # the workers are threads of this process


def _fails(run: Run, rank: int) -> None:
    raise RunError(f"rank {rank} has gone wrong")


def test_a_process_of_its_own_answers_the_same(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=2, steps=2, ops=8))
    assert in_own_process(_asked_elsewhere, (run,), 1) == (True, time_in_ops(run, 1))
    with pytest.raises(RunError, match="rank 1 has gone wrong"):
        in_own_process(_fails, (run,), 1)
    assert in_own_process(_ends_elsewhere, (run,), 1) == time_in_ops(run, 1)


def _asked_elsewhere(run: Run, rank: int) -> tuple[bool, int]:
    return parent_process() is not None, time_in_ops(run, rank)


def _ends_elsewhere(run: Run, rank: int) -> int:
    if parent_process() is not None:
        os._exit(9)
    return time_in_ops(run, rank)
