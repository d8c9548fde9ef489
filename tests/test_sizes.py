"""Functions, files and folders stay as small as a reader can take in at once."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support import ROOT
from tests.test_layers import SHIMS

PRODUCT = ("collector", "webapp", "assets")
MAX_FUNCTION_LINES = 60
MAX_FILES = 25
"""Of a folder, besides its README.md and __init__.py."""


def sources(*folders: str, suffix: str = ".py") -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob(f"*{suffix}"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def long_functions(path: Path) -> dict[str, int]:
    """Lines of functions that have too many, by file and name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = {
        f"{name(path)}: {one.name}": (one.end_lineno or 0) - one.lineno + 1
        for one in ast.walk(tree)
        if isinstance(one, kinds)
    }
    return {key: lines for key, lines in found.items() if lines > MAX_FUNCTION_LINES}


def test_functions_fit_on_a_screen() -> None:
    found = [long_functions(path) for path in sources(*PRODUCT)]
    assert {key: lines for one in found for key, lines in one.items()} == {}


def test_folders_hold_what_a_reader_can_look_through() -> None:
    shims = {f"{shim.replace('.', '/')}.py" for shim in SHIMS}
    files = [path for path in sources(*PRODUCT, "tests", "benchmarks", suffix="") if path.is_file()]
    counts = Counter(
        name(path.parent)
        for path in files
        if path.suffix in {".py", ".js", ".css", ".cpp", ".h", ".svg"}
        if path.name != "__init__.py" and name(path) not in shims
    )
    assert {folder: count for folder, count in counts.items() if count > MAX_FILES} == {}
