"""Stepping through matches visits every slice of the names once, in order."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest

from lanescope.webapp.runs.run import open_run
from lanescope.webapp.timeline.search import lookup as module
from lanescope.webapp.timeline.search.lookup import Key, find
from lanescope.webapp.timeline.search.marks import SearchRequest, hits, modules, place_among
from lanescope.webapp.timeline.spans import SAMPLES
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.synthetic import write_run


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    path: Path = tmp_path_factory.mktemp("runs") / "one"
    return Timeline.open(open_run(write_run(path, ranks=2, threads=2, steps=4, ops=40)))


def all_of(timeline: Timeline, names: set[int]) -> list[Key]:
    index = timeline.index
    found = []
    for lane in index.lanes:
        for number, row in enumerate(index.lane_rows[lane.id]):
            if index.arrays["row_table"][row] == SAMPLES:
                continue
            for at in range(index.row_begin[row], index.row_end[row]):
                if int(index.slices.name[at]) in names:
                    found.append((int(index.slices.start[at]), lane.id, number))
    return sorted(found)


@pytest.mark.parametrize("chunk", [1 << 16, 3])
@pytest.mark.parametrize("wanted", ["aten::mul", "forward", "all_reduce"])
def test_every_match_once_in_order(
    timeline: Timeline, wanted: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOKUP_ROWS", chunk)
    names = {i for i, name in enumerate(timeline.index.names) if name == wanted}
    looked = SearchRequest(timeline, names)
    expected = all_of(timeline, names)
    assert expected
    ahead: list[Key] = []
    place: Key = (-1, -1, -1)
    while (one := find(timeline, looked, place, True)) is not None:
        place = (one["start_ns"], one["lane"], one["row"])
        assert one["name"] == wanted
        ahead.append(place)
    assert ahead == expected
    back: list[Key] = []
    place = (timeline.run.duration_ns + 1, 1 << 30, 0)
    while (one := find(timeline, looked, place, False)) is not None:
        place = (one["start_ns"], one["lane"], one["row"])
        back.append(place)
    assert back == expected[::-1]


def test_ref_is_that_of_the_slice(timeline: Timeline) -> None:
    names = {timeline.index.names.index("aten::mul")}
    one = find(timeline, SearchRequest(timeline, names), (-1, -1, -1), True)
    assert one is not None
    base = timeline.index.row_begin[timeline.index.lane_rows[one["lane"]][0]]
    assert int(timeline.index.slices.start[base + one["ref"]]) == one["start_ns"]


def test_names_that_do_not_exist_match_nothing(timeline: Timeline) -> None:
    assert find(timeline, SearchRequest(timeline, [10**9, -1]), (0, 0, 0), True) is None
    assert find(timeline, SearchRequest(timeline, []), (0, 0, 0), True) is None


@pytest.mark.parametrize("chunk", [1 << 20, 7])
def test_hits_mark_each_start_and_count_all(
    timeline: Timeline, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanescope.webapp.timeline.search.marks.MARKED_ROWS", chunk)
    names = {timeline.index.names.index("aten::mul")}
    everything = all_of(timeline, names)
    t0, t1, many = 1_000_000, 3_000_000, 100
    inside = [key for key in everything if t0 <= key[0] < t1]
    found = hits(timeline, SearchRequest(timeline, names), (t0, t1), {0, 1}, many)
    assert found["total"] == len(inside)
    assert marked(found["marks"]) == {(t - t0) * many // (t1 - t0) for t, _, _ in inside}
    lane = [key for key in inside if key[1] == 0]
    assert marked(found["lanes"]["0"]) == {(t - t0) * many // (t1 - t0) for t, _, _ in lane}
    answer = sorted((start, 0, row) for row, start, _ in found["slices"][0])
    assert answer == lane
    assert set(found["slices"]) == {0, 1}


def test_too_many_hits_are_marked_but_not_named(
    timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanescope.webapp.timeline.search.marks.MAX_LISTED_HITS", 3)
    everything = SearchRequest(timeline, range(len(timeline.index.names)))
    found = hits(timeline, everything, (0, timeline.run.duration_ns), [], 10)
    assert found["slices"] is None
    assert found["total"] > 3


def test_position_of_a_hit_among_all(timeline: Timeline) -> None:
    names = {timeline.index.names.index("aten::mul")}
    everything = all_of(timeline, names)
    for position in (0, 1, len(everything) // 2, len(everything) - 1):
        answer = place_among(timeline, SearchRequest(timeline, names), everything[position])
        assert answer == (position + 1, len(everything))


def test_modules_are_looked_for_too(timeline: Timeline) -> None:
    texts = modules(timeline).texts
    wanted = SearchRequest(timeline, [], [texts.index("head")])
    ops = timeline.run.events("op", columns=["module"])["module"].to_pylist()
    found = hits(timeline, wanted, (0, timeline.run.duration_ns + 1), [], 1)
    assert found["total"] == ops.count("head") > 0


def test_a_search_is_narrowed_to_ranks_and_modules(timeline: Timeline) -> None:
    texts, run = modules(timeline).texts, timeline.run
    names = range(len(timeline.index.names))
    for rank in run.ranks:
        ops = run.events("op", rank, columns=["module"])["module"].to_pylist()
        wanted = SearchRequest(timeline, names, ranks=[rank], within=[texts.index("head")])
        found = hits(timeline, wanted, (0, run.duration_ns + 1), [], 1)
        assert found["total"] == ops.count("head") > 0
    nothing = SearchRequest(timeline, names, within=[])
    assert hits(timeline, nothing, (0, run.duration_ns + 1), [], 1)["total"] == 0


def marked(bits: str) -> set[int]:
    flags = np.unpackbits(np.frombuffer(base64.b64decode(bits), np.uint8), bitorder="little")
    return set(np.flatnonzero(flags).tolist())
