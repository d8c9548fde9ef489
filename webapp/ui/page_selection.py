"""What goes from page to page in the address: rank, thread and step.

The browser writes and hands on the same parts (assets/timeline/base/page_selection.js), and the
window, which only the timeline shows. A page says with `Page.selects` which of its fields choose a
part; the frame fills these in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qs

from dash.development.base_component import Component

from lanescope.webapp.analysis.links import thread_lane


@dataclass(frozen=True)
class PageSelection:
    """The chosen rank, thread (its key within the rank) and step; None: not chosen."""

    rank: int | None = None
    thread: str | None = None
    step: int | None = None

    def values(self, part: str) -> Iterator[Any]:
        """Yields what a field for a part may call the choice, best first.

        A field for a "lane" offers threads as `rank/thread`, and ranks.
        """
        if part == "step" and self.step is not None:
            yield self.step
        if part in ("rank", "lane") and self.rank is not None:
            if part == "lane" and self.thread is not None:
                yield thread_lane(self.rank, self.thread)
            yield from (self.rank, str(self.rank))


def selection_in(search: str | None) -> PageSelection:
    """Reads the query of an address, with or without `?`; invalid parts count as unset."""
    given = parse_qs((search or "").removeprefix("?"))

    def number(name: str) -> int | None:
        text = given.get(name, [""])[0]
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None

    return PageSelection(number("rank"), given.get("thread", [None])[0], number("step"))


def fill(layout: Component, fields: Mapping[str, str], selection: PageSelection) -> None:
    """Sets the fields (id -> part) of a page to the selection, where they offer it."""
    for one in cast(Any, layout)._traverse():
        part = fields.get(getattr(one, "id", None) or "")
        if part is None:
            continue
        for value in selection.values(part):
            if _offers(one, value):
                one.value = value
                break


def _offers(field: Any, value: Any) -> bool:
    """True where a drop-down lists the value, or a field of numbers has it within its bounds."""
    options = getattr(field, "options", None)
    if options is None:
        return bool(field.min <= value <= field.max)
    return any((one["value"] if isinstance(one, dict) else one) == value for one in options)
