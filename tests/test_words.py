"""No source uses wordings that a reader stumbles over; see "How LaneScope writes"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import ROOT

ROOMS = ("assets", "benchmarks", "collector", "docs", "examples", "tests", "webapp")
KINDS = (".py", ".cpp", ".h", ".js", ".md")

AVOIDED = re.compile(
    r"\b(?:is none\b|(?<![Tt]here )is no (?!longer)|what is (?!wrong|missing|it )|told\b"
    r"|tells?\b(?!\()|telling\b|stands? for\b|lies?\b|whoever\b|nobody\b|anew\b"
    r"|of which\b|of whom\b)"
)


def sources(room: str) -> list[Path]:
    """Returns the room's own files; of the root's, with `room` "", those of the root alone."""
    found = ROOT.glob("*.*") if room == "" else (ROOT / room).rglob("*.*")
    return sorted(
        path
        for path in found
        if path.suffix in KINDS
        and path != Path(__file__)
        and "node_modules" not in path.parts
        and path.stem != "README.zh-CN"
    )


@pytest.mark.parametrize("room", ["", *ROOMS], ids=str)
def test_rooms_are_in_plain_words(room: str) -> None:
    found = []
    for path in sources(room):
        # Names count as words, and a phrase may go on in the next line.
        text = re.sub(r"[_\s]+(?:(?:#|//) ?)?", " ", path.read_text(encoding="utf-8"))
        found += [
            f"{path.name}: ...{text[m.start() - 30 : m.end() + 30]}..."
            for m in AVOIDED.finditer(text)
        ]
    assert found == []


def test_avoided_words_are_found() -> None:
    for text in ("is none of", "is no trace", "what is read", "told of", "tells", "of which some"):
        assert AVOIDED.search(text)
    for text in (
        "is no longer",
        "there is no",
        "what is wrong",
        "x is None",
        "applies",
        "intelligible",
        "families",
    ):
        assert AVOIDED.search(text) is None
