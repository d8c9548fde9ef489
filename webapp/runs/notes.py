"""Notes and saved views of a run: one small JSON file beside its tables, written by the page alone.

    RUN/notes.json   {"format": 1, "notes": [NOTE], "views": [VIEW]}
    NOTE             {"id": text, "t0": ns, "t1": ns, "lane": key of a lane or null, "text": text}
    VIEW             {"name": text, "search": the address of the view from its "?" on}

Times are nanoseconds from the start of the run. The file is part of the run: if you copy or
packs the folder takes it along; in a bundle it is read, and cannot be written. Everything else of a
run stays untouched.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from lanescope.webapp.runs.errors import RunError, shown
from lanescope.webapp.runs.files import Files

NOTES_FILE = "notes.json"
FORMAT = 1
MAX_NOTES_BYTES = 256 << 10
MAX_ENTRIES = 1000
MAX_TEXT = 4000
"""Letters of a note, of a view's name or of its address."""

_Content = dict[str, Any]

_NOTE = {"id": str, "t0": int, "t1": int, "lane": (str, type(None)), "text": str}
_VIEW = {"name": str, "search": str}

# Of a view's address (assets/timeline/base/address.js): what holds instants, what numbers of lanes.
_SPANS = ("t", "range")
_BY_LANE = ("sel", "closed", "open", "pin", "ranks", "order")


class NotesChanged(Exception):
    """The file is not the one that was read before: somebody else has written it."""


class Notes:
    """The notes of one run."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self) -> tuple[_Content, str]:
        """Returns the notes and their revision, which changes with them. Without a file there are
        none.

        Raises RunError where the file cannot be read as notes.
        """
        try:
            data = self._files.read(NOTES_FILE, MAX_NOTES_BYTES)
        except FileNotFoundError:
            return {"format": FORMAT, "notes": [], "views": []}, _revision(b"")
        except OSError as error:
            raise RunError(f"{NOTES_FILE} cannot be read: {error.strerror}") from None
        try:
            return checked(json.loads(data)), _revision(data)
        except (ValueError, RecursionError) as error:
            raise RunError(f"{NOTES_FILE} cannot be read: {error}") from None

    @property
    def why_not(self) -> str:
        """Why notes cannot be written; empty where they can."""
        folder = self._files.folder
        if folder is None:
            return "the run is a bundle: notes are written where it was packed from"
        place = folder / NOTES_FILE if (folder / NOTES_FILE).exists() else folder
        if not os.access(place, os.W_OK) or not os.access(folder, os.W_OK):
            return "the run is read-only: notes cannot be kept with it"
        return ""

    def write(self, content: Any, revision: str) -> str:
        """Replaces the notes; the revision of the new ones.

        Raises ValueError for what are no notes, Changed where the file is not of `revision`, and
        RunError where it cannot be written.
        """
        data = encoded(checked(content))
        if len(data) > MAX_NOTES_BYTES:
            raise ValueError(
                f"the notes have {len(data)} bytes, expected at most {MAX_NOTES_BYTES}"
            )
        if self.read()[1] != revision:
            raise NotesChanged
        folder = self._files.folder
        if folder is None or self.why_not:
            raise RunError(self.why_not)
        try:
            with tempfile.NamedTemporaryFile(
                dir=folder, prefix=f".{NOTES_FILE}.", delete=False
            ) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(file.name).replace(folder / NOTES_FILE)
        except OSError as error:
            raise RunError(f"{NOTES_FILE} cannot be written: {error.strerror}") from None
        return _revision(data)


def checked(content: Any) -> _Content:
    """Returns the content with exactly what notes hold. ValueError says what is wrong with it."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"expected an object of format {FORMAT}")
    made: _Content = {"format": FORMAT}
    for name, fields in (("notes", _NOTE), ("views", _VIEW)):
        entries = content.get(name)
        if not isinstance(entries, list) or len(entries) > MAX_ENTRIES:
            raise ValueError(f"{name}: expected a list of at most {MAX_ENTRIES}")
        made[name] = [_entry(name, fields, entry) for entry in entries]
    return made


def encoded(content: _Content) -> bytes:
    """Returns the file of these notes."""
    return json.dumps(content, ensure_ascii=False, indent=1).encode()


def moved(content: _Content, by_ns: int, duration_ns: int, same_lanes: bool) -> _Content:
    """Returns the notes in a run that begins `by_ns` earlier and lasts `duration_ns`: of another
    extent.

    Notes of what it does not hold are left out. `same_lanes`: it has the lanes of the one before;
    else views forget what they say of lanes, which they know by number.
    """
    if not by_ns and same_lanes:
        return content
    notes = []
    for one in content["notes"]:
        t0, t1 = max(one["t0"] + by_ns, 0), min(one["t1"] + by_ns, duration_ns)
        if t0 <= t1:
            notes.append({**one, "t0": t0, "t1": t1})
    views = [
        {**one, "search": _moved_view(one["search"], by_ns, same_lanes)} for one in content["views"]
    ]
    return {**content, "notes": notes, "views": views}


def _moved_view(search: str, by_ns: int, same_lanes: bool) -> str:
    kept = []
    for key, value in parse_qsl(search[1:], keep_blank_values=True):
        if key in _SPANS and (span := re.fullmatch(r"([0-9]{1,16})-([0-9]{1,16})", value)):
            ends = [max(int(end) + by_ns, 0) for end in span.groups()]
            kept.append((key, f"{ends[0]}-{ends[1]}"))
        elif same_lanes or key not in _BY_LANE:
            kept.append((key, value))
    return f"?{urlencode(kept, quote_via=quote)}" if kept else ""


def _entry(name: str, fields: dict[str, Any], entry: Any) -> _Content:
    if not isinstance(entry, dict) or set(entry) != set(fields):
        raise ValueError(f"an entry of {name} has other fields than {', '.join(fields)}")
    for field, kind in fields.items():
        value = entry[field]
        if isinstance(value, bool) or not isinstance(value, kind):
            raise ValueError(f"{field} of an entry of {name} is {shown(str(value))}")
        if isinstance(value, str) and len(value) > MAX_TEXT:
            raise ValueError(f"{field} of an entry of {name} has more than {MAX_TEXT} letters")
        if isinstance(value, int) and not 0 <= value <= 1 << 53:
            raise ValueError(f"{field} of an entry of {name} is {value}, expected 0 to 2^53")
    if name == "views" and entry["search"] and not entry["search"].startswith("?"):
        raise ValueError("the search of a view does not begin with ?")
    return dict(entry)


def _revision(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
