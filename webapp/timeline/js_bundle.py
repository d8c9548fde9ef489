"""The timeline's modules as one script, made when the server starts: no bundler takes part.

Sixty modules are sixty requests, and the browser takes longer to ask for them than to run them.
Each becomes a function that is called once and gives what the module exports, after those that it
imports from; each line stays a line, so that a source map of one entry a line leads a debugger to
the file as it was written.

The modules are our own, so only their forms are known here: an import is one line and takes names,
or all of them `* as name`, from a relative path; what is exported is declared so, one by one, and
is never assigned to again; no two modules import each other.
"""

from __future__ import annotations

import json
import posixpath
import re
from functools import partial

from lanescope import assets

FOLDER = assets.FOLDER / "timeline"

_IMPORT = re.compile(
    r"^import (?:\{(?P<names>[^}]*)\}|\* as (?P<all>\w+)) "
    r'from "(?P<file>(?:\./|(?:\.\./)+)(?:\w+/)*\w+\.js)";$',
    re.M,
)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:class|const|function) (?P<name>\w+))", re.M)
_LEFT = re.compile(r"^(?:import|export)\b.*$", re.M)
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def reached(entry: str) -> dict[str, str]:
    """The module `entry` and all that it needs, by path below FOLDER, as text; needed ones first.

    ValueError where modules import each other.
    """
    found: dict[str, str] = {}
    open_: list[str] = []

    def visit(name: str) -> None:
        if name in found:
            return
        if name in open_:
            raise ValueError(f"modules import each other: {' -> '.join([*open_, name])}")
        open_.append(name)
        text = (FOLDER / name).read_text(encoding="utf-8")
        for match in _IMPORT.finditer(text):
            visit(_path(name, match["file"]))
        found[open_.pop()] = text

    visit(entry)
    return found


def joined(entry: str) -> tuple[str, str]:
    """The script that does what the module `entry` does, and its source map (JSON).

    ValueError where a module imports or exports in a form that is not known here.
    """
    sources = reached(entry)
    lines: list[str] = []
    mappings: list[str] = []
    last = 0  # line of the source that was mapped last
    for number, (name, text) in enumerate(sources.items()):
        body, exported = _within_function(name, text)
        body_lines = body.rstrip("\n").split("\n")
        lines += [f"const {_variable(name)} = (() => {{", *body_lines]
        mappings.append("")
        for at in range(len(body_lines)):
            source = 1 if number and not at else 0
            mappings.append(f"A{_vlq(source)}{_vlq(at - last)}A")
            last = at
        lines.append(f"return {{ {', '.join(exported)} }}; }})();")
        mappings.append("")
    found = {
        "version": 3,
        "sources": list(sources),
        "sourcesContent": list(sources.values()),
        "names": [],
        "mappings": ";".join(mappings),
    }
    return "\n".join(lines) + "\n", json.dumps(found)


def _within_function(name: str, text: str) -> tuple[str, list[str]]:
    """The module as the body of a function, and the names it exports."""
    exported = [match["name"] for match in _EXPORT.finditer(text)]
    body = _EXPORT.sub("", _IMPORT.sub(partial(_taken, name), text))
    left = _LEFT.search(body)
    if left is not None:
        raise ValueError(f"{name}: cannot be joined: {left[0]}")
    return body, exported


def _path(name: str, imported: str) -> str:
    """The file that module `name` imports as `imported`, below FOLDER."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), imported))


def _taken(name: str, match: re.Match[str]) -> str:
    names = match["all"] or "{" + (match["names"] or "").replace(" as ", ": ") + "}"
    return f"const {names} = {_variable(_path(name, match['file']))};"


def _variable(name: str) -> str:
    return "module_" + name.removesuffix(".js").replace("/", "_")


def _vlq(number: int) -> str:
    """A number as source maps have it: base 64, lowest digit first, the sign as the lowest bit."""
    rest = -number << 1 | 1 if number < 0 else number << 1
    digits = ""
    while True:
        rest, digit = rest >> 5, rest & 31
        digits += _DIGITS[digit | (32 if rest else 0)]
        if not rest:
            return digits
