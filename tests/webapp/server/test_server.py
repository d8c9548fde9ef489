"""What the server promises about every answer, without a browser."""

from __future__ import annotations

import io
import logging
import re
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import flask
import pyarrow.parquet as pq
import pytest
from flask.testing import FlaskClient

from lanescope.webapp.analysis.plugin import load, pages
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.server.server import HOOKS, PAGE_SCRIPT, make_app
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.synthetic import write_run

HOST = {"Host": "127.0.0.1:8050"}


def policy(response: Any) -> dict[str, set[str]]:
    text = response.headers["Content-Security-Policy"]
    parts = [part.split() for part in text.split(";")]
    return {name: set(values) for name, *values in parts}


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/overlap",
        "/api/run",
        "/assets/style.css",
        "/assets/timeline/page/main.js",
        "/tile/x/y/z",
    ],
)
def test_every_answer_has_the_headers(client: FlaskClient, path: str) -> None:
    response = client.get(path, headers=HOST)
    rules = policy(response)
    assert rules["default-src"] == {"'none'"}
    assert rules["frame-ancestors"] == {"'none'"}
    assert rules["connect-src"] == {"'self'"}
    for forbidden in ("'unsafe-eval'", "'unsafe-inline'", "*", "https:", "data:", "blob:"):
        assert forbidden not in rules["script-src"]
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Referrer-Policy"] == "no-referrer"


def test_the_page_names_nothing_outside(client: FlaskClient) -> None:
    page = client.get("/", headers=HOST).get_data(as_text=True)
    links = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert links
    assert [link for link in links if not link.startswith("/")] == []


def test_the_modules_are_one_script_served_once_for_all(client: FlaskClient) -> None:
    page = client.get("/", headers=HOST).get_data(as_text=True)
    for name in (PAGE_SCRIPT, HOOKS):
        found = re.search(rf'<script [^>]*src="(/modules/\w+/{name})"', page)
        assert found, name
        response = client.get(found[1], headers=HOST)
        assert response.mimetype == "text/javascript"
        assert "immutable" in response.headers["Cache-Control"]
        assert client.get(found[1].replace(name, "x.js"), headers=HOST).status_code == 404
    assert client.get(f"/modules/old/{PAGE_SCRIPT}", headers=HOST).mimetype == "text/html"


def test_the_source_map_is_where_the_script_says(client: FlaskClient) -> None:
    page = client.get("/", headers=HOST).get_data(as_text=True)
    script = re.search(rf'"(/modules/\w+/{PAGE_SCRIPT})"', page)
    assert script
    text = client.get(script[1], headers=HOST).get_data(as_text=True)
    address = text.rsplit("//# sourceMappingURL=", 1)[1].strip()
    answer = client.get(urljoin(script[1], address), headers=HOST).get_json()
    assert PAGE_SCRIPT in answer["sources"]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:8050", ""])
def test_a_foreign_host_name_is_refused(client: FlaskClient, host: str) -> None:
    for path in ("/", "/api/run", "/assets/style.css"):
        response = client.get(path, headers={"Host": host})
        assert response.status_code == 400
        assert b"lanes" not in response.get_data()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:9", "localhost:8050", "[::1]:8050"])
def test_this_machine_may_ask(client: FlaskClient, host: str) -> None:
    assert client.get("/api/run", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8050", 200),
        ("https://127.0.0.1:8050", 200),  # something else ends TLS before it
        ("http://127.0.0.1:8051", 403),
        ("http://evil.example", 403),
        ("null", 403),
    ],
)
def test_another_page_may_not_ask(client: FlaskClient, origin: str, status: int) -> None:
    for path in ("/", "/api/run", "/table/overlap.csv"):
        response = client.get(path, headers={**HOST, "Origin": origin})
        assert response.status_code == status
    asked = client.post("/_dash-update-component", headers={**HOST, "Origin": origin}, json={})
    assert (asked.status_code == 403) == (status == 403)


def test_other_names_can_be_allowed(run: Run) -> None:
    client = make_app(run, trusted_hosts=["box.lan"]).server.test_client()
    assert client.get("/api/run", headers={"Host": "box.lan:1"}).status_code == 200
    assert client.get("/api/run", headers=HOST).status_code == 400


