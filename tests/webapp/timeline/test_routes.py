"""What the page can ask over HTTP, and the answers to wrong questions."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import flask
import numpy as np
import pyarrow as pa
import pytest
from flask.testing import FlaskClient

from lanescope.webapp.runs.run import open_run
from lanescope.webapp.timeline import routes
from lanescope.webapp.timeline.index import open_index
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.synthetic import START_NS, Builder, write_run
from tests.support.tile_payload import decode


def serve(path: Path) -> tuple[FlaskClient, Timeline]:
    run = open_run(path)
    timeline = Timeline(run, open_index(run, None))
    server = flask.Flask("test")
    routes.register(server, timeline)
    return server.test_client(), timeline


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[FlaskClient, Timeline]:
    path = tmp_path_factory.mktemp("routes") / "run"
    return serve(write_run(path, ranks=2, threads=2, steps=3, ops=20))


def get(served: tuple[FlaskClient, Timeline], address: str) -> Any:
    """The JSON at an address; ETAG is replaced by the run's."""
    client, timeline = served
    response = client.get(address.replace("ETAG", timeline.etag))
    assert response.mimetype == "application/json"
    return json.loads(response.data, parse_constant=pytest.fail)


def test_run_facts(served: tuple[FlaskClient, Timeline]) -> None:
    client, timeline = served
    response = client.get("/api/run")
    facts = response.get_json()
    assert facts["etag"] == timeline.etag
    assert facts["duration_ns"] == timeline.run.duration_ns
    assert facts["origin_ns"] == str(timeline.run.origin_ns)
    assert (facts["world_size"], facts["ranks"], facts["missing_ranks"]) == (2, [0, 1], [])
    # Steps end with the optimizer of the second thread, 5 % of a step later than the first's.
    assert facts["steps"] == {
        "count": 3,
        "rank0": [[0, 0, 1_050_000], [1, 1_050_000, 2_150_000], [2, 2_150_000, 3_250_000]],
    }
    assert [lane["key"] for lane in facts["lanes"] if lane["kind"] == "thread"] == [
        "0/1000-0",
        "0/1000-1",
        "1/1001-0",
        "1/1001-1",
    ]
    assert facts["events"]["op"] == 240
    assert (facts["dropped"], facts["warnings"]) == (0, [])
    assert facts["clock"] == {"calibrated": True, "uncertainty_ns": 0}
    assert [lane["id"] for lane in facts["lanes"]] == list(range(10))
    first = facts["lanes"][0]
    assert {"id", "key", "rank", "pid", "thread", "kind", "label", "rows", "group", "title"} <= set(
        first
    )
    assert (first["group"], first["rows"], first["phase_rows"]) == ("rank 0", 3, 1)
    assert "aten::mul" in facts["names"]
    again = client.get("/api/run", headers={"If-None-Match": response.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")
    assert again.headers["Cache-Control"] == "no-cache"


def test_tile_is_the_timelines_and_may_be_kept(served: tuple[FlaskClient, Timeline]) -> None:
    client, timeline = served
    address = f"/tile/{timeline.etag}/12/0?lanes=0,4,3"
    response = client.get(address)
    assert response.data == timeline.tile(12, 0, [0, 4, 3])
    assert [block["lane"] for block in decode(response.data)["blocks"]] == [0, 0, 0, 3, 4]
    assert response.mimetype == "application/octet-stream"
    assert response.headers["Cache-Control"] == "private, max-age=31536000, immutable"
    assert response.headers["Server-Timing"].startswith("tile;dur=")
    tag = response.headers["ETag"]
    again = client.get(address, headers={"If-None-Match": tag})
    assert (again.status_code, again.data, again.headers["ETag"]) == (304, b"", tag)
    assert again.headers["Cache-Control"] == response.headers["Cache-Control"]
    for other in ("12/0?lanes=0,4", "11/0?lanes=0,4,3", "12/1?lanes=0,4,3"):
        assert client.get(f"/tile/{timeline.etag}/{other}").headers["ETag"] != tag
    packed = client.get(address, headers={"Accept-Encoding": "gzip, zstd"})
    assert packed.headers["Content-Encoding"] == "zstd"
    assert packed.headers["ETag"] != tag
    assert pa.input_stream(pa.py_buffer(packed.data), compression="zstd").read() == response.data
    assert (
        "Content-Encoding" not in client.get(address, headers={"Accept-Encoding": "gzip"}).headers
    )
    twice = client.get(f"/tile/{timeline.etag}/12/0?lanes=0,4,3,4")
    assert twice.data == response.data


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("/tile/ETAG/x/0?lanes=0", 400, "level is 'x', expected a whole number"),
        ("/tile/ETAG/1.5/0?lanes=0", 400, "level is '1.5', expected a whole number"),
        ("/tile/ETAG/٣/0?lanes=0", 400, "level is '٣', expected a whole number"),
        ("/tile/ETAG/41/0?lanes=0", 404, "no level 41, levels go from 0 to 40"),
        ("/tile/ETAG/-1/0?lanes=0", 404, "no level -1, levels go from 0 to 40"),
        ("/tile/ETAG/40/-1?lanes=0", 404, "no tile -1, level 40 has 0 to 8"),
        ("/tile/ETAG/40/9?lanes=0", 404, "no tile 9, level 40 has 0 to 8"),
        ("/tile/ETAG/0/99999999999999999999?lanes=0", 400, "expected a whole number"),
        ("/tile/ETAG/0/0", 400, "lanes is '', expected a whole number"),
        ("/tile/ETAG/0/0?lanes=0,,1", 400, "lanes is '', expected a whole number"),
        ("/tile/ETAG/0/0?lanes=0,ten", 400, "lanes is 'ten', expected a whole number"),
        ("/tile/ETAG/0/0?lanes=0,10", 404, "no lane 10, this run has 10, counted from 0"),
        ("/tile/ETAG/0/0?lanes=-1", 404, "no lane -1"),
        ("/tile/ETAG/0/0?lanes=0&part=5", 400, "part is '5', expected two numbers of 0 to 1024"),
        ("/tile/ETAG/0/0?lanes=0&part=7-7", 400, "part is '7-7', expected two numbers"),
        ("/tile/ETAG/0/0?lanes=0&part=0-1025", 400, "part is '0-1025', expected two numbers"),
        ("/tile/ETAG/0/0?lanes=" + "0," * 5000, 400, "more than 4096 lanes in one request"),
        ("/tile/other/0/0?lanes=0", 409, "this page shows 'other', but"),
        ("/api/slice/other/0/0", 409, "reload the page"),
        ("/api/slice/ETAG/10/0", 404, "no lane 10"),
        ("/api/slice/ETAG/0/72", 404, "no slice 72, lane 0 has 72 (0 to 71)"),
        ("/api/slice/ETAG/0/-1", 404, "no slice -1"),
        ("/api/slice/ETAG/0/a", 400, "slice is 'a', expected a whole number"),
        ("/api/nearest/other/0?row=0&t=0", 409, "reload the page"),
        ("/api/nearest/ETAG/0?row=3&t=0", 404, "no row 3, lane 0 has 3 (0 to 2)"),
        ("/api/nearest/ETAG/0?row=0", 400, "t is '', expected a whole number"),
        ("/api/nearest/ETAG/0?row=0&t=0&dir=up", 400, "dir is 'up', expected next or prev"),
        ("/api/overlap/other", 409, "reload the page"),
        ("/api/overlap/ETAG?phase=mark", 400, "phase is 'mark', expected one of user, forward"),
        ("/api/overlap/ETAG?t0=5", 400, "t1 is '', expected a whole number"),
        ("/api/overlap/ETAG?t0=5&t1=5", 400, "t0 is 5 and t1 is 5, expected t0 < t1"),
    ],
)
def test_wrong_questions(
    served: tuple[FlaskClient, Timeline], address: str, status: int, words: str
) -> None:
    client, timeline = served
    response = client.get(address.replace("ETAG", timeline.etag))
    assert response.status_code == status
    assert list(response.get_json()) == ["error"]
    assert words in response.get_json()["error"]
    assert response.headers["Cache-Control"] == "no-store"


