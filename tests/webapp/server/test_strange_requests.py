"""Whatever a request says, it gets an answer below 500, and no traceback reaches the log."""

from __future__ import annotations

import http.client
import logging
import re
import threading
from collections import Counter
from typing import Any
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient

from lanescope.webapp.runs.run import Run
from lanescope.webapp.server.request_queues import Queue, Queues
from lanescope.webapp.server.server import make_app
from lanescope.webapp.timeline.timeline import Timeline
from tests.webapp.server.test_http_server import another, served

HOST = {"Host": "127.0.0.1:8050"}
TEXTS = ("", "-1", "9007199254740993", "1e9", "nan", "%00", "%ff", "..", "0-1024", "é", "a" * 3000)
PARAMETERS = ("lanes", "rows", "part", "dir", "row", "t", "t0", "t1", "shorter", "phase", "at")
GOOD = {"level": "12", "index": "0", "lane": "0", "ref": "0", "name": "phase", "kind": "csv"}
DEEP = b"[" * 100_000
BODIES = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'"x"',
    b"1",
    b"{}",
    b"NaN",
    b"\xff\xfe",
    DEEP,
    b'{"a":' * 50_000,
    b'{"output": 1}',
    b'{"output": "a.b", "inputs": [], "changedPropIds": []}',
    b'{"names": [1e999], "t": 1, "lane": 1, "row": 1, "dir": "next"}',
    b'{"names": [99999999999999999999], "t": 1, "lane": 1, "row": 1, "dir": "next"}',
    b'{"names": [0], "modules": [-5], "t": -1, "lane": -1, "row": 1, "dir": "prev"}',
    b'{"names": [0], "t0": 0, "t1": 100, "lanes": {"0": 1}, "buckets": 10}',
    b'{"names": [0], "t0": NaN, "t1": 1e400, "lanes": [0], "buckets": 10}',
    b'{"content": ' + DEEP + b"]" * len(DEEP) + b', "revision": ""}',
    b'{"content": {"format": 1, "notes": [{"t0": 1e999}], "views": []}, "revision": "\\ud800"}',
)


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Any:
    """Nothing is logged with a traceback."""
    with caplog.at_level(logging.INFO):
        yield
    assert [record for record in caplog.records if record.exc_info] == []


def rules(client: FlaskClient, method: str) -> list[str]:
    """The addresses of the server, the run's etag put in."""
    etag = client.get("/api/run", headers=HOST).get_json()["etag"]
    known = client.application.url_map.iter_rules()
    found = [one.rule.replace("<etag>", etag) for one in known if method in (one.methods or ())]
    assert len(found) >= 4
    return found


def filled(rule: str, text: str | None = None) -> str:
    """The address with good values, or with one text in all places."""
    return re.sub(r"<(?:[^:>]+:)?(\w+)>", lambda m: text or GOOD.get(m[1], "x"), rule)


@pytest.mark.usefixtures("quiet")
def test_every_address_with_any_text_in_it(client: FlaskClient) -> None:
    for rule in rules(client, "GET"):
        for text in TEXTS if "<" in rule else ("",):
            address = filled(rule, text)
            assert client.get(address, headers=HOST).status_code < 500, address
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            assert client.open(filled(rule), method=method, headers=HOST).status_code < 500


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "place", ["/tile/", "/api/look/", "/api/nearest/", "/api/overlap/", "/tim"]
)
def test_every_parameter_with_any_text(client: FlaskClient, place: str) -> None:
    rule = next((one for one in rules(client, "GET") if one.startswith(place)), "/timeline")
    usual = {"lanes": "0", "t": "5", "t0": "0", "t1": "100"}
    for name in PARAMETERS:
        rest = "&".join(f"{key}={value}" for key, value in usual.items() if key != name)
        for text in TEXTS:
            address = f"{filled(rule)}?{rest}&{name}={text}&{name}=1"
            assert client.get(address, headers=HOST).status_code < 500, address


@pytest.mark.usefixtures("quiet")
def test_every_body(client: FlaskClient) -> None:
    token = client.get("/api/notes", headers=HOST).get_json()["token"]
    for address in map(filled, rules(client, "POST")):
        for body in BODIES:
            for kind in ("application/json", "text/plain", "multipart/form-data; boundary=x"):
                headers = {**HOST, "Content-Type": kind, "X-LaneScope-Token": token}
                answer = client.post(address, data=body, headers=headers)
                assert answer.status_code < 500, (address, body[:60], kind)


def test_texts_nested_too_deep_are_refused_in_a_sentence(client: FlaskClient) -> None:
    notes = client.get("/api/notes", headers=HOST).get_json()
    (address,) = (one for one in rules(client, "POST") if one.startswith("/api/notes/"))
    headers = {**HOST, "Content-Type": "application/json", "X-LaneScope-Token": notes["token"]}
    answer = client.post(address, data=BODIES[-2], headers=headers)
    assert answer.status_code == 400
    assert answer.get_json()["error"].startswith("these are no notes: ")
    assert client.get("/api/notes", headers=HOST).get_json()["content"] == notes["content"]


