"""The layers of ARCHITECTURE.md, held by the imports that the code makes and those it loads.

    sources, engines -> journal -> compact -> schema <- run <- analysis, tiles <- charts <- pages
    <- server <- cli

DEBT lists the violations known; it may only shrink.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {name: ROOT / name for name in ("collector", "webapp", "assets")}

DEBT: set[tuple[str, str]] = set()

# What of the recorder the reader may import: the schema, and what reads journals of the dead.
# What writes tables serves what makes runs of runs: bundles, merging, importing.
SHARED = {"schema", "kinds", "decode", "journal_reader", "placement", "parquet", "refinement"}

SCREEN = {"dash", "plotly", "dash_ag_grid", "flask", "werkzeug", "waitress", "click", "rich"}
"""Libraries that draw, serve or print."""

# Reader modules above the analyses, from the bottom up, with the libraries each may use. A module
# not named here is below all of them (run, intervals, analysis, tiles, ...) and may use none.
TOP: list[tuple[str, set[str]]] = [
    ("theme", {"plotly"}),
    ("charts", {"plotly"}),
    ("gradient_charts", {"plotly"}),
    ("graph_charts", {"plotly"}),
    ("diff_charts", {"plotly"}),
    ("repeat_charts", {"plotly"}),
    ("device_charts", {"plotly"}),
    ("routes", {"flask", "werkzeug"}),
    ("searching", {"flask"}),
    ("table_routes", {"flask"}),
    ("note_routes", {"flask"}),
    ("pages", {"dash", "dash_ag_grid", "plotly", "flask"}),
    ("server", {"dash", "dash_ag_grid", "plotly", "flask", "werkzeug"}),
    ("serving", {"waitress"}),
    ("commands", SCREEN),
    ("cli", {"click"}),
]
ORDER = [name for name, _ in TOP]

# Below the analyses: who may not know whom.
RUN_LAYER = {
    "errors", "units", "typed_json", "manifest", "expansion", "footers", "parts", "axis",
    "leftovers", "threads", "steps", "rows", "notices", "intervals",
    "impossible_times", "run", "storage", "bundle", "files",
}  # fmt: skip
SESSION_LAYER = {"session", "launch", "cli", "api", "inject", "__main__"}


def modules(package: str) -> list[str]:
    """Dotted names within a package: `run`, `analysis.diff`; "" is the package itself."""
    folder = PACKAGES[package]
    found = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def imports(package: str, module: str, *, at_load: bool = False) -> Iterator[str]:
    """Absolute names that a module imports, `from a import b` as a.b; `at_load`: not within defs.

    Imports for type checkers alone count as well, but for `at_load`.
    """
    folder = PACKAGES[package].joinpath(*module.split(".")) if module else PACKAGES[package]
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    own = ["lanescope", package, *([p for p in module.split(".") if p])]
    base = own if path.name == "__init__.py" else own[:-1]
    for node in _nodes(ast.parse(path.read_text(encoding="utf-8")), at_load):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = base[: len(base) - node.level + 1] if node.level else []
            stem = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def _nodes(tree: ast.AST, at_load: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        lazy = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        lazy = lazy or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
        if not (at_load and lazy):
            yield child
            yield from _nodes(child, at_load)


def within(name: str, package: str) -> list[str] | None:
    """The parts of an import below one of our packages; None where it leads elsewhere."""
    parts = name.split(".")
    return parts[2:] if parts[:2] == ["lanescope", package] else None


def place(module: str) -> int:
    """Height of a reader module: -2 the run, -1 analyses and tiles, then the order of TOP."""
    first = module.split(".")[0]
    if first in ORDER:
        return ORDER.index(first)
    return -2 if first in RUN_LAYER else -1


def every(package: str) -> list[tuple[str, str]]:
    found = [(m, name) for m in modules(package) for name in imports(package, m)]
    return [pair for pair in found if (f"{package}.{pair[0]}", pair[1]) not in DEBT]


def test_reader_knows_the_schema_and_nothing_else_of_the_recorder() -> None:
    wrong = []
    for module, name in every("webapp"):
        inner = within(name, "collector")
        if inner is not None and (not inner or inner[0] not in SHARED):
            wrong.append((module, name))
    assert wrong == []


def test_reader_never_imports_torch() -> None:
    assert [pair for pair in every("webapp") if pair[1].split(".")[0] == "torch"] == []


def test_only_the_command_line_names_the_recorder_s_commands() -> None:
    naming = {
        module
        for module in modules("webapp")
        if "lanescope.collector.cli" in _constants("webapp", module)
    }
    assert naming <= {"cli"}


def _constants(package: str, module: str) -> str:
    folder = PACKAGES[package].joinpath(*module.split(".")) if module else PACKAGES[package]
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return "\n".join(str(node.value) for node in nodes if isinstance(node, ast.Constant))


def test_recorder_knows_nothing_of_the_reader_or_of_screens() -> None:
    forbidden = {"dash", "plotly", "pandas", "dash_ag_grid", "flask", "duckdb"}
    wrong = [
        (module, name)
        for module, name in every("collector")
        if name.split(".")[0] in forbidden
        or within(name, "webapp") is not None
        or within(name, "assets") is not None
    ]
    assert wrong == []


def test_run_intervals_analysis_and_tiles_know_no_dash_and_no_plotly() -> None:
    allowed = dict(TOP)
    wrong = [
        (module, name)
        for module, name in every("webapp")
        if name.split(".")[0] in SCREEN - allowed.get(module.split(".")[0], set())
    ]
    assert wrong == []


def test_reader_modules_import_downwards() -> None:
    wrong = []
    for module, name in every("webapp"):
        inner = within(name, "webapp")
        # The package itself offers the analyses by name, lazily; nothing inside goes through it.
        if module and inner is not None and (not inner or place(".".join(inner)) > place(module)):
            wrong.append((module, name))
    assert wrong == []


def test_package_offers_everything_lazily() -> None:
    assert [name for name in imports("webapp", "", at_load=True) if "lanescope" in name] == []


def test_schema_stands_alone() -> None:
    for module in modules("collector"):
        if module.split(".")[0] in ("schema", "kinds"):
            inner = [within(name, "collector") for name in imports("collector", module)]
            assert {parts[0] for parts in inner if parts} <= {"kinds", "schema"}, module


@pytest.mark.parametrize("low", ["journal", "journal_reader", "decode", "compact", "recorder"])
def test_journal_and_tables_know_no_engine_no_source_and_no_session(low: str) -> None:
    above = {"engines", "sources", *SESSION_LAYER}
    known = {parts[0] for name in imports("collector", low) if (parts := within(name, "collector"))}
    assert known & above == set()


def test_only_the_session_knows_engines_and_sources() -> None:
    wrong = []
    for module, name in every("collector"):
        inner = within(name, "collector")
        top = module.split(".")[0]
        if not inner or top in {"engines", "sources"}:
            if inner and inner[0] in SESSION_LAYER:
                wrong.append((module, name))
        elif (top, *inner[:2]) == ("launch", "engines", "build"):
            continue  # it builds the engine before the ranks would all want to
        elif inner[0] in {"engines", "sources"} and top != "session":
            wrong.append((module, name))
    assert wrong == []


def loaded(statement: str) -> set[str]:
    """Top-level modules in sys.modules after a statement, in a process of its own."""
    code = f"{statement}\nimport sys; print(*{{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_reader_loads_no_torch() -> None:
    everything = [f"lanescope.webapp.{m}".rstrip(".") for m in modules("webapp")]
    assert "torch" not in loaded("import " + ", ".join(everything))


def test_recorder_s_package_loads_nothing_heavy() -> None:
    heavy = {"torch", "pyarrow", "numpy", "pandas", "dash", "plotly", "click", "rich"}
    assert loaded("import lanescope.collector") & heavy == set()


def test_command_line_s_help_loads_nothing_heavy() -> None:
    heavy = {"torch", "pyarrow", "numpy", "pandas", "dash", "plotly"}
    show = "from lanescope.webapp.cli import main; main(['--help'], standalone_mode=False)"
    assert loaded(show) & heavy == set()


def test_relative_imports_are_understood() -> None:
    # Were they not, every rule above would hold of nothing.
    assert "lanescope.collector.kinds.MANIFEST" in set(imports("collector", "manifest"))
    assert "lanescope.collector.recorder.Recorder" in set(imports("collector", "sources.threads"))
    assert "lanescope.webapp.errors.RunError" in set(imports("webapp", "run"))
