"""The order of the folders, held by what files import and by what importing them loads.

Each part of the project has one tuple of folders, the lowest first: a file imports from its own
folder and from those before it.
"""

from __future__ import annotations

import ast
import posixpath
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from lanescope.webapp.analysis.plugin import plugins
from tests.support import ROOT
from tests.support.processes import output_of

Arrows = set[tuple[str, str]]

PACKAGES = ("collector", "webapp", "assets")
AROUND = ROOT / "collector/lanescope"
"""The package `lanescope` itself; it may import of both sides."""

COLLECTOR = (
    "format",
    "journal",
    "numerics",
    "validation",
    "recorder",
    "compaction",
    "importers",
    "watchdog",
    "hooks",
    "engines",
    "session",
)
WEBAPP = (
    "runs",
    "analysis",
    "timeline",
    "ui",
    "bundles",
    "plugins",
    "exporters",
    "server",
    "commands",
)
OBSERVER = (
    "base",
    "journal",
    "thread",
    "stacks",
    "numerics",
    "storages",
    "collectives",
    "operators",
    "watchdog",
)
TIMELINE = ("base", "tiles", "model", "draw", "input", "panels", "page")

# What the reader imports of the recorder: the format, and what reads journals of the dead. What
# writes tables serves what makes runs of runs: bundles, merging, importing.
SHARED = (
    "collector.format",
    "collector.compaction.clock_refine",
    "collector.compaction.decode",
    "collector.compaction.journal_folders",
    "collector.compaction.catalogue",
    "collector.compaction.parquet",
    "collector.compaction.parquet_footer",
    "collector.compaction.process_placement",
    "collector.compaction.reader",
    "collector.compaction.short_threads",
    "collector.recorder.progress",
    "collector.recorder.workers",
)

SCREEN = {"dash", "plotly", "dash_ag_grid", "flask", "werkzeug", "waitress", "click", "rich"}
"""Libraries that draw, serve or print."""

DASH = {"dash", "dash_ag_grid", "plotly", "flask"}
DRAWING = (
    (r"webapp\.cli", {"click"}),
    (r"webapp\.commands\b.*", SCREEN),
    (r"webapp\.server\b.*", {*DASH, "werkzeug", "waitress"}),
    (r"webapp\.plugins\.\w+\.page\w*", DASH),
    (r"webapp\.plugins\.\w+\.charts\w*", {"plotly"}),
    (r"webapp\.ui\b.*", DASH),
    (r"webapp\.timeline\.(search\.)?(\w+_)?routes", {"flask", "werkzeug"}),
)
"""Modules that may use libraries of SCREEN, and which."""


def modules(package: str) -> list[str]:
    """Dotted names from the package on: `webapp.runs.run`; a package by its own name."""
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        if AROUND in path.parents:
            continue
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


