"""Functions, files and folders stay as small as a reader can take in at once."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT

PRODUCT = ("collector", "webapp", "assets")
MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 400
MAX_FILES = 25
"""Of a folder, besides its README.md and __init__.py."""

SUFFIXES = {".py", ".js", ".css", ".cpp", ".h", ".svg"}
CONTROL = r"(?:\} )?(?:if|else|for|while|do|switch|case|try|catch|class|struct|namespace|extern)\b"


def sources(*folders: str) -> Iterator[Path]:
    """Files of these folders, without libraries of others."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and "vendor" not in path.parts:
                yield path


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def python_functions(text: str) -> Iterator[tuple[str, int]]:
    """(name, lines) of each function."""
    for one in ast.walk(ast.parse(text)):
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield one.name, (one.end_lineno or 0) - one.lineno + 1


def braced_functions(text: str) -> Iterator[tuple[str, int]]:
    """(first line, lines) of each function in C++ or JavaScript.

    The formatters put the closing brace below the beginning of the statement that opens it.
    """
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if not line.endswith("{") or ")" not in line:
            continue
        start = at
        while _closing(lines[start : at + 1]) > 0 and start:
            start -= 1
        first = lines[start].lstrip()
        if not re.match(CONTROL, first):
            end = lines[start][: len(lines[start]) - len(first)] + "}"
            rest = lines[at + 1 :]
            length = next((count for count, one in enumerate(rest, 2) if one.startswith(end)), 1)
            yield first, at - start + length


def _closing(lines: list[str]) -> int:
    """How many parentheses are closed that open further up."""
    text = "".join(lines)
    return text.count(")") - text.count("(")


@pytest.mark.parametrize("folder", PRODUCT)
def test_functions_fit_on_a_screen(folder: str) -> None:
    found = {}
    for path in sources(folder):
        if path.suffix not in {".css", ".svg"}:
            text = path.read_text(encoding="utf-8")
            functions = python_functions if path.suffix == ".py" else braced_functions
            found.update({f"{name(path)}: {one}": lines for one, lines in functions(text)})
    assert found
    assert {one: lines for one, lines in found.items() if lines > MAX_FUNCTION_LINES} == {}


def test_files_are_read_in_one_go() -> None:
    found = {
        name(path): path.read_text(encoding="utf-8").count("\n")
        for path in sources(*PRODUCT, "tests")
        if path.suffix != ".svg"
    }
    assert {path: lines for path, lines in found.items() if lines > MAX_FILE_LINES} == {}


def test_folders_are_seen_at_a_glance() -> None:
    counts = Counter(
        name(path.parent)
        for path in sources(*PRODUCT, "tests", "benchmarks")
        if path.name != "__init__.py"
    )
    assert {folder: count for folder, count in counts.items() if count > MAX_FILES} == {}


def test_functions_are_measured() -> None:
    # Were they not, none would be too long.
    script = "function draw(\n  a,\n) {\n  if (a) {\n    b();\n  }\n}\n"
    assert list(braced_functions(script)) == [("function draw(", 7)]
    assert list(python_functions("def f():\n    return 1\n")) == [("f", 2)]
