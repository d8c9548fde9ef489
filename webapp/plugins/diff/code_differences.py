"""In which lines do two programs differ? Of the files whose lines the runs hold as a whole."""

from __future__ import annotations

import io
import re
import textwrap
import tokenize
from difflib import SequenceMatcher
from functools import lru_cache
from typing import NamedTuple

from lanescope.webapp.analysis.source_lines import whole_files
from lanescope.webapp.analysis.stack_frames import short_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_LISTED, _CHARACTERS = 4, 90
"""Places named in the sentence, and characters of a line."""

_OUTPUT = re.compile(r"(print|log\w*\.\w+|logging\.\w+|\w*writer\.\w+|wandb\.\w+|assert)\b ?\(?")
"""Begins a line that writes what the program has computed."""


_BETWEEN = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
"""Tokens between statements: a text after one is a comment in all but name."""


_BLANK = (tokenize.COMMENT, tokenize.NL)


class Code(NamedTuple):
    """What is known of the lines of two programs."""

    notes: list[str]
    same: bool  # all lines that compute something, as far as both runs hold them


class _Place(NamedTuple):
    line: int
    text: str


def code_differences(base: Run, run: Run) -> Code:
    """Returns a sentence about the lines that differ, without comments, empty lines and those that
    print."""
    sides = [_of_names(one) for one in (base, run)]
    shared = [name for name in sides[1] if name in sides[0]]
    found = [words for name in shared for words in _apart(name, sides[0][name], sides[1][name])]
    if not found:
        return Code([], bool(shared))
    more = len(found) - _LISTED
    said = "; ".join(found[:_LISTED]) + (f"; and {more} more places" if more > 0 else "")
    return Code([f"the programs differ {units.printable(said)}"], same=False)


@lru_cache(maxsize=4)
def _of_names(run: Run) -> dict[str, list[str]]:
    """Returns name -> lines of the program's files; without files of the same name."""
    files = whole_files(run, min(run.ranks)) if run.ranks else {}
    names = [short_place(file) for file in files]
    return {
        name: lines
        for name, lines in zip(names, files.values(), strict=True)
        if names.count(name) == 1
    }


def _apart(name: str, base: list[str], run: list[str]) -> list[str]:
    """Returns words about each place of a file."""
    was, now = _code(base), _code(run)
    matcher = SequenceMatcher(None, _texts(was), _texts(now), autojunk=False)
    found: list[str] = []
    for kind, low, high, first, last in matcher.get_opcodes():
        old, new = was[low:high], now[first:last]
        if kind == "equal" or all(_OUTPUT.match(one.text.strip()) for one in (*old, *new)):
            continue
        here = now[min(first, len(now) - 1)].line if now else 1
        if old and new:
            words = f"{_quoted(new)}, in the baseline {_quoted(old)}"
        else:
            words = f"{_quoted(new)} added" if new else f"{_quoted(old)} of the baseline is missing"
        found.append(f"at {name}:{here}: {words}")
    return found


def _texts(lines: list[_Place]) -> list[str]:
    return [one.text for one in lines]


def _quoted(lines: list[_Place]) -> str:
    text = textwrap.shorten(lines[0].text, _CHARACTERS, placeholder=" ...")
    more = f" and {units.counted(len(lines) - 1, 'more line')}" if len(lines) > 1 else ""
    return f"`{text}`{more}"


def _code(lines: list[str]) -> list[_Place]:
    """Returns the lines that hold code, without comments and blanks at their ends."""
    cut, begins = {}, True
    try:
        for one in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
            if one.type == tokenize.COMMENT or (begins and one.type == tokenize.STRING):
                cut.update(dict.fromkeys(range(one.start[0] + 1, one.end[0] + 1), 0))
                cut[one.start[0]] = one.start[1]
            begins = one.type in _BETWEEN or (begins and one.type in _BLANK)
    except (tokenize.TokenError, SyntaxError):
        pass
    texts = (line[: cut.get(number)].rstrip() for number, line in enumerate(lines, 1))
    return [_Place(number, text) for number, text in enumerate(texts, 1) if text]