@cache
def source(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports(module: str, *, at_load: bool = False) -> Iterator[str]:
    """What a module imports: ours as `webapp.runs.run`, others whole; `at_load`: not within defs.

    Imports for type checkers alone count as well, but for `at_load`.
    """
    path = source(module)
    own = ["lanescope", *module.split(".")]
    base = own if path.name == "__init__.py" else own[:-1]
    for node in _nodes(ast.parse(path.read_text(encoding="utf-8")), at_load):
        if isinstance(node, ast.Import):
            yield from (_ours(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = base[: len(base) - node.level + 1] if node.level else []
            stem = ".".join([*start, *([node.module] if node.module else [])])
            yield from (_ours(f"{stem}.{alias.name}") for alias in node.names)


@cache
def _ours(name: str) -> str:
    """The module of ours that a name is, or is in; a name of others as it is."""
    top, _, rest = name.partition(".")
    if top != "lanescope" or rest.partition(".")[0] not in PACKAGES:
        return name
    while not source(rest).exists():
        rest = rest.rpartition(".")[0]
    return rest


def _nodes(tree: ast.AST, at_load: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        lazy = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        lazy = lazy or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
        if not (at_load and lazy):
            yield child
            yield from _nodes(child, at_load)


@cache
def arrows(package: str) -> Arrows:
    """(module, what it imports) of all modules of a package."""
    return {(module, name) for module in modules(package) for name in imports(module)}


def room(module: str) -> str:
    """The folder of a module below its package; "" of one in the package itself."""
    parts = module.split(".")
    inner = len(parts) > 2 or source(module).name == "__init__.py"
    return parts[1] if inner and len(parts) > 1 else ""


def upwards(package: str, order: tuple[str, ...]) -> Arrows:
    """Imports within a package that lead to a folder further up, or out of the folders."""
    heights = {name: height for height, name in enumerate(order)}
    return {
        (module, name)
        for module, name in arrows(package)
        if name.partition(".")[0] == package and room(module) in heights
        if heights.get(room(name), len(order)) > heights[room(module)]
    }


def includes() -> Arrows:
    """(file, file it includes) of the observer, by path; `layout.h` is made when it is built."""
    folder = ROOT / "collector/engines/observer"
    return {
        (path.relative_to(folder).as_posix(), name)
        for path in folder.rglob("*.[ch]*")
        for name in re.findall(r'^#include "(.+)"$', path.read_text(encoding="utf-8"), re.MULTILINE)
        if name != "layout.h"
    }


def scripts() -> Arrows:
    """(file, file it imports) of the timeline, by path; names of types in comments do not count."""
    folder = ROOT / "assets/timeline"
    return {
        (name, posixpath.normpath(posixpath.join(posixpath.dirname(name), other)))
        for path in folder.rglob("*.js")
        for name in [path.relative_to(folder).as_posix()]
        for other in re.findall(
            r'^import [^;"]* from "(.+)";$', path.read_text(encoding="utf-8"), re.MULTILINE
        )
    }


def upwards_by_path(found: Arrows, order: tuple[str, ...]) -> Arrows:
    heights = {name: height for height, name in enumerate(order)}
    top = len(order)  # files beside the folders

    def height(path: str) -> int:
        folder = path.rpartition("/")[0]
        return heights[folder] if folder else top

    return {(one, other) for one, other in found if height(other) > height(one)}


def between_plugins() -> Arrows:
    """Imports of one plugin from another that its record does not name."""
    depends = {one.name: one.depends for one in plugins()}

    def plugin(module: str) -> str:
        return module.split(".")[2] if module.startswith("webapp.plugins.") else ""

    return {
        (module, name)
        for module, name in arrows("webapp")
        if plugin(module) and plugin(name) and plugin(module) != plugin(name)
        if plugin(name) not in depends.get(plugin(module), ())
    }


def owed() -> Arrows:
    """Every import that points upwards."""
    return {
        *upwards("collector", COLLECTOR),
        *upwards("webapp", WEBAPP),
        *between_plugins(),
        *upwards_by_path(includes(), OBSERVER),
        *upwards_by_path(scripts(), TIMELINE),
    }


def test_imports_point_downwards() -> None:
    assert owed() == set()


@pytest.mark.parametrize("package", ["collector", "webapp"])
def test_imports_form_no_circle(package: str) -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for module, name in arrows(package):
        graph[module].add(name)
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


@pytest.mark.parametrize(
    ("folder", "order"),
    [
        ("collector", (*COLLECTOR, "startup", "lanescope")),
        ("webapp", WEBAPP),
        ("collector/engines/observer", OBSERVER),
        ("assets/timeline", TIMELINE),
    ],
)
def test_every_folder_has_its_place(folder: str, order: tuple[str, ...]) -> None:
    found = {path.name for path in (ROOT / folder).iterdir() if path.is_dir()}
    assert found - {"__pycache__"} == set(order)


def test_reader_knows_the_format_and_nothing_else_of_the_recorder() -> None:
    wrong = [
        (module, name)
        for module, name in arrows("webapp")
        if name.partition(".")[0] == "collector"
        and not any(f"{name}.".startswith(f"{shared}.") for shared in SHARED)
    ]
    assert wrong == []


def test_reader_never_imports_torch() -> None:
    assert [pair for pair in arrows("webapp") if pair[1].split(".")[0] == "torch"] == []


def test_only_the_command_line_names_the_recorder_s_commands() -> None:
    naming = {m for m in modules("webapp") if "lanescope.collector.cli" in _constants(m)}
    assert naming <= {"webapp.cli"}


def _constants(module: str) -> str:
    nodes = ast.walk(ast.parse(source(module).read_text(encoding="utf-8")))
    return "\n".join(str(node.value) for node in nodes if isinstance(node, ast.Constant))


def test_recorder_knows_nothing_of_the_reader_or_of_screens() -> None:
    forbidden = {"dash", "plotly", "pandas", "dash_ag_grid", "flask", "duckdb", "webapp", "assets"}
    wrong = [pair for pair in arrows("collector") if pair[1].split(".")[0] in forbidden]
    assert wrong == []


def test_only_pages_and_charts_draw() -> None:
    wrong = []
    for module, name in arrows("webapp"):
        allowed = next((libraries for p, libraries in DRAWING if re.fullmatch(p, module)), set())
        if name.split(".")[0] in SCREEN - allowed:
            wrong.append((module, name))
    assert wrong == []


def test_what_plugins_depend_on_is_there_and_used() -> None:
    used = {
        (module.split(".")[2], name.split(".")[2])
        for module, name in arrows("webapp")
        if module.startswith("webapp.plugins.") and name.startswith("webapp.plugins.")
    }
    assert {(one.name, other) for one in plugins() for other in one.depends} <= used


def test_frame_names_no_plugin() -> None:
    folders = "|".join(one.name for one in plugins())
    naming = {
        module
        for module in modules("webapp")
        if room(module) not in {"plugins", "commands"} and module != "webapp"
        if re.search(rf"plugins[./]({folders})\b", source(module).read_text(encoding="utf-8"))
    }
    assert naming == set()


def test_nothing_inside_goes_through_the_package() -> None:
    # It offers the analyses by name, lazily.
    assert [pair for pair in arrows("webapp") if pair[1] == "webapp"] == []


def test_package_offers_everything_lazily() -> None:
    assert [name for name in imports("webapp", at_load=True) if name.startswith("webapp")] == []


def test_ways_into_the_recorder_know_no_engine_and_no_hook() -> None:
    wrong = [
        (module, name)
        for module, name in arrows("collector")
        if not room(module) and room(name) in {"engines", "hooks"}
    ]
    assert wrong == []


def loaded(statement: str) -> set[str]:
    """Top-level modules in sys.modules after a statement, in a process of its own."""
    code = f"{statement}\nimport sys; print(*{{m.split('.')[0] for m in sys.modules}})"
    return set(output_of(sys.executable, "-c", code).split())


def test_reader_loads_no_torch() -> None:
    everything = [f"lanescope.{module}" for module in modules("webapp")]
    assert "torch" not in loaded("import " + ", ".join(everything))


def test_recorder_s_package_loads_nothing_heavy() -> None:
    heavy = {"torch", "pyarrow", "numpy", "pandas", "dash", "plotly", "click", "rich"}
    assert loaded("import lanescope.collector") & heavy == set()


def test_package_itself_loads_nothing() -> None:
    tree = ast.parse((AROUND / "__init__.py").read_text(encoding="utf-8"))
    assert [one for one in tree.body if isinstance(one, (ast.Import, ast.ImportFrom))] == []


def test_command_line_s_help_loads_nothing_heavy() -> None:
    heavy = {"torch", "pyarrow", "numpy", "pandas", "dash", "plotly", "multiprocessing", "email"}
    show = "from lanescope.webapp.cli import main; main(['--help'], standalone_mode=False)"
    assert loaded(show) & heavy == set()


def test_records_of_plugins_load_nothing_heavy() -> None:
    heavy = {"torch", "pyarrow", "numpy", "pandas", "dash", "plotly", "flask", "duckdb"}
    read = "from lanescope.webapp.analysis.plugin import plugins; assert len(plugins()) > 9"
    assert loaded(read) & heavy == set()


def test_recorded_process_loads_no_pyarrow() -> None:
    assert "pyarrow" not in loaded("import lanescope.collector.session.session")


def test_imports_are_understood() -> None:
    # Were they not, every rule above would hold of nothing.
    assert "collector.format.record_kinds" in set(imports("collector.compaction.manifest"))
    assert "collector.recorder.recorder" in set(imports("collector.hooks.threads.threads"))
    assert "webapp.runs.errors" in set(imports("webapp.runs.run"))
    assert ("operators/observer.cpp", "operators/observer.h") in includes()
    assert ("page/main.js", "page/timeline.js") in scripts()
    assert room("webapp.runs") == room("webapp.runs.run") == "runs"
    assert room("webapp") == room("webapp.cli") == ""
