"""Joins the timeline's modules into one script when the server starts, without a bundler.

Sixty modules would be sixty requests, which take the browser longer than running them. Each module
becomes a function that is called once and returns the module's exports, after those of the modules
it imports. Every line of a module stays one line of the script, so a source map with one entry per
line leads a debugger to the original file.

Only the forms that our own modules use are supported: an import takes names, or all of them `* as
name`, from a relative path; every export is declared with `export` and never assigned again; no two
modules import each other.
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
    """Returns the texts of the module `entry` and of all it imports, by path below FOLDER.

    Imported modules come first. Raises ValueError if modules import each other.
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
    """Returns the script equivalent to the module `entry`, and its source map (JSON).

    Raises ValueError if a module imports or exports in an unsupported form.
    """
    sources = reached(entry)
    lines: list[str] = []
    mappings: list[str] = []
    last = 0  # last mapped line of the source
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
    """Returns the module as the body of a function, and the names it exports."""
    exported = [match["name"] for match in _EXPORT.finditer(text)]
    body = _EXPORT.sub("", _IMPORT.sub(partial(_assignment, name), text))
    left = _LEFT.search(body)
    if left is not None:
        raise ValueError(f"{name}: cannot be joined: {left[0]}")
    return body, exported


def _path(name: str, imported: str) -> str:
    """Returns the path below FOLDER of what module `name` imports as `imported`."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), imported))


def _assignment(name: str, match: re.Match[str]) -> str:
    names = match["all"] or "{" + (match["names"] or "").replace(" as ", ": ") + "}"
    return f"const {names} = {_variable(_path(name, match['file']))};"


def _variable(name: str) -> str:
    return "module_" + name.removesuffix(".js").replace("/", "_")


def _vlq(number: int) -> str:
    """Encodes a number for a source map: base 64, lowest digit first, sign in the lowest bit."""
    rest = -number << 1 | 1 if number < 0 else number << 1
    digits = ""
    while True:
        rest, digit = rest >> 5, rest & 31
        digits += _DIGITS[digit | (32 if rest else 0)]
        if not rest:
            return digits
