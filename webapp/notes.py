"""Notes and saved views of a run: one small JSON file beside its tables, written by the page alone.

    RUN/notes.json   {"format": 1, "notes": [NOTE], "views": [VIEW]}
    NOTE             {"id": text, "t0": ns, "t1": ns, "lane": key of a lane or null, "text": text}
    VIEW             {"name": text, "search": the address of the view from its "?" on}

Times are nanoseconds from the start of the run. The file is part of the run: whoever copies or
packs the folder takes it along. Everything else of a run stays untouched.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from lanescope.webapp.errors import RunError, shown

NAME = "notes.json"
FORMAT = 1
MOST_BYTES = 256 << 10
MOST_ENTRIES = 1000
MOST_TEXT = 4000
"""Letters of a note, of a view's name or of its address."""

Content = dict[str, Any]

_NOTE = {"id": str, "t0": int, "t1": int, "lane": (str, type(None)), "text": str}
_VIEW = {"name": str, "search": str}


class Changed(Exception):
    """The file is not the one that was read before: somebody else has written it."""


class Notes:
    """The notes of one run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def read(self) -> tuple[Content, str]:
        """The notes and their revision, which changes with them. Without a file there are none.

        Raises RunError where the file cannot be read as notes.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return {"format": FORMAT, "notes": [], "views": []}, _revision(b"")
        except OSError as error:
            raise RunError(f"{NAME} cannot be read: {error.strerror}") from None
        if len(data) > MOST_BYTES:
            raise RunError(f"{NAME} has {len(data)} bytes, expected at most {MOST_BYTES}")
        try:
            return checked(json.loads(data)), _revision(data)
        except ValueError as error:
            raise RunError(f"{NAME} cannot be read: {error}") from None

    @property
    def why_not(self) -> str:
        """Why notes cannot be written; empty where they can."""
        if not self.path.parent.is_dir():
            return "the run is not a folder: notes are kept where it was packed from"
        place = self.path if self.path.exists() else self.path.parent
        if not os.access(place, os.W_OK) or not os.access(self.path.parent, os.W_OK):
            return "the run is read-only: notes cannot be kept with it"
        return ""

    def write(self, content: Any, revision: str) -> str:
        """Replaces the notes; the revision of the new ones.

        Raises ValueError for what are no notes, Changed where the file is not of `revision`, and
        RunError where it cannot be written.
        """
        data = json.dumps(checked(content), ensure_ascii=False, indent=1).encode()
        if len(data) > MOST_BYTES:
            raise ValueError(f"the notes have {len(data)} bytes, expected at most {MOST_BYTES}")
        if self.read()[1] != revision:
            raise Changed
        if self.why_not:
            raise RunError(self.why_not)
        try:
            with tempfile.NamedTemporaryFile(
                dir=self.path.parent, prefix=f".{NAME}.", delete=False
            ) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(file.name).replace(self.path)
        except OSError as error:
            raise RunError(f"{NAME} cannot be written: {error.strerror}") from None
        return _revision(data)


def checked(content: Any) -> Content:
    """The content with exactly what notes hold. ValueError says what is wrong with it."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"expected an object of format {FORMAT}")
    made: Content = {"format": FORMAT}
    for name, fields in (("notes", _NOTE), ("views", _VIEW)):
        entries = content.get(name)
        if not isinstance(entries, list) or len(entries) > MOST_ENTRIES:
            raise ValueError(f"{name} is no list of at most {MOST_ENTRIES}")
        made[name] = [_entry(name, fields, entry) for entry in entries]
    return made


def _entry(name: str, fields: dict[str, Any], entry: Any) -> Content:
    if not isinstance(entry, dict) or set(entry) != set(fields):
        raise ValueError(f"an entry of {name} has other fields than {', '.join(fields)}")
    for field, kind in fields.items():
        value = entry[field]
        if isinstance(value, bool) or not isinstance(value, kind):
            raise ValueError(f"{field} of an entry of {name} is {shown(str(value))}")
        if isinstance(value, str) and len(value) > MOST_TEXT:
            raise ValueError(f"{field} of an entry of {name} has more than {MOST_TEXT} letters")
        if isinstance(value, int) and not 0 <= value <= 1 << 53:
            raise ValueError(f"{field} of an entry of {name} is {value}, expected 0 to 2^53")
    if name == "views" and entry["search"] and not entry["search"].startswith("?"):
        raise ValueError("the search of a view does not begin with ?")
    return dict(entry)


def _revision(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
