"""Lanes of many ranks: the first of each rank, and the others by rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lanescope.webapp.runs.run import open_run
from lanescope.webapp.timeline import lane_pages
from lanescope.webapp.timeline.arguments import BadRequest
from lanescope.webapp.timeline.lane_pages import (
    all_lanes,
    first_lanes,
    groupings,
    lanes_of_ranks,
)
from lanescope.webapp.timeline.span_details import run_facts
from lanescope.webapp.timeline.timeline import NoSuch, Timeline
from tests.support.run_builder import START_NS, Builder


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """Six ranks on three hosts, each with two threads and a counter."""
    builder = Builder(tmp_path_factory.mktemp("lanes") / "run", world_size=6)
    for rank in range(6):
        builder.process(rank, host=f"gpu-{rank // 2}")
        for ordinal in range(2):
            builder.op(START_NS, 100, rank=rank, thread=f"{1000 + rank}-{ordinal}")
        builder.row("value", rank, f"{1000 + rank}-0", time_ns=START_NS, name="loss", value=1.0)
    return Timeline.open(open_run(builder.write()))


def lanes_in(page: dict[str, object]) -> list[dict[str, object]]:
    columns, rows = page["columns"], page["rows"]
    assert isinstance(columns, list)
    assert isinstance(rows, list)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def test_first_comes_one_thread_of_each_rank_by_host(timeline: Timeline) -> None:
    page = first_lanes(timeline)
    lanes = lanes_in(page)
    assert page["count"] == 18
    assert [(lane["rank"], lane["kind"], lane["label"]) for lane in lanes] == [
        (rank, "thread", "MainThread") for rank in range(6)
    ]
    assert [lane["group"] for lane in lanes][1:3] == ["gpu-0 · ranks 0-1", "gpu-1 · ranks 2-3"]
    assert lanes[3]["process"] == {"name": "rank 3", "about": ""}


def test_all_lanes_of_a_rank_are_those_of_the_whole_list(timeline: Timeline) -> None:
    pages = lanes_of_ranks(timeline, [3], [timeline.index.lanes[-1].id])
    whole = {lane["id"]: lane for lane in all_lanes(timeline) if lane["rank"] in (3, 5)}
    found = {lane["id"]: lane for lane in lanes_in(pages)}
    assert set(found) == set(whole)
    for number, lane in found.items():
        for name in set(lane) - {"group", "process"}:
            assert lane[name] == whole[number][name], name


def test_few_lanes_come_at_once(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(run_facts(timeline)["lanes"]) == 18
    assert run_facts(timeline)["first_lanes"] is None
    monkeypatch.setattr(lane_pages, "LISTED", 17)
    assert run_facts(timeline)["lanes"] == []
    assert len(run_facts(timeline)["first_lanes"]["rows"]) == 6


def test_too_many_ranks_and_unknown_lanes_are_refused(timeline: Timeline) -> None:
    with pytest.raises(BadRequest, match="more than 64 ranks in one request"):
        lanes_of_ranks(timeline, range(65), [])
    with pytest.raises(NoSuch):
        lanes_of_ranks(timeline, [], [99])
    assert lanes_of_ranks(timeline, [7], [])["rows"] == []


def test_the_description_of_a_thousand_ranks_is_small(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run", world_size=1024)
    for rank in range(1024):
        builder.process(rank, host=f"gpu-{rank // 8:03d}")
    builder.op(START_NS, 100)
    timeline = Timeline.open(open_run(builder.write()))
    [lane] = lanes_in(first_lanes(timeline))
    assert len(json.dumps(list(lane.values()))) * 1024 < 190_000


def test_ranks_can_be_grouped_by_host_unless_they_come_so(
    timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    [found] = groupings(timeline)
    assert (found["name"], found["of"]) == ("host", [0, 0, 1, 1, 2, 2])
    assert found["titles"][1] == "gpu-1 · ranks 2-3"
    monkeypatch.setattr(lane_pages, "LISTED", 17)
    assert groupings(timeline) == []
