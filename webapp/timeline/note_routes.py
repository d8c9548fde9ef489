"""The routes of the notes: GET /api/notes, POST /api/notes/<etag>.

Writing needs the token that GET gives out, which another site's page cannot read, in a header that
it cannot send without asking first.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any

import flask

from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.notes import MAX_NOTES_BYTES, Notes, NotesChanged
from lanescope.webapp.timeline.timeline import Timeline

TOKEN_HEADER = "X-LaneScope-Token"

_Answer = dict[str, Any] | tuple[dict[str, Any], int]


def register(server: flask.Flask, timeline: Timeline) -> None:
    """Adds the routes; the token is new with every start of the server."""
    notes = Notes(timeline.run.files)
    token = secrets.token_urlsafe(24)

    @server.get("/api/notes")
    def read_notes() -> Any:
        answer: Any = flask.make_response(_read(notes) | {"token": token})
        answer.headers["Cache-Control"] = "no-store"
        return answer

    @server.post("/api/notes/<etag>")
    def write_notes(etag: str) -> _Answer:
        request = flask.request
        if etag != timeline.etag:
            return {"error": "another run is being served now; reload the page"}, 409
        given = request.headers.get(TOKEN_HEADER, "").encode()
        if not hmac.compare_digest(given, token.encode()) or not request.is_json:
            return {"error": "the server was restarted; reload the page to write notes"}, 403
        if (request.content_length or 0) > 2 * MAX_NOTES_BYTES:
            return {"error": f"more than {MAX_NOTES_BYTES} bytes of notes"}, 413
        asked: Any = request.get_json(silent=True)
        try:
            revision = notes.write(asked["content"], str(asked["revision"]))
        except (ValueError, TypeError, KeyError) as error:
            return {"error": f"these are no notes: {error}"}, 400
        except NotesChanged:
            return _read(notes) | {"error": "someone else has changed the notes meanwhile"}, 409
        except RunError as error:
            return {"error": str(error)}, 403
        return {"revision": revision}


def _read(notes: Notes) -> dict[str, Any]:
    try:
        content, revision = notes.read()
    except RunError as error:  # the notes on disk stay: nothing may overwrite them
        return {"content": None, "revision": "", "why_not": str(error)}
    return {"content": content, "revision": revision, "why_not": notes.why_not}