def test_a_table_that_the_run_lacks_is_not_found(client: FlaskClient) -> None:
    answer = client.get("/table/memory_changes.csv", headers=HOST)
    assert answer.status_code == 404
    assert "add --baseline RUN0" in answer.get_json()["error"]


def test_a_fault_is_logged_and_not_shown(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    server = make_app(run).server

    @server.get("/broken")
    def broken() -> flask.Response:
        raise ValueError("the secret")

    with caplog.at_level(logging.ERROR):
        response = server.test_client().get("/broken", headers=HOST)
    assert response.status_code == 500
    assert "secret" not in response.get_data(as_text=True)
    assert "Traceback" not in response.get_data(as_text=True)
    assert "the secret" in caplog.text


def test_nothing_is_offered_to_machines_and_no_developer_tools(client: FlaskClient) -> None:
    for path in ("/_mcp", "/_alive_1"):
        response = client.get(path, headers=HOST)
        assert response.mimetype == "text/html"  # the page itself: there is no such route
    assert client.post("/_mcp", headers=HOST, json={}).status_code == 405
    config = client.get("/", headers=HOST).get_data(as_text=True)
    assert '"ui":false' in config
    assert '"hot_reload":null' in config or "hot_reload" not in config


def test_a_title_is_text_whatever_it_holds(tmp_path: Path) -> None:
    path = write_run(tmp_path / "<b>{%scripts%}", ranks=1, threads=1, steps=1, ops=4)
    page = make_app(open_run(path)).server.test_client().get("/", headers=HOST)
    found = re.search("<title>(.*?)</title>", page.get_data(as_text=True))
    assert found is not None
    assert found[1].endswith("&lt;b&gt;{&#37;scripts%} · LaneScope")


def test_the_scripts_of_a_new_state_are_there_before_the_first_request(run: Run) -> None:
    app = make_app(run, trusted_hosts=["gpu-17.example"])
    assert {"dash", "dash_ag_grid"} <= app.registered_paths.keys()


def test_two_apps_do_not_share_anything(run: Run, tmp_path: Path) -> None:
    other = open_run(write_run(tmp_path / "two", ranks=1, threads=1, steps=1, ops=4))
    first, second = make_app(run).server.test_client(), make_app(other).server.test_client()
    assert len(first.get("/api/run", headers=HOST).json["ranks"]) == 2
    assert len(second.get("/api/run", headers=HOST).json["ranks"]) == 1


def test_rail_lists_pages_that_exist() -> None:
    for page in pages():
        assert callable(load(page.layout))
        assert not page.body or callable(load(page.body))
        icon = files(page.plugin).joinpath(f"icon-{page.name}.svg")
        assert icon.is_file() != bool(page.within)  # a tab has none


def test_find_answers_with_a_place_or_says_what_is_wrong(run: Run) -> None:
    timeline = Timeline.open(run)
    client = make_app(run, index=timeline).server.test_client()
    address = f"/api/find/{timeline.etag}"
    asked = {"names": [0], "t": -1, "lane": -1, "row": -1, "dir": "next"}
    found = client.post(address, headers=HOST, json=asked)
    assert found.status_code == 200
    assert found.json["name"] == timeline.index.names[0]
    none = client.post(address, headers=HOST, json={**asked, "dir": "prev"})
    assert none.json["ref"] is None
    assert none.json["total"] > 0  # there are some, but not before
    limited = client.post(address, headers=HOST, json={**asked, "least": 1 << 60})
    assert limited.json == {"ref": None, "total": 0}
    assert client.post(address, headers=HOST, json={"names": "x"}).status_code == 400
    assert client.post(address, headers=HOST, data="no json").status_code == 400
    assert client.post("/api/find/old", headers=HOST, json=asked).status_code == 409


def test_tables_can_be_taken_away(client: FlaskClient) -> None:
    page = client.get("/table/overlap.csv", headers=HOST)
    assert page.mimetype == "text/csv"
    assert page.headers["Content-Disposition"] == 'attachment; filename="overlap.csv"'
    assert page.get_data(as_text=True).startswith('"rank",')
    stored = client.get("/table/op.parquet", headers=HOST)
    assert pq.read_table(io.BytesIO(stored.get_data())).num_rows > 0
    for wrong in ("nothing.csv", "op.exe"):
        assert client.get(f"/table/{wrong}", headers=HOST).status_code == 404
    inside = client.get("/table/..%2fmanifest.json", headers=HOST)
    assert b"sha256" not in inside.get_data()
