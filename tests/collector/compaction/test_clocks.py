"""Clocks of several hosts on one axis: measurement, mapping, and uncertainty."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from lanescope.collector.compaction import process_placement
from lanescope.collector.compaction.clock_fit import UNMEASURED_DRIFT_PPB, Calibration, Point, fit
from lanescope.collector.format.options import Options
from lanescope.collector.hooks.collectives import clocks
from lanescope.collector.recorder.recorder import Recorder
from tests.support.processes import fork_program
from tests.support.recording import write_program

HOUR_NS = 3_600_000_000_000


@pytest.mark.slow
def test_a_drifting_clock_is_placed_within_its_uncertainty() -> None:
    skipped = 0
    drift, off = 40e-6, 3_000_000_007

    def true() -> int:
        return time.monotonic_ns() + skipped

    start = true()

    def drifting() -> int:
        now = true()
        return now + off + int((now - start) * drift)

    over = threading.Event()
    server = clocks.ClockServer(true)
    thread = threading.Thread(target=server.serve, args=(over.is_set,))
    thread.start()
    try:
        client = clocks.Client(["127.0.0.1"], server.port, server.nonce, drifting)
        points = []
        for _ in range(3):
            points.append(client.measure(100))
            skipped += HOUR_NS
        client.close()
    finally:
        over.set()
        thread.join()
    local_start, local_end = start + off, points[-1].local_ns
    found = fit(points, local_start, local_end)
    assert found.drift_ppb == pytest.approx(-40_000, rel=1e-3)
    assert 0 < found.uncertainty_ns < 10_000_000
    for instant in (start, start + HOUR_NS, start + 2 * HOUR_NS):
        local = instant + off + int((instant - start) * drift)
        placed = local + found.offset_ns + round((local - local_start) * found.drift_ppb * 1e-9)
        assert abs(placed - instant) <= found.uncertainty_ns


def test_a_rank_0_that_once_answers_late_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "FIRST_PAUSE_S", 0.01)
    late = [2 * clocks.ANSWER_S]  # a thread of its holds Python's lock

    def now() -> int:
        time.sleep(late.pop() if late else 0)
        return time.monotonic_ns()

    over = threading.Event()
    server = clocks.ClockServer(now)
    recorder = Recorder(tmp_path, Options())
    recorder.thread()
    measured = clocks.Clocks(recorder)
    threads = [
        threading.Thread(target=server.serve, args=(over.is_set,)),
        threading.Thread(
            target=measured._measure,
            args=(
                lambda: clocks.Client(["127.0.0.1"], server.port, server.nonce),
                Calibration("a", 0, ()),
            ),
        ),
    ]
    for one in threads:
        one.start()
    assert recorder.folder is not None
    file = recorder.folder / clocks.CALIBRATION_FILE
    deadline = time.monotonic() + 30
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    measured._ending = True
    measured._wake.release()
    threads[1].join()
    over.set()
    threads[0].join()
    assert len(Calibration.parse(json.loads(file.read_text())).points) >= 1
    assert not late


def test_one_measurement_leaves_the_drift_open() -> None:
    second = 1_000_000_000
    found = fit([Point(5 * second, 77, 30)], 3 * second, 6 * second)
    assert found == (77, 0.0, 30 + round(2 * second * UNMEASURED_DRIFT_PPB * 1e-9))


def test_what_strays_from_the_line_is_uncertain() -> None:
    points = [Point(0, 0, 10), Point(50 * HOUR_NS, 900, 10), Point(100 * HOUR_NS, 0, 10)]
    assert fit(points, 0, 100 * HOUR_NS).uncertainty_ns == 911


def test_a_stranger_gets_no_answer() -> None:
    over = threading.Event()
    server = clocks.ClockServer()
    thread = threading.Thread(target=server.serve, args=(over.is_set,))
    thread.start()
    try:
        with socket.create_connection(("127.0.0.1", server.port), 5) as stranger:
            stranger.sendall(bytes(16))
            assert stranger.recv(1) == b""
        assert server.served == 0
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_an_exit_while_the_store_is_asked_ends_well(tmp_path: Path) -> None:
    program = write_program(
        tmp_path,
        """
        import atexit, datetime, sys, threading
        from pathlib import Path
        import torch.distributed as dist
        from lanescope.collector.format.options import Options
        from lanescope.collector.recorder.recorder import Recorder
        from lanescope.collector.hooks.collectives import clocks

        asked = threading.Event()

        class Slow:
            def add(self, key, count):
                return 0
            def check(self, keys):
                print("asked", flush=True)
                asked.set()
                dist.HashStore().wait(["never"], datetime.timedelta(seconds=1))

        measured = clocks.Clocks(Recorder(Path(sys.argv[1]), Options()))
        atexit.register(measured.stop)
        measured.joined(Slow(), 1, 2)
        asked.wait()
        """,
    )
    done = fork_program(program, str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "asked\n", "")


def test_ranks_of_one_host_open_nothing(tmp_path: Path) -> None:
    store = dist.HashStore()
    for recording in (1, 2):
        key = f"{clocks.KEY}{recording}/"
        ranks = [clocks.Clocks(Recorder(tmp_path, Options())) for _ in range(2)]
        for rank, one in enumerate(ranks):
            one.joined(store, rank, 2)
        deadline = time.monotonic() + 30
        while store.add(key + "joined", 0) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert store.add(key + "joined", 0) == 2
        for one in ranks:
            one.stop()
        assert not store.check([key + "address"])
        assert store.add(key + "others", 0) == 0


def process(
    rank: int, host: str, wall: int, calibration: Calibration | None = None
) -> dict[str, Any]:
    return {
        "rank": rank,
        "pid": 10 + rank,
        "parent_pid": 1,
        "role": "rank",
        "host": host,
        "engine": "native",
        "start_ns": 1000,
        "end_ns": 2000,
        "closed": True,
        "argv": ["x"],
        "python": "3",
        "torch": "2",
        "modules_root": "",
        "clock_identity": host,
        "wall_minus_monotonic_ns": wall,
        "calibration": calibration,
    }


MEASURED = Calibration("a", 500, (Point(1500, -70, 9),))
PROCESSES = (
    process(0, "a", 500),
    process(1, "b", 600, MEASURED),
    process(2, "b", 650),  # shares the clock that rank 1 measured
    process(3, "c", 900),  # never measured
)


@pytest.mark.parametrize("order", list(itertools.permutations(PROCESSES)))
def test_the_order_in_which_processes_finish_does_not_matter(
    order: tuple[dict[str, Any], ...],
) -> None:
    axis, listed = None, []
    for one in order:
        axis, listed = process_placement.with_process(axis, listed, one)
    assert axis == {"clock_identity": "a", "wall_minus_monotonic_ns": 500}
    found = [
        (p["clock"]["offset_ns"], p["clock"]["uncertainty_ns"], p["clock"]["calibrated"])
        for p in listed
    ]
    assert found == [
        (0, 0, True),
        (-70, 9, True),
        (-70, 9, True),
        (400, process_placement.UNCALIBRATED_NS, False),
    ]


@pytest.mark.parametrize(
    "bad",
    [
        {},
        [],
        {"reference": "a", "wall_minus_monotonic_ns": 1, "points": [[1, 2.5, 3]]},
        {"reference": "a", "wall_minus_monotonic_ns": 1, "points": []},
        {"reference": "a", "wall_minus_monotonic_ns": 1, "points": [[1, 2**70, 3]]},
    ],
)
def test_a_damaged_calibration_is_ignored(bad: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Calibration.parse(bad)
