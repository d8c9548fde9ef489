"""No source uses wordings that a reader stumbles over; see "How LaneScope writes"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lanescope.webapp.analysis.plugin import questions
from tests.support import ROOT
from tests.texts import texts

ROOMS = ("assets", "benchmarks", "collector", "docs", "examples", "tests", "webapp")
KINDS = (".py", ".cpp", ".h", ".js", ".css", ".md", ".toml", ".yml")

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
        and not {"node_modules", "built"} & {*path.parts}
        and not path.name.endswith(".min.js")
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


RELATIVE = re.compile(r"\b(?:that|which|whose)\b")
MOST_RELATIVES = 2
"""In one sentence of the product: more is a chain to be read twice."""


def test_texts_of_the_product_are_in_plain_words() -> None:
    """Also where a phrase goes on in the next string, and where no file has it in one line."""
    found = []
    for one in texts():
        plain = " ".join(one.text.split())
        sentences = re.split(r"(?<=[.:;!?]) ", plain)
        chained = any(len(RELATIVE.findall(part)) > MOST_RELATIVES for part in sentences)
        if chained or AVOIDED.search(plain):
            found.append(f"{one.path}:{one.line}: {plain}")
    assert found == []


def test_checks_are_no_questions() -> None:
    assert [one.text for one in questions() if one.text.endswith("?")] == []


def test_all_texts_are_collected() -> None:
    """From the page, its scripts, the command line, findings, errors and their help."""
    collected = {" ".join(one.text.split()) for one in texts()}
    for text in (
        "Nothing selected",
        "Click a slice to see everything recorded about it.",
        "Check RUN against the limits and list what is wrong with it.",
        "Print one JSON object.",
        "{} is not a size; write a number of bytes or with KB, MB or GB, as in 64MB",
        "Call zero_grad() after step(), and check that the loss depends on the parameters.",
        "level access; losses in host memory",
        "Difference {} of {} · {} · rank {} · {}",
    ):
        assert text in collected, text


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
