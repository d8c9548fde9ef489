"""Prints all texts that the product can say, room by room, so that they can be read in one go.

    python -m tests.texts            # all rooms
    python -m tests.texts races      # rooms with "races" in their path

A text is a string of two words or more in the sources of collector, webapp and assets. Adjacent
parts are joined, and a value that is put in is written {}. Docstrings count where a user reads
them, as the help of a command.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support import ROOT

ROOMS = ("collector", "webapp", "assets")
_MADE = {"vendor", "built"}
"""Folders of scripts that others wrote, or that are built from the sources."""

_WORDS = re.compile(r"[A-Za-z][a-z']+[,:;.)]*\s+(?:\S+\s+)*[A-Za-z(<{]")
"""Two words of prose, in contrast to a name, a format or an address."""

_CODE = re.compile(
    r"^\s*(?:SELECT|CREATE|WITH|INSERT|PRAGMA|COPY)\b"  # SQL
    r"|params\.|=>|^[\w.-]+(?: [\w.-]+)*: |;$|^[a-z-]+(?: [a-z0-9-]+){1,3}$(?<![.])"
    r"|\\[bdsw(]|^import |^from |\bdef \w+\("
)
"""Strings of several words without prose: SQL, scripts, styles, class names, expressions."""

_JS_STRING = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"((?:[^"\\\n]|\\.)*)"|'((?:[^'\\\n]|\\.)*)'|`((?:[^`\\]|\\.)*)`""",
    re.DOTALL,
)
_JS_VALUE = re.compile(r"\$\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")


@dataclass(frozen=True)
class Text:
    """One text and where it stands: path below the repository and line, from 1."""

    path: str
    line: int
    text: str

    @property
    def room(self) -> str:
        """The folder that the text belongs to."""
        return str(Path(self.path).parent)


@cache
def texts() -> list[Text]:
    """Returns all texts of the product, by path and line."""
    found: list[Text] = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*")):
            if _MADE & {*path.parts} or "_skeleton" in str(path):
                continue
            name = path.relative_to(ROOT).as_posix()
            if path.suffix == ".py":
                found += sorted_texts(name, _in_python(ast.parse(path.read_text("utf-8"))))
            elif path.suffix == ".js":
                found += sorted_texts(name, _in_javascript(path.read_text("utf-8")))
    return found


def sorted_texts(path: str, found: Iterator[tuple[int, str]]) -> list[Text]:
    """Returns the texts of a file by line."""
    return [Text(path, line, text) for line, text in sorted(found)]


def _in_python(tree: ast.Module) -> Iterator[tuple[int, str]]:
    docstrings = _docstrings(tree)
    inner: set[int] = set()
    for node in ast.walk(tree):
        if id(node) in inner:
            continue
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            text = _joined(node)
        elif isinstance(node, ast.JoinedStr | ast.Constant):
            text = _text_of(node)
        else:
            continue
        if text is None:
            continue
        inner |= {id(child) for child in ast.walk(node)}
        if id(node) in docstrings:
            text = docstrings[id(node)]
        if text and _is_prose(text):
            yield node.lineno, text


def _docstrings(tree: ast.Module) -> dict[int, str]:
    """Docstrings by their node: empty, but for the help of a command its text."""
    found: dict[int, str] = {}
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for one in body:
            if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)):
                continue
            calls = [ast.unparse(one) for one in getattr(node, "decorator_list", ())]
            is_command = any(".command(" in call or ".group(" in call for call in calls)
            help_text = one.value.value if is_command else ""
            found[id(one.value)] = re.split(r"\n\s*\x08", str(help_text))[0]
    return found


def _text_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text_of(one) or "{}" for one in node.values)
    return None


def _joined(node: ast.AST) -> str | None:
    """The text of a sum with a string in it."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
        return _text_of(node)
    sides = [_joined(side) for side in (node.left, node.right)]
    return None if sides == [None, None] else "".join(side or "{}" for side in sides)


def _in_javascript(source: str) -> Iterator[tuple[int, str]]:
    for match in _JS_STRING.finditer(source):
        text = next((part for part in match.groups() if part is not None), None)
        if text is None:
            continue
        text = _JS_VALUE.sub("{}", text)
        if _is_prose(text):
            yield source.count("\n", 0, match.start()) + 1, text


def _is_prose(text: str) -> bool:
    return bool(_WORDS.search(text)) and not _CODE.search(text)


def main(wanted: list[str]) -> None:
    """Prints the texts of rooms with one of some words in their path, or of all."""
    room = ""
    for one in texts():
        if wanted and not any(word in one.path for word in wanted):
            continue
        if one.room != room:
            room = one.room
            print(f"\n{room}")
        plain = " ".join(one.text.split())
        print(f"  {Path(one.path).name}:{one.line}  {plain}")


if __name__ == "__main__":
    main(sys.argv[1:])
