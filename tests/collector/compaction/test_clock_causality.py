"""Clocks made truer by cause and effect, against clocks whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lanescope.collector.compaction import manifest as manifests
from lanescope.collector.compaction.clock_fit import UNMEASURED_DRIFT_PPB, Fit
from lanescope.collector.compaction.clock_refine import Bounds, Contradiction, refined
from lanescope.collector.compaction.compact import compact
from lanescope.webapp import open_run
from lanescope.webapp.bundles.merge_ranks import merge
from tests.support.run_builder import HOST, START_NS, Builder

SECOND = 1_000_000_000
LENGTH = 20 * SECOND


class Clock:
    """A clock that is off, drifts, and drifts more at some times than at others."""

    def __init__(self, random: np.random.Generator) -> None:
        self.off = int(random.integers(-(10**15), 10**15))
        self.drift = random.uniform(-40e-6, 40e-6)
        self.wander = random.uniform(0, 50e-6)  # of slope, at most; with the drift below 1e-4
        self.turn = 2 * np.pi / random.uniform(0.2 * LENGTH, 2 * LENGTH)

    def reads(self, true_ns: Any) -> Any:
        """What it shows at an instant of the reference's."""
        since = np.asarray(true_ns) - START_NS
        swing = self.wander / self.turn * np.sin(self.turn * since)
        return np.asarray(true_ns) + self.off + np.rint(since * self.drift + swing).astype(np.int64)


def bounds_of(
    clock: Clock, random: np.random.Generator, calls: int, latency: float
) -> tuple[Bounds, Bounds]:
    """Of collectives between a rank of the reference's clock and one of `clock`'s."""
    here = START_NS + np.sort(random.integers(0, LENGTH - SECOND, calls))
    there = here + random.normal(0, 5 * latency, calls).astype(np.int64)  # who is late is chance
    last = np.maximum(here, there)
    done_here = last + random.exponential(latency, calls).astype(np.int64)
    done_there = last + random.exponential(latency, calls).astype(np.int64)
    return (
        Bounds(clock.reads(done_there), here),
        Bounds(clock.reads(there), done_here),
    )


