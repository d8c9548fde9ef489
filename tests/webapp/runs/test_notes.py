"""Notes are kept whole or not at all, and only the server's own page may write them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import flask
import pytest
from flask.testing import FlaskClient

from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.files import Folder
from lanescope.webapp.runs.notes import MAX_TEXT, NOTES_FILE, Notes, NotesChanged
from lanescope.webapp.runs.run import open_run
from lanescope.webapp.timeline import note_routes
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.synthetic import write_run

NOTE = {"id": "a", "t0": 5, "t1": 9, "lane": "0/1000-0", "text": "late <here> & there"}
CONTENT = {"format": 1, "notes": [NOTE], "views": [{"name": "step 2", "search": "?t=5-9"}]}


def test_notes_are_read_back_as_written(tmp_path: Path) -> None:
    notes = Notes(Folder(tmp_path))
    content, revision = notes.read()
    assert (content["notes"], content["views"]) == ([], [])
    written = notes.write(CONTENT, revision)
    assert Notes(Folder(tmp_path)).read() == (CONTENT, written)
    assert os.listdir(tmp_path) == [NOTES_FILE]


def test_the_notes_of_someone_else_are_not_overwritten(tmp_path: Path) -> None:
    mine, other = Notes(Folder(tmp_path)), Notes(Folder(tmp_path))
    revision = mine.read()[1]
    other.write(CONTENT, revision)
    with pytest.raises(NotesChanged):
        mine.write({**CONTENT, "notes": []}, revision)
    assert mine.read()[0] == CONTENT


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {"format": 2, "notes": [], "views": []},
        {"format": 1, "notes": {}, "views": []},
        {"format": 1, "notes": [{**NOTE, "t0": -1}], "views": []},
        {"format": 1, "notes": [{**NOTE, "t0": True}], "views": []},
        {"format": 1, "notes": [{**NOTE, "more": 1}], "views": []},
        {"format": 1, "notes": [{**NOTE, "text": "x" * (MAX_TEXT + 1)}], "views": []},
        {"format": 1, "notes": [], "views": [{"name": "x", "search": "javascript:alert(1)"}]},
        {"format": 1, "notes": [{**NOTE, "text": "x" * MAX_TEXT}] * 100, "views": []},
    ],
)
def test_anything_else_is_refused_and_nothing_is_left(tmp_path: Path, content: Any) -> None:
    notes = Notes(Folder(tmp_path))
    with pytest.raises(ValueError, match=r"."):
        notes.write(content, notes.read()[1])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"format": 9}', b"\xff"])
def test_a_file_without_notes_is_reported_and_kept(tmp_path: Path, data: bytes) -> None:
    (tmp_path / NOTES_FILE).write_bytes(data)
    with pytest.raises(RunError, match=NOTES_FILE):
        Notes(Folder(tmp_path)).read()
    with pytest.raises(RunError):
        Notes(Folder(tmp_path)).write(CONTENT, "")
    assert (tmp_path / NOTES_FILE).read_bytes() == data


@pytest.fixture
def client(tmp_path: Path) -> tuple[FlaskClient, Timeline]:
    timeline = Timeline.open(open_run(write_run(tmp_path / "run", ranks=1, steps=1, ops=4)))
    server = flask.Flask("test")
    note_routes.register(server, timeline)
    return server.test_client(), timeline


def test_a_run_is_the_same_with_notes(client: tuple[FlaskClient, Timeline]) -> None:
    web, timeline = client
    start: Any = web.get("/api/notes").get_json()
    headers = {note_routes.TOKEN_HEADER: start["token"]}
    body = {"content": CONTENT, "revision": start["revision"]}
    address = f"/api/notes/{timeline.etag}"
    assert web.post(address, json=body, headers=headers).status_code == 200
    again = open_run(timeline.run.path)
    assert again.etag == timeline.run.etag
    assert again.warnings == timeline.run.warnings
    assert json.loads((timeline.run.path / NOTES_FILE).read_text()) == CONTENT
    stale = web.post(address, json=body, headers=headers)
    assert stale.status_code == 409
    assert stale.get_json()["content"] == CONTENT


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({note_routes.TOKEN_HEADER: "guessed"}, 403),
        ({"Content-Type": "text/plain"}, 403),
    ],
)
def test_no_other_page_writes_notes(
    client: tuple[FlaskClient, Timeline], headers: dict[str, str], status: int
) -> None:
    web, timeline = client
    start: Any = web.get("/api/notes").get_json()
    if note_routes.TOKEN_HEADER not in headers and headers:
        headers = {note_routes.TOKEN_HEADER: start["token"], **headers}
    body = json.dumps({"content": CONTENT, "revision": start["revision"]})
    made = {"Content-Type": "application/json", **headers}
    response = web.post(f"/api/notes/{timeline.etag}", data=body, headers=made)
    assert response.status_code == status
    assert not (timeline.run.path / NOTES_FILE).exists()
