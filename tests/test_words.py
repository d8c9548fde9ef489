"""Wordings that a reader stumbles over; CONTRIBUTING.md says how LaneScope writes.

`CLEAN` lists the rooms that are free of them. It may only grow.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import ROOT

CLEAN = (
    "collector",
    "tests/collector",
    "tests/webapp/plugins/autograd_graph",
    "tests/webapp/plugins/checks",
    "webapp/plugins/autograd_graph",
    "webapp/plugins/checks",
    "webapp/plugins/collectives",
    "webapp/plugins/diff",
    "webapp/plugins/gradients",
    "webapp/plugins/hangs",
    "webapp/plugins/numerics",
    "webapp/plugins/overview",
    "webapp/plugins/races",
    "webapp/plugins/sql",
    "webapp/plugins/threads",
    "webapp/plugins/time",
)

AVOIDED = re.compile(
    r"\b(?:is none\b|(?<!there )is no (?!longer)|what is (?!wrong|missing)|told\b|tells?\b"
    r"|telling\b|stands? for\b|lies?\b|whoever\b|nobody\b|anew\b|of which\b|of whom\b)"
)


def sources(room: str) -> list[Path]:
    path = ROOT / room
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


@pytest.mark.parametrize("room", CLEAN)
def test_rooms_are_in_plain_words(room: str) -> None:
    found = []
    for path in sources(room):
        # Names count as words, and a phrase may go on in the next line.
        text = re.sub(r"[_\s]+(?:# ?)?", " ", path.read_text(encoding="utf-8"))
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