def measured(clock: Clock, random: np.random.Generator, wide: int) -> tuple[Fit, int, int]:
    """A mapping that was measured once, as wrong as it may be: with no drift, at the start."""
    start, end = int(clock.reads(START_NS)), int(clock.reads(START_NS + LENGTH))
    wrong = int(random.integers(-wide, wide))
    return Fit(START_NS - start + wrong, 0.0, wide + LENGTH // 10_000), start, end


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.slow
def test_the_remaining_error_is_within_the_stated_uncertainty(seed: int) -> None:
    random = np.random.default_rng(seed)
    clock = Clock(random)
    found, start, end = measured(clock, random, 300_000)
    calls, latency = int(random.integers(1, 400)), 10 ** random.uniform(4, 6.5)
    fit = refined(found, start, end, *bounds_of(clock, random, calls, latency))
    assert fit.uncertainty_ns <= found.uncertainty_ns
    true = START_NS + np.linspace(0, LENGTH, 500).astype(np.int64)
    local = clock.reads(true)
    placed = local + fit.offset_ns + np.rint((local - start) * (fit.drift_ppb * 1e-9))
    assert np.abs(placed - true).max() <= fit.uncertainty_ns


def test_many_calls_bound_the_drift_of_a_clock_measured_once() -> None:
    random = np.random.default_rng(1)
    clock = Clock(random)
    clock.drift, clock.wander = 37e-6, 0.0
    found, start, end = measured(clock, random, 30_000)
    fit = refined(found, start, end, *bounds_of(clock, random, 2_000, 50_000.0))
    assert found.uncertainty_ns == 2_030_000
    assert fit.uncertainty_ns < 200_000
    assert fit.drift_ppb == pytest.approx(-37_000, abs=10_000)


def test_one_call_is_worked_out_on_paper() -> None:
    """Between 0 and 100 s after the start, of a clock that is at most 1 ms off."""
    found = Fit(0, 0.0, 1_000_000)
    at = np.array([50 * SECOND])
    call = Bounds(at, at + 200_000), Bounds(at, at + 400_000)
    # At the call the band is 0.2 ms wide, 7 s away it is 1.3 ms up, at the ends as wide as before.
    assert refined(found, 0, 100 * SECOND, *call) is found
    # Within a second of it: from 0.2 - 0.1 to 0.4 + 0.1 ms.
    near = refined(found, 49 * SECOND, 51 * SECOND, *call)
    assert (near.offset_ns, round(near.drift_ppb)) == (300_000, 0)
    assert near.uncertainty_ns == pytest.approx(100_000 + UNMEASURED_DRIFT_PPB, abs=3)


def test_bounds_that_exclude_each_other_are_rejected() -> None:
    at = np.array([SECOND])
    found = Fit(0, 0.0, 1_000)
    with pytest.raises(Contradiction):
        refined(found, 0, 2 * SECOND, Bounds(at, at + 500), Bounds(at, at - 500))
    nothing = Bounds(at[:0], at[:0])
    with pytest.raises(Contradiction):  # the call or the measurement is wrong
        refined(found, 0, 2 * SECOND, Bounds(at, at + 500_000), nothing)
    assert refined(found, 0, 2 * SECOND, nothing, nothing) is found


OFF, WRONG, WIDE = 7_000 * SECOND, 800_000, 1_000_000
NARROW = 46_400
"""Between 0.05 ms before and 0.03 ms after what it is, and 64 ms of drift from the last call on."""


def two_hosts(path: Path, ranks: tuple[int, ...] = (0, 1), **changes: Any) -> Path:
    """Ranks 0 and 1, whose clock is 7000 s ahead and was measured 0.8 ms wrong, in a second."""
    what = {"name": "all_reduce", "bytes": 64, "calibrated": True, "exception": "", "calls": 40}
    what |= changes
    builder = Builder(path, world_size=2, complete=len(ranks) == 2)
    for rank in ranks:
        ahead = OFF * rank
        start = START_NS + ahead
        clock = {
            "offset_ns": WRONG - OFF,
            "uncertainty_ns": WIDE,
            "host": "far",
            "calibrated": what["calibrated"],
        }
        builder.process(
            rank,
            start_ns=start,
            end_ns=start + SECOND,
            clock=clock if rank else {},
            exception=what["exception"],
        )
        calls = np.arange(what["calls"] if rank else 40)
        # Rank 1 comes 0.02 ms after rank 0, and both are done 0.03 ms later.
        began = START_NS + 1_000 + calls * 24_000_000
        builder.rows(
            "collective",
            rank,
            f"{1000 + rank}-0",
            start_ns=began + 20_000 * rank + ahead,
            duration_ns=100,
            complete_ns=began + 50_000 + ahead,
            name=what["name"],
            group="0",
            group_size=2,
            sequence=calls,
            bytes=what["bytes"],
        )
    return builder.write()


def far(path: Path) -> dict[str, Any]:
    clock: Any = next(p["clock"] for p in open_run(path).manifest["processes"] if p["rank"] == 1)
    return dict(clock)


def test_a_finished_run_has_clocks_that_agree_with_its_collectives(tmp_path: Path) -> None:
    path = two_hosts(tmp_path / "run")
    compact(path)
    clock = far(path)
    assert abs(clock["offset_ns"] + OFF) <= clock["uncertainty_ns"]
    assert clock["uncertainty_ns"] == pytest.approx(NARROW, abs=5)
    assert open_run(path).clock_uncertainty_ns == clock["uncertainty_ns"]
    once = manifests.load_manifest(path)["processes"]
    compact(path)
    assert manifests.load_manifest(path)["processes"] == once


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "broadcast"},  # its root may be done before the others come
        {"bytes": 0},
        {"calls": 39},  # one of them counted from elsewhere, or stopped
        {"exception": "RuntimeError: timed out"},  # a call that failed may look complete
        {"calibrated": False},
    ],
)
def test_calls_that_prove_nothing_change_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = two_hosts(tmp_path / "run", **changes)
    compact(path)
    assert (far(path)["offset_ns"], far(path)["uncertainty_ns"]) == (WRONG - OFF, WIDE)


def test_a_measurement_that_the_calls_exclude_stays_as_it_was(tmp_path: Path) -> None:
    path = two_hosts(tmp_path / "run")
    manifest = manifests.load_manifest(path)
    manifest["processes"][1]["clock"]["uncertainty_ns"] = 1_000
    manifests.write_manifest(path, manifest)
    compact(path)
    assert far(path)["uncertainty_ns"] == 1_000


def test_runs_of_two_hosts_become_one_with_truer_clocks(tmp_path: Path) -> None:
    parts = [open_run(two_hosts(tmp_path / f"{rank}", (rank,))) for rank in (0, 1)]
    assert parts[1].clock_uncertainty_ns == WIDE
    assert parts[0].manifest["axis"] == {"clock_identity": HOST, "wall_minus_monotonic_ns": 0}
    merge(parts, tmp_path / "both")
    clock = far(tmp_path / "both")
    assert abs(clock["offset_ns"] + OFF) <= clock["uncertainty_ns"] < NARROW + 5