def test_every_slice_shows_what_its_table_says(served: tuple[FlaskClient, Timeline]) -> None:
    run = served[1].run
    ops = run.events("op", 1, "1001-1").to_pylist()
    phases = run.events("phase", 1, "1001-1").to_pylist()
    answer = [get(served, f"/api/slice/ETAG/6/{ref}") for ref in range(len(ops) + len(phases))]
    assert [one["ref"] for one in answer] == list(range(len(answer)))
    for table, events in (("op", ops), ("phase", phases)):
        mine = sorted(
            (one for one in answer if one["table"] == table), key=lambda one: int(one["start_ns"])
        )
        expected = sorted(events, key=lambda event: event["start_ns"])
        for one, event in zip(mine, expected, strict=True):
            for name in ("start_ns", "duration_ns"):
                event[name] = str(event[name])
            if table == "op":
                event["self_ns"] = str(event["self_ns"])
                event["stack"] = []
            assert {name: one[name] for name in event} == event
            assert one["drawn"] == [
                int(event["start_ns"]),
                int(event["start_ns"]) + int(event["duration_ns"]),
            ]
            assert one["row"] == (event["depth"] + 1 if table == "op" else 0)


def test_slice_beyond_float64_is_exact(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.thread()
    builder.op(START_NS, 1)
    frame = {"file": "a.py", "line": 3, "function": "f"}
    builder.rows("stack", 0, None, stack=[4], frames=[[frame]])
    builder.op(START_NS + 2**53, 1, "aten::far", stack=4)
    client, timeline = serve(builder.write())
    answer = client.get(f"/api/slice/{timeline.etag}/0/1").get_json()
    assert answer["start_ns"] == str(2**53)
    assert answer["stack"] == [frame]


def test_unfinished_slice(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.thread()
    builder.op(START_NS, None, "aten::stuck")
    builder.op(START_NS + 50, 50, depth=1)
    served = serve(builder.write())
    answer = get(served, "/api/slice/ETAG/0/0")
    assert (answer["duration_ns"], answer["unfinished"], answer["drawn"]) == (None, True, [0, 100])


def test_forward_and_backward_find_each_other(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    main, worker = builder.thread(), builder.thread(ordinal=1)
    add = builder.op
    add(START_NS, 9, "aten::other", thread=main)
    add(START_NS + 10, 10, "aten::linear", thread=main, sequence=7)
    add(START_NS + 12, 5, "aten::addmm", thread=main, sequence=7, depth=1)
    add(START_NS + 10, 10, "aten::addmm", thread=worker, sequence=7)
    add(START_NS + 100, 10, "AddmmBackward0", thread=worker, sequence=7, scope="backward")
    add(START_NS + 199, 9, "aten::slice_backward", thread=main, sequence=7)  # made no node
    add(START_NS + 210, 10, "AddmmBackward0", thread=main, sequence=7, scope="backward")
    add(START_NS + 300, 10, "aten::_log_softmax", thread=main, sequence=8)
    add(START_NS + 310, 10, "aten::nll_loss_forward", thread=main, sequence=9)
    add(START_NS + 320, 10, "NllLossBackward0", thread=main, sequence=9, scope="backward")
    served = serve(builder.write())

    def partner(lane: int, ref: int) -> tuple[str, int, int] | None:
        found = get(served, f"/api/slice/ETAG/{lane}/{ref}")["partner"]
        return found and (found["name"], found["lane"], found["start_ns"])

    # Lane 0: refs 0..6 at depth 0 in order of time, then addmm at depth 1.
    assert partner(0, 0) is None
    assert partner(0, 1) == partner(0, 7) == ("AddmmBackward0", 0, 210)
    assert partner(0, 2) is None
    assert partner(0, 3) == ("aten::addmm", 0, 12)
    assert partner(0, 4) is None
    assert partner(0, 5) == ("NllLossBackward0", 0, 320)
    assert partner(0, 6) == ("aten::nll_loss_forward", 0, 310)
    assert partner(1, 0) == ("AddmmBackward0", 1, 100)
    assert partner(1, 1) == ("aten::addmm", 1, 10)


def test_collective_finds_the_same_one_on_other_ranks(
    served: tuple[FlaskClient, Timeline],
) -> None:
    answer = get(served, "/api/slice/ETAG/2/1")
    assert (answer["name"], answer["sequence"], answer["thread"]) == ("all_reduce", 1, "1000-0")
    (peer,) = answer["peers"]
    assert (peer["rank"], peer["lane"], peer["ref"], peer["name"]) == (1, 7, 1, "all_reduce")
    assert get(served, "/api/slice/ETAG/7/1")["peers"][0]["rank"] == 0


def test_samples(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    thread = builder.thread()
    builder.op(START_NS, 100)
    builder.rows(
        "value",
        0,
        thread,
        time_ns=START_NS + np.array([10, 20]),
        name="loss",
        value=[0.25, float("nan")],
        step=[3, 4],
    )
    served = serve(builder.write())
    assert get(served, "/api/slice/ETAG/1/0") == {
        "lane": 1,
        "row": 0,
        "ref": 0,
        "rank": 0,
        "table": "value",
        "name": "loss",
        "time_ns": "10",
        "value": 0.25,
        "step": 3,
    }
    assert get(served, "/api/slice/ETAG/1/1")["value"] == "nan"
    assert get(served, "/api/nearest/ETAG/1?t=10&dir=next") == {
        "lane": 1,
        "row": 0,
        "ref": 1,
        "start_ns": 20,
        "end_ns": 20,
        "name": "loss",
    }


def test_walking_a_row_meets_every_slice(served: tuple[FlaskClient, Timeline]) -> None:
    seen, at = [], -1
    while (found := get(served, f"/api/nearest/ETAG/0?row=1&t={at}&dir=next"))["ref"] is not None:
        seen.append(found["ref"])
        at = found["start_ns"]
    assert seen == list(range(12, 42))  # after 12 phases, 10 outer ops in each of 3 steps
    back = []
    at += 1
    while (found := get(served, f"/api/nearest/ETAG/0?row=1&t={at}&dir=prev"))["ref"] is not None:
        back.append(found["ref"])
        at = found["start_ns"]
    assert back == seen[::-1]


def test_overlap(served: tuple[FlaskClient, Timeline]) -> None:
    # Backward lasts 450 us a step; the second thread is 50 us behind.
    answer = get(served, "/api/overlap/ETAG?phase=backward")
    assert answer["rate"] == 400 / 500
    pair = {"a_ns": 1_350_000, "b_ns": 1_350_000, "overlap_ns": 1_200_000, "rate": 400 / 450}
    assert answer["pairs"] == [
        {"rank": 0, "a": 0, "b": 1, **pair},
        {"rank": 1, "a": 5, "b": 6, **pair},
    ]
    assert answer["total"] == 6
    assert sorted(answer["regions"])[:2] == [
        [450_000, 850_000, [0, 1]],
        [451_000, 851_000, [5, 6]],
    ]
    part = get(served, "/api/overlap/ETAG?phase=backward&t0=0&t1=500000")
    assert [region[:2] for region in part["regions"]] == [[450_000, 500_000], [451_000, 500_000]]
    nothing = get(served, "/api/overlap/ETAG?phase=evaluation")
    assert nothing == {"phase": "evaluation", "rate": None, "pairs": [], "regions": [], "total": 0}


def test_regions_are_capped_and_counted(
    served: tuple[FlaskClient, Timeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanescope.webapp.plugins.threads.timeline_overlap.MAX_REGIONS", 2)
    answer = get(served, "/api/overlap/ETAG")
    assert (len(answer["regions"]), answer["total"]) == (2, 6)


def test_run_that_was_damaged_since(tmp_path: Path) -> None:
    served = serve(write_run(tmp_path / "run", ranks=1, threads=1, steps=1, ops=2))
    for path in (tmp_path / "run").rglob("op-*.parquet"):
        path.write_bytes(b"gone")
    client, timeline = served
    response = client.get(f"/api/slice/{timeline.etag}/0/5")
    assert response.status_code == 500
    assert "op-00000.parquet" in response.get_json()["error"]


def test_two_runs_side_by_side(tmp_path: Path) -> None:
    server = flask.Flask("test")
    for name, steps in (("a", 1), ("b", 2)):
        run = open_run(write_run(tmp_path / name, ranks=1, threads=1, steps=steps, ops=2))
        prefix = "/baseline" if name == "b" else ""
        routes.register(server, Timeline(run, open_index(run, None)), prefix)
    client = server.test_client()
    assert client.get("/api/run").get_json()["steps"]["count"] == 1
    assert client.get("/baseline/api/run").get_json()["steps"]["count"] == 2


def test_threads_share_a_timeline(served: tuple[FlaskClient, Timeline]) -> None:
    timeline = served[1]
    asked = [(level, index) for level in (6, 9, 12, 40) for index in range(4)]
    alone = [timeline.tile(*place, range(10)) for place in asked]
    found: list[list[bytes]] = []

    def ask() -> None:
        found.append([timeline.tile(*place, range(10)) for place in asked])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 4
