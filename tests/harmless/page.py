"""Writes what `make harmless` found, and accepted differences, into docs/limits.md."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from .accepted import accepted
from .table import COLUMNS, Compared, rows

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
_ACCEPTED = ("<!-- accepted: made of tests/harmless/accepted.toml -->", "<!-- end of accepted -->")
_FIGURES = ("<!-- figures: made by make harmless -->", "<!-- end of figures -->")


def with_accepted(page: str) -> str:
    """The page's text with the accepted differences of today."""
    lines = [
        (
            ", ".join(f"`{test}`" for test in one.tests),
            ", ".join(one.engines),
            one.recorded,
            one.reason,
        )
        for one in accepted()
    ]
    head = ("tests", "engines", "outcome when recorded", "why")
    return _put(page, _ACCEPTED, _table(head, lines) if lines else "None.")


def with_figures(page: str, compared: list[Compared]) -> str:
    """The page's text with the table of these comparisons."""
    versions = (
        f"Python {platform.python_version()}, torch {version('torch')}, {platform.system()}, "
        f"{platform.machine()}:\n\n"
    )
    return _put(page, _FIGURES, versions + _table(COLUMNS, rows(compared)))


def _put(page: str, markers: tuple[str, str], text: str) -> str:
    begin, end = markers
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{text}\n{end}{after}"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *lines]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in cells
    )
