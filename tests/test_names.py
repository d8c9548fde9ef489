"""A public name at the top of a module means one thing in the whole project."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from tests.test_layers import modules, room, source

PROTOCOL = {
    "HOOK",  # record of hooks/base.py
    "install",  # of a hook
    "PLUGIN",  # record of a question; analysis/plugin.py
    "layout",  # of a page, as are the next three
    "body",
    "section",
    "register",
    "export",  # of a format; exporters/base.py
    "main",  # of a module that runs as a process
}
"""Names by which the frame, or a page, finds its parts."""


def defined(module: str) -> Iterator[str]:
    """Public names that a module defines at its top; imported ones do not count."""
    for node in ast.parse(source(module).read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = [node.name]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found = (one for target in targets for one in ast.walk(target))
            names = [one.id for one in found if isinstance(one, ast.Name)]
        else:
            names = []
        yield from (name for name in names if not name.startswith("_"))


def is_namespace(module: str) -> bool:
    """True if a module's names are not read alone: ids of a page, sub-commands, lazy packages."""
    return module.endswith(".ids") or room(module) == "commands" or module == "collector.cli"


def test_public_names_mean_one_thing() -> None:
    places = defaultdict(set)
    for module in (*modules("collector"), *modules("webapp")):
        if not is_namespace(module):
            for name in defined(module):
                places[name].add(module)
    assert len(places) > 2000
    several = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: several[name] for name in several.keys() - PROTOCOL - {"TYPE_CHECKING"}} == {}
    assert several.keys() >= PROTOCOL