def called(client: FlaskClient, **changes: Any) -> tuple[int, str]:
    """Calls the callback that shows a page."""
    body = {
        "output": "..page.children...page.hidden..",
        "outputs": [{"id": "page", "property": name} for name in ("children", "hidden")],
        "inputs": [
            {"id": "location", "property": "pathname", "value": "/overview"},
            {"id": "page-state", "property": "data", "value": None},
        ],
        "state": [{"id": "location", "property": "search", "value": ""}],
        "changedPropIds": ["location.pathname"],
        **changes,
    }
    answer = client.post("/_dash-update-component", json=body, headers=HOST)
    return answer.status_code, answer.get_data(as_text=True)


@pytest.mark.usefixtures("quiet")
def test_calls_of_callbacks_that_are_none(client: FlaskClient) -> None:
    status, text = called(client)
    assert (status, "Step time by phase" in text) == (200, True), text
    place = {"id": "location", "property": "pathname"}
    kept = {"id": "page-state", "property": "data"}
    for wrong in (
        {"output": "page.children"},
        {"output": None},
        {"outputs": []},
        {"outputs": None},
        {"inputs": []},
        {"inputs": [place]},
        {"inputs": [[place], place]},
        {"inputs": "ab"},
        {"state": []},
        {"state": [place]},
        {"state": [{"id": "location", "property": "search", "value": 3}]},
        {"changedPropIds": 3},
        {"changedPropIds": [1]},
        {"inputs": [{**place, "value": ["x"]}, kept]},
        {"inputs": [{**place, "value": 3}, kept]},
        {"inputs": [{**place, "value": "/overview"}, {**kept, "value": {}}]},
    ):
        status, text = called(client, **wrong)
        assert (status, "does not call a callback" in text) == (400, True), (wrong, text)
    assert called(client, inputs=[place, kept])[0] == 200  # a value that is not set


PAGE = {"Mode": "navigate", "Dest": "document"}


@pytest.mark.parametrize(
    ("path", "site", "headers", "status"),
    [
        ("/api/run", "same-origin", {}, 200),
        ("/api/run", "none", PAGE, 200),
        ("/api/run", "cross-site", {}, 403),
        ("/api/run", "same-site", {}, 403),
        ("/query.csv?sql=SELECT+1", "cross-site", PAGE, 403),
        ("/table/phase.csv", "same-site", PAGE, 403),
        ("/api/run", "cross-site", PAGE, 403),
        ("/assets/style.css", "cross-site", {"Mode": "no-cors", "Dest": "style"}, 403),
        ("/timeline", "cross-site", PAGE, 200),
        ("/timeline?at=x@5", "cross-site", PAGE, 200),
        ("/", "cross-site", PAGE, 200),
        ("/overlap", "cross-site", {"Mode": "navigate", "Dest": "iframe"}, 403),
        ("/overlap", "cross-site", {"Mode": "no-cors", "Dest": "image"}, 403),
        ("/overlap", "something new", {}, 403),
    ],
)
def test_what_another_site_sends_is_refused_but_links_to_pages(
    client: FlaskClient, path: str, site: str, headers: dict[str, str], status: int
) -> None:
    sent = {f"Sec-Fetch-{name}": value for name, value in {"Site": site, **headers}.items()}
    assert client.get(path, headers={**HOST, **sent}).status_code == status


def test_heavy_requests_have_a_queue_of_their_own(run: Run) -> None:
    queues = Queues(downloads=Queue(running=1, waiting=1))
    index = Timeline.open(run)
    app = make_app(run, index=index, queues=queues).server
    assert queues.downloads.enter()  # one is running
    reported: Counter[int] = Counter()
    refused: list[tuple[str | None, bytes]] = []
    with served(app) as connection:
        address = f"/query.csv?sql={quote('SELECT 7 AS n')}"
        host = f"127.0.0.1:{connection.port}"

        def ask(one: http.client.HTTPConnection) -> None:
            one.request("GET", address)
            answer = one.getresponse()
            reported[answer.status] += 1
            body = answer.read()
            if answer.status == 503:
                refused.append((answer.getheader("Retry-After"), body))
            one.close()

        asking = [threading.Thread(target=ask, args=(another(connection),)) for _ in range(40)]
        for thread in asking:
            thread.start()
        # One of them waits for its turn until this test leaves; meanwhile tiles are answered.
        while len(refused) < 39:
            connection.request("GET", f"/tile/{index.etag}/12/0?lanes=0", headers={"Host": host})
            tile = connection.getresponse()
            assert (tile.status, len(tile.read()) > 10) == (200, True)
        queues.downloads.leave()
        for thread in asking:
            thread.join()
    assert reported == {200: 1, 503: 39}
    assert {again for again, _ in refused} == {"5"}
    assert b"ask again in 5 seconds" in refused[0][1]
