"""A plugin made as its author would make it: the skeleton copied and filled in."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lanescope.webapp.analysis import plugin
from tests.support import ROOT
from tests.support.synthetic import START_NS, Builder

NAME = "long_calls"
FILLED = {"_skeleton": NAME, "skeleton": NAME, "Skeleton": "Long calls"}


def copy_skeleton(folder: Path) -> Path:
    """Copies `plugins/_skeleton` into a folder and replaces what its comments say."""
    made = folder / NAME
    shutil.copytree(
        ROOT / "webapp/plugins/_skeleton", made, ignore=shutil.ignore_patterns("__pycache__")
    )
    (made / "icon-skeleton.svg").rename(made / f"icon-{NAME}.svg")
    for path in made.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for blank, word in FILLED.items():
            text = text.replace(blank, word)
        path.write_text(text, encoding="utf-8")
    return made


@contextmanager
def added(folder: Path) -> Iterator[None]:
    """Has the plugins of a folder beside those of the project."""
    package = importlib.import_module(plugin.PACKAGE)
    package.__path__.append(str(folder))
    plugin.plugins.cache_clear()
    try:
        yield
    finally:
        package.__path__.remove(str(folder))
        plugin.plugins.cache_clear()
        for name in [name for name in sys.modules if name.startswith(f"{plugin.PACKAGE}.{NAME}")]:
            del sys.modules[name]


def write_slow_run(path: Path) -> Path:
    """A run with one call that takes 500 times as long as the others of its operator."""
    builder = Builder(path)
    for number, length in enumerate((1000, 1000, 1000, 1000, 500_000)):
        builder.op(START_NS + 2000 * number, length, name="aten::mm")
    return builder.write()
