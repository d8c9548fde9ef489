"""A run beside its baseline on the timeline: lanes, instants, colours, the next difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lanescope.collector.format.steps import Steps
from lanescope.webapp.plugins.diff import timeline_lanes as timeline_index
from lanescope.webapp.plugins.diff.differences import PAIRS, PLACE_COLUMNS
from lanescope.webapp.plugins.diff.timeline_lanes import Warp
from lanescope.webapp.runs.run import open_run
from lanescope.webapp.server.server import make_app
from lanescope.webapp.timeline import index as indexes
from lanescope.webapp.timeline.search.marks import modules
from lanescope.webapp.timeline.span_details import run_facts, slice_facts
from lanescope.webapp.timeline.styles import STYLES
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.beside import BASE_STEP, RUN_STEP, US, pair
from tests.support.synthetic import START_NS, Builder, write_run

PHASES = 6
"""Slices of a lane before its ops."""

MORE = RUN_STEP + 200 * US
"""When b of step 1 begins in the run."""


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    base, run = pair(tmp_path_factory.mktemp("beside"))
    return Timeline.open(run, base)


def ops(timeline: Timeline, lane: int) -> list[tuple[str, int, int, str]]:
    """(name, start, end, style) of each op of a lane, by start."""
    index = timeline.index
    found = []
    for row in index.lane_rows[lane][timeline.lane(lane).phase_rows :]:
        for at in range(index.row_begin[row], index.row_end[row]):
            name, style = index.names[index.slices.name[at]], STYLES[index.slices.style[at]]
            found.append((name, int(index.slices.start[at]), int(index.slices.end[at]), style))
    return sorted(found, key=lambda one: one[1])


def test_each_thread_has_its_like_above_it(timeline: Timeline) -> None:
    drawn = run_facts(timeline)["lanes"]
    answer = [(lane["kind"], lane["rank"], lane["label"]) for lane in drawn]
    assert answer == [
        ("baseline", 0, "baseline MainThread"),
        ("thread", 0, "MainThread"),
        ("baseline", 1, "baseline MainThread"),
        ("thread", 1, "MainThread"),
    ]
    assert [lane["id"] for lane in drawn] == [2, 0, 3, 1]
    assert [lane.id for lane in timeline.index.lanes] == [0, 1, 2, 3]
    assert modules(timeline).codes.keys() == {0, 1}


def test_an_address_of_the_run_alone_is_one_beside_a_baseline(timeline: Timeline) -> None:
    alone = Timeline.open(timeline.run)
    assert len(alone.index.lanes) == 2
    for lane in alone.index.lanes:
        there = timeline.lane(lane.id)
        assert (there.key, there.rows) == (lane.key, lane.rows)
        sides = []
        for one in (alone, timeline):
            rows = [
                slice(one.index.row_begin[row], one.index.row_end[row])
                for row in one.index.lane_rows[lane.id]
            ]
            sides.append([one.index.slices.start[row].tolist() for row in rows])
        assert sides[0] == sides[1]  # so row and number of a slice mean the same


def test_steps_begin_together_and_are_compressed_only_where_they_must(timeline: Timeline) -> None:
    # Steps of 2 ms in the room of 1 ms: everything takes half its time.
    above = ops(timeline, 3)
    assert above[0] == ("a", 0, 50 * US, "identical")
    assert above[3] == ("a", RUN_STEP, RUN_STEP + 50 * US, "identical")
    assert above[4][:3] == ("b", RUN_STEP + 100 * US, RUN_STEP + 150 * US)
    slower = Timeline.open(timeline.baseline or timeline.run, timeline.run)
    first = ops(slower, 3)[3]  # 1 ms in the room of 2 ms: true lengths
    assert first == ("a", BASE_STEP, BASE_STEP + 100 * US, "identical")


def test_ops_are_coloured_by_what_became_of_them(timeline: Timeline) -> None:
    odd = {
        lane: {
            (name, start // RUN_STEP): style
            for name, start, _, style in ops(timeline, lane)
            if style != "identical"
        }
        for lane in range(4)
    }
    assert odd == {
        0: {
            ("a", 2): "within tolerance",
            ("c", 2): "slower",
            ("new", 1): "added",
            ("inside", 1): "added",
        },
        1: {("b", 1): "different"},
        2: {("a", 2): "within tolerance", ("c", 2): "slower"},
        3: {("b", 1): "different", ("gone", 2): "removed"},
    }


def test_the_next_difference_is_that_of_any_rank(timeline: Timeline) -> None:
    found = timeline.differences
    assert found is not None
    visited = []
    place = (0, -1, -1)
    while (answer := found.next(place, forward=True)) is not None:
        facts = slice_facts(timeline, answer["lane"], answer["ref"])
        visited.append((facts["name"], facts["rank"], answer["kind"]))
        assert facts["difference"] == answer["kind"]
        assert (answer["position"], answer["total"]) == (len(visited), 4)
        place = (facts["drawn"][0], answer["lane"], answer["row"])
    # Ops inside of an added op are not places of their own; neither is a slower op beside these.
    assert visited == [
        ("b", 1, "different"),
        ("new", 0, "added"),
        ("a", 0, "within tolerance"),
        ("gone", 1, "removed"),
    ]
    back = found.next(place, forward=False)
    assert back is not None
    assert back["position"] == 3
    assert found.next((0, -1, -1), forward=False) is None


def test_a_slice_of_the_baseline_shows_what_the_baseline_recorded(timeline: Timeline) -> None:
    drawn = ops(timeline, 3)
    ref = PHASES + [one[0] for one in drawn].index("gone")
    facts = slice_facts(timeline, 3, ref)
    assert (facts["name"], facts["step"], facts["difference"]) == ("gone", 2, "removed")
    assert facts["start_ns"] == str(2 * BASE_STEP + 700 * US)
    assert facts["duration_ns"] == str(100 * US)
    assert facts["drawn"] == [2 * RUN_STEP + 350 * US, 2 * RUN_STEP + 400 * US]
    assert "partner" not in facts
    assert facts["beside"] is None  # the run has no such operator


def test_an_operator_is_shown_beside_the_other_run_s(timeline: Timeline) -> None:
    place = next(
        at for at, (name, start, *_) in enumerate(ops(timeline, 1)) if (name, start) == ("b", MORE)
    )
    facts = slice_facts(timeline, 1, PHASES + place)
    beside = facts["beside"]
    assert (beside["lane"], beside["name"]) == (3, "b")
    assert beside["start_ns"] == RUN_STEP + 100 * US  # drawn in half its time, see above
    shown = {
        side: {name: beside[side]["tensors"]["out0"][name] for name in ("kind", "mean", "l2")}
        for side in ("base", "run")
    }
    assert shown == {
        "base": {"kind": "float32 [4]", "mean": 0.5, "l2": 1.0},
        "run": {"kind": "float32 [4]", "mean": 0.75, "l2": 1.5},
    }
    assert beside["base"]["duration_ns"] == beside["run"]["duration_ns"] == str(100 * US)
    [tie] = [one for one in facts["flows"] if one["kind"] == "baseline"]
    assert (tie["from"]["lane"], tie["to"]["lane"]) == (1, 3)
    # From the baseline's side it is the same pair.
    back = slice_facts(timeline, 3, beside["ref"])
    assert (back["beside"]["lane"], back["beside"]["ref"]) == (1, facts["ref"])
    assert {side: back["beside"][side] for side in ("base", "run")} == {
        side: beside[side] for side in ("base", "run")
    }


def test_a_slice_without_a_baseline_has_nothing_beside_it(timeline: Timeline) -> None:
    alone = Timeline.open(timeline.run)
    assert "beside" not in slice_facts(alone, 0, PHASES)


def test_runs_without_values_say_only_what_they_know(tmp_path: Path) -> None:
    base, run = (write_run(tmp_path / name, ranks=1, threads=2, steps=2) for name in ("a", "b"))
    same = Timeline.open(open_run(run), open_run(base))
    assert len(same.differences or ()) == 0
    styles = {style for lane in range(4) for *_, style in ops(same, lane)}
    assert not styles & {"identical", "different", "added", "removed", "slower", "faster"}
    assert run_facts(same)["baseline"].endswith("a")


def test_work_that_one_of_several_threads_of_a_backend_took_is_not_a_difference(
    tmp_path: Path,
) -> None:
    runs = []
    for name, taken in (
        ("base", (1, 2)),
        ("run", (2, 2)),
    ):  # of two calls, by ordinal of the thread
        builder = Builder(tmp_path / name, level="numerics")
        for step in range(2):
            builder.op(START_NS + step * RUN_STEP, 9 * US, "a", thread="1000-0", step=step)
        for position, ordinal in enumerate((*taken, 1)):
            thread = builder.thread(ordinal=ordinal, name="pt_gloo_runloop", kind="native")
            builder.op(
                START_NS + position * 100 * US,
                50 * US,
                "gloo:all_reduce",
                thread=thread,
                scope="user",
                step=0,
            )
        runs.append(open_run(builder.write()))
    base, run = runs
    beside = Timeline.open(run, base)
    assert len(beside.differences or ()) == 0
    answer = {style for lane in range(len(beside.index.lanes)) for *_, style in ops(beside, lane)}
    assert not answer & {"added", "removed"}


def test_the_address_of_the_next_difference(timeline: Timeline) -> None:
    app = make_app(timeline.run, timeline.baseline, index=timeline)
    client = app.server.test_client()
    address = f"/api/difference/{timeline.etag}"
    answer: dict[str, Any] = client.get(f"{address}?t=0").get_json()
    assert (answer["lane"], answer["kind"], answer["position"], answer["total"]) == (
        1,
        "different",
        1,
        4,
    )
    assert client.get(f"{address}?t=0&dir=prev").get_json() == {"ref": None, "total": 4}
    assert client.get(f"{address}?t=0&dir=up").status_code == 400
    assert client.get(f"/api/difference/{timeline.run.etag}?t=0").status_code == 409
    alone = make_app(timeline.run)
    etag = Timeline.open(timeline.run).etag
    assert alone.server.test_client().get(f"/api/difference/{etag}?t=0").status_code == 404


def test_an_index_beside_a_baseline_is_stored_for_these_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "SMALL", 1)
    base, run = pair(tmp_path)
    cache = tmp_path / "cache"
    built = Timeline.open(run, base, cache=cache)
    [folder] = cache.iterdir()

    def answer(one: Timeline) -> tuple[Any, ...]:
        assert one.differences is not None
        places = [getattr(one.differences, name).tolist() for name in PLACE_COLUMNS]
        partners = one.differences.partners
        places += [getattr(partners, name).tolist() for name in PAIRS]
        arrays = {name: array.tolist() for name, array in one.index.arrays.items()}
        return one.index.lanes, one.index.names, one.index.paints.codes, places, arrays

    expected = answer(built)
    with monkeypatch.context() as patch:
        patch.setattr(timeline_index, "Beside", None)  # nothing is compared again
        again = Timeline.open(open_run(tmp_path / "run"), open_run(tmp_path / "base"), cache=cache)
        assert answer(again) == expected
    (folder / "place_ref.npy").unlink()  # its mapped pages stay
    np.save(folder / "place_ref.npy", np.array([0, 1, 2, 10**6], np.int64))  # no such slice
    assert answer(Timeline.open(run, base, cache=cache)) == expected
    (folder / "pair_at.npy").unlink()
    np.save(folder / "pair_at.npy", np.array([0, 1, 10**6], np.int64))  # not so many pairs
    assert answer(Timeline.open(run, base, cache=cache)) == expected
    # Another baseline, the noise of it, or the other way round: other indexes.
    for sides in ((run, base, run), (base, run, None), (run, run, None)):
        Timeline.open(sides[0], sides[1], cache=cache, noise=sides[2])
    assert len(list(cache.iterdir())) == 4


def test_a_warp_never_turns_time_round() -> None:
    def steps(*bounds: tuple[int, int, int]) -> Steps:
        return Steps(*(np.array(column, np.int64) for column in zip(*bounds, strict=True)))

    warp = Warp(
        steps((0, 100, 200), (1, 200, 260), (3, 400, 500)),
        steps((0, 1000, 1050), (1, 1050, 1400), (2, 1400, 1500), (3, 1500, 1600)),
    )
    at = np.arange(0, 700, dtype=np.int64)
    moved = warp(at)
    assert (np.diff(moved) >= 0).all()
    assert moved[[0, 100, 150, 200, 259, 400, 500, 699]].tolist() == [
        900,
        1000,
        1025,
        1050,
        1109,
        1500,
        1600,
        1799,
    ]
    empty = np.empty(0, np.int64)
    assert (Warp(Steps(empty, empty, empty), steps((0, 5, 9)))(at) == at).all()
