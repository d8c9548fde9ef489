"""Stepping through matches visits every slice of the names once, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp import find as module
from lanescope.webapp.find import Key, find
from lanescope.webapp.index import SAMPLES
from lanescope.webapp.run import open_run
from lanescope.webapp.timeline import Timeline
from tests.synthetic import write_run


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
    monkeypatch.setattr(module, "CHUNK", chunk)
    names = {i for i, name in enumerate(timeline.index.names) if name == wanted}
    expected = all_of(timeline, names)
    assert expected
    ahead: list[Key] = []
    place: Key = (-1, -1, -1)
    while (one := find(timeline, names, place, True)) is not None:
        place = (one["start_ns"], one["lane"], one["row"])
        assert one["name"] == wanted
        ahead.append(place)
    assert ahead == expected
    back: list[Key] = []
    place = (timeline.run.duration_ns + 1, 1 << 30, 0)
    while (one := find(timeline, names, place, False)) is not None:
        place = (one["start_ns"], one["lane"], one["row"])
        back.append(place)
    assert back == expected[::-1]


def test_ref_is_that_of_the_slice(timeline: Timeline) -> None:
    names = {timeline.index.names.index("aten::mul")}
    one = find(timeline, names, (-1, -1, -1), True)
    assert one is not None
    base = timeline.index.row_begin[timeline.index.lane_rows[one["lane"]][0]]
    assert int(timeline.index.slices.start[base + one["ref"]]) == one["start_ns"]


def test_names_that_do_not_exist_match_nothing(timeline: Timeline) -> None:
    assert find(timeline, [10**9, -1], (0, 0, 0), True) is None
    assert find(timeline, [], (0, 0, 0), True) is None
