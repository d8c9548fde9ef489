"""Wheel, source archive and editable install, each in a clean environment far from the sources."""

from __future__ import annotations

import ast
import json
import os
import shutil
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
import tomllib

from lanescope.assets.bundling import BUNDLES, DIGEST, ENTRIES, MODULES, modules_digest, script
from lanescope.webapp.server.server import HOOKS
from tests.support import ROOT
from tests.support.needed import install
from tests.support.processes import output_of, run_program, without

SOURCES = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "package.json",
    "package-lock.json",
    ".npmrc",
    "lanescope_start.pth",
    "README.md",
    "collector",
    "webapp",
    "assets",
)
PARTS = ("collector", "webapp", "assets")
AROUND = "collector/lanescope/"
"""The folder of the package `lanescope` itself."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the package is made from: builds must leave nothing in the working tree."""
    folder = tmp_path_factory.mktemp("project")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source,
                folder / name,
                ignore=shutil.ignore_patterns("__pycache__", "*.pyc", BUNDLES.name),
            )
        else:
            shutil.copy2(source, folder / name)
    return folder


@pytest.fixture(scope="module")
def archives(project: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The source archive, and the wheel built from it, as an index would serve them."""
    target = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", target, project)
    (wheel,) = target.glob("*.whl")
    (source,) = target.glob("*.tar.gz")
    return {"wheel": wheel, "source": source}


@dataclass(frozen=True)
class Environment:
    """A virtual environment that finds the dependencies of this one, but not its lanescope."""

    folder: Path

    @property
    def scripts(self) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    @property
    def packages(self) -> Path:
        paths = {"base": str(self.folder), "platbase": str(self.folder)}
        return Path(sysconfig.get_path("purelib", scheme="venv", vars=paths))

    def install(self, *arguments: str | Path) -> None:
        python = self.scripts / "python"
        options = ("--no-deps", "--no-build-isolation", "--quiet")
        run(sys.executable, "-m", "pip", "--python", python, "install", *options, *arguments)

    def python(self, code: str) -> str:
        return run(self.scripts / "python", "-c", code, folder=self.folder)


def new_environment(folder: Path) -> Environment:
    environment = Environment(folder)
    venv.create(folder, with_pip=False)
    # A plain line in a .pth file adds a folder to sys.path without reading the .pth files in it:
    # torch and dash are there, the editable lanescope of this environment is not.
    (environment.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    missing = environment.python(
        "import importlib.util as u; print(u.find_spec('lanescope'), u.find_spec('torch') is None)"
    )
    assert missing.split() == ["None", "False"]
    return environment


def run(*command: str | Path, folder: Path | None = None) -> str:
    clean = {**without("PYTHON", "LANESCOPE"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return output_of(*command, environment=clean, folder=folder)


@pytest.fixture(scope="module")
def wheel(archives: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = new_environment(tmp_path_factory.mktemp("wheel") / "venv")
    environment.install(archives["wheel"])
    return environment


@pytest.fixture(scope="module")
def editable(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = new_environment(tmp_path_factory.mktemp("editable") / "venv")
    environment.install("--editable", project)
    assert (project / "assets/built" / ENTRIES[0]).exists()
    return environment


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=pytest.mark.slow) for one in ("wheel", "editable")],
)
def installed(request: pytest.FixtureRequest) -> Environment:
    environment: Environment = request.getfixturevalue(request.param)
    return environment


def package_files() -> set[str]:
    """What belongs into the package; of the timeline's scripts the bundles, see bundling.py."""
    wanted = {"*.py", "py.typed", "*.css", "*.js", "*.svg", "*.cpp", "*.h", "*.pth"}
    bundled = [one for one in MODULES.rglob("*.js") if one != MODULES / HOOKS]
    return {
        f"lanescope/{path.relative_to(ROOT).as_posix().removeprefix(AROUND)}"
        for part in PARTS
        for pattern in wanted
        for path in (ROOT / part).rglob(pattern)
        if "__pycache__" not in path.parts and path not in bundled
    }


def bundles(archive: zipfile.ZipFile) -> dict[str, str]:
    """Texts of the bundles and their maps, by path."""
    folder = "lanescope/assets/built/"
    names = [name for name in archive.namelist() if name.startswith(folder)]
    return {name.removeprefix(folder): archive.read(name).decode() for name in names}


def expected_bundles() -> dict[str, str]:
    return {
        f"{entry}{suffix}": text
        for entry in ENTRIES
        for suffix, text in zip(("", ".map"), script(entry), strict=True)
    } | {DIGEST: modules_digest()}


def test_wheel_holds_all_modules_and_assets(archives: dict[str, Path]) -> None:
    names = set(zipfile.ZipFile(archives["wheel"]).namelist())
    assert package_files() - names == set()
    assert {f"lanescope/{part}/py.typed" for part in PARTS} <= names
    assert {"lanescope/py.typed", "lanescope/__main__.py"} <= names
    assert any(name.endswith(".css") for name in names)


def test_wheel_holds_the_bundles_and_their_maps_and_no_module(archives: dict[str, Path]) -> None:
    wheel = zipfile.ZipFile(archives["wheel"])
    assert bundles(wheel) == expected_bundles()
    modules = [name for name in wheel.namelist() if "/assets/timeline/" in name]
    assert modules == [f"lanescope/assets/timeline/{HOOKS}"]


def test_wheel_holds_nothing_else(archives: dict[str, Path]) -> None:
    names = set(zipfile.ZipFile(archives["wheel"]).namelist())
    tops = {name.split("/")[0] for name in names}
    extra = {top for top in tops if top != "lanescope" and not top.endswith((".dist-info", ".pth"))}
    assert extra == set(), "would shadow or clutter the modules of the recorded program"
    clutter = ("__pycache__", "/tests/", "collector/lanescope/")
    assert not any(one in name for one in clutter for name in names)


NEW_IN = {"tomllib": (3, 11), "wsgiref.types": (3, 11), "asyncio.taskgroups": (3, 11)}
"""Modules of Python itself that came after 3.10."""


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules that are imported whatever Python's version is."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "sys.version_info" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (node.module, *(f"{node.module}.{name.name}" for name in node.names))
        yield from imported(node)


def test_nothing_needs_a_newer_python_than_the_package_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))
    newer = {name for name, version in NEW_IN.items() if version > oldest}
    tops = [name.partition(".")[0] for name in newer]
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for part in PARTS
        for path in (ROOT / part).rglob("*.py")
        if any(top in (text := path.read_text("utf-8")) for top in tops)
        for name in imported(ast.parse(text))
        if name in newer
    }
    assert found == set()


def test_source_archive_is_enough_to_build_from(archives: dict[str, Path]) -> None:
    # `build` makes the wheel out of the source archive, so that the wheel is complete shows most.
    with tarfile.open(archives["source"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"setup.py", "README.md", "collector/format/columns.py", "assets/py.typed"} <= names
    assert {f"assets/built/{name}" for name in expected_bundles()} <= names
    assert {f"assets/timeline/{entry}" for entry in ENTRIES} <= names


def test_parts_import_under_the_prefix_only(installed: Environment) -> None:
    code = (
        "import importlib, importlib.util as u\n"
        f"for part in {PARTS}: importlib.import_module('lanescope.' + part)\n"
        f"print([part for part in {PARTS} if u.find_spec(part)])"
    )
    assert installed.python(code).strip() == "[]"


def test_assets_are_found_as_files(installed: Environment) -> None:
    code = (
        "from hashlib import sha256\n"
        "from lanescope.assets.bundling import ENTRIES, FOLDER, script\n"
        "print(len(list(FOLDER.glob('*.css'))))\n"
        "print(*[sha256(''.join(script(entry)).encode()).hexdigest() for entry in ENTRIES])"
    )
    styles, *scripts = installed.python(code).split()
    assert scripts == [sha256("".join(script(entry)).encode()).hexdigest() for entry in ENTRIES]
    assert int(styles) == len(list((ROOT / "assets").glob("*.css"))) > 0


def test_console_script_runs(installed: Environment) -> None:
    text = run(installed.scripts / "lanescope", "--help", folder=installed.folder)
    for command in ("record", "view", "info", "diff"):
        assert command in text


PROGRAM = "import torch; print((torch.ones(3) + 1).sum().item())"


def op_files(run_folder: Path) -> list[Path]:
    return list(run_folder.glob("rank=00000/thread=*/op-00000.parquet"))


def test_the_command_records_a_program(installed: Environment, tmp_path: Path) -> None:
    command = (installed.scripts / "lanescope", "record", "-o", tmp_path / "run", "--")
    said = run(*command, installed.scripts / "python", "-c", PROGRAM, folder=installed.folder)
    assert said.split() == ["6.0"]
    assert len(op_files(tmp_path / "run")) == 1


def test_the_environment_records_a_program(installed: Environment, tmp_path: Path) -> None:
    folder, python = tmp_path / "run", installed.scripts / "python"
    said = run("env", f"LANESCOPE_RECORD={folder}", python, "-c", PROGRAM, folder=installed.folder)
    assert said.split() == ["6.0"]
    assert len(op_files(folder)) == 1


def test_an_idle_interpreter_stays_light(installed: Environment) -> None:
    """Being installed must cost other programs nothing: no recorder, no torch at start-up."""
    code = "import sys; print([m for m in sys.modules if m.split('.')[0] in ('torch', 'pyarrow')])"
    assert installed.python(code).strip() == "[]"


@pytest.mark.slow
def test_a_wheel_brings_engine_and_trampolines_and_needs_no_compiler(
    project: Path, tmp_path: Path, native: Path
) -> None:
    engines, target = tmp_path / "engines", tmp_path / "dist"
    torch = Path(sysconfig.get_path("purelib")) / "torch"
    near = os.path.relpath(torch, tmp_path)  # as `make wheel` calls it
    prebuild = (sys.executable, "-m", "lanescope.collector.engines.prebuild", engines, near)
    run(*prebuild, folder=tmp_path)
    command = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", target)
    run("env", f"LANESCOPE_ENGINES={engines}", *command, project)
    shutil.rmtree(project / "build")
    (wheel,) = target.glob("*.whl")
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert not wheel.name.endswith("any.whl")
    environment = new_environment(tmp_path / "venv")
    environment.install(wheel)
    clean = {**without("PYTHON", "LANESCOPE"), "PATH": "/nowhere", "CXX": "/nowhere"}
    clean["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    python, folder = environment.scripts / "python", tmp_path / "run"
    words = ("-m", "lanescope", "record", "-o", folder, "--", python, "-c", PROGRAM)
    said = output_of(python, *words, environment=clean, folder=tmp_path)
    assert said.split() == ["6.0"]
    shown = output_of(python, "-m", "lanescope", "info", folder, "--json", environment=clean)
    assert json.loads(shown)["engine"] == "native"
    described = output_of(python, "-m", "lanescope", "info", folder, environment=clean)
    assert "not recorded" not in described
    assert not list((tmp_path / "cache").rglob("*.so"))


TORCH_NEEDS = ("torch", "functorch", "torchgen", "typing_extensions", "sympy", "mpmath", "networkx")
TORCH_NEEDS += ("jinja2", "markupsafe", "filelock", "fsspec")


@pytest.mark.slow
def test_base_install_records_shows_and_packs(archives: dict[str, Path], tmp_path: Path) -> None:
    """With what the package declares and torch, and nothing else."""
    environment = Environment(tmp_path / "venv")
    venv.create(environment.folder, with_pip=False)
    python = environment.scripts / "python"
    install(python, archives["wheel"])
    ours = Path(sysconfig.get_path("purelib"))
    for entry in ours.iterdir():
        name = entry.name.removesuffix(".py").partition("-")[0].lower()
        if name in TORCH_NEEDS and not entry.name.startswith("lanescope"):
            (environment.packages / entry.name).symlink_to(entry)
    extras = ["pandas", "dash", "plotly", "dash_ag_grid", "duckdb", "waitress"]
    code = f"import importlib.util as u; print([n for n in {extras} if u.find_spec(n)])"
    assert environment.python(code).strip() == "[]"
    recorded, bundle = tmp_path / "run", tmp_path / "run.lanes"
    lanescope = environment.scripts / "lanescope"
    said = run(lanescope, "record", "-o", recorded, "--", python, "-c", PROGRAM, folder=tmp_path)
    assert said.split() == ["6.0"]
    assert "level access" in run(lanescope, "info", recorded, folder=tmp_path)
    run(lanescope, "pack", recorded, "-o", bundle, folder=tmp_path)
    assert "whole" in run(lanescope, "verify", bundle, folder=tmp_path)


@pytest.mark.slow
def test_editable_install_sees_a_new_file(editable: Environment, project: Path) -> None:
    new = project / "webapp" / "written_after_the_install.py"
    new.write_text("ANSWER = 42\n")
    try:
        code = "from lanescope.webapp.written_after_the_install import ANSWER; print(ANSWER)"
        assert editable.python(code).strip() == "42"
    finally:
        new.unlink()


def without_esbuild(tmp_path: Path, *others: str) -> dict[str, str]:
    """Variables for a Python that finds no esbuild, and on PATH only these programs."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in others:
        found = shutil.which(name, path=f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}")
        assert found is not None
        (programs / name).symlink_to(found)
    return {**without("PYTHON", "LANESCOPE"), "PATH": str(programs)}


def built_by(environment: Environment, source: Path, variables: dict[str, str]) -> zipfile.ZipFile:
    """The wheel that an interpreter builds, whose environment has no esbuild."""
    python, target = environment.scripts / "python", environment.folder / "dist"
    command = (python, "-m", "build", "--no-isolation", "--wheel", "--outdir", target, source)
    output_of(*command, environment=variables)
    (wheel,) = target.glob("*.whl")
    return zipfile.ZipFile(wheel)


@pytest.mark.slow
def test_source_archive_needs_neither_npm_nor_esbuild(
    archives: dict[str, Path], tmp_path: Path
) -> None:
    with tarfile.open(archives["source"]) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    made = built_by(new_environment(tmp_path / "venv"), source, without_esbuild(tmp_path))
    assert bundles(made) == expected_bundles()


@pytest.mark.slow
def test_sources_without_npm_make_a_package_that_says_what_it_lacks(
    project: Path, tmp_path: Path
) -> None:
    environment = new_environment(tmp_path / "venv")
    source, variables = tmp_path / "source", without_esbuild(tmp_path)
    shutil.copytree(project, source, ignore=shutil.ignore_patterns(BUNDLES.name))
    assert bundles(built_by(environment, source, variables)) == {}
    environment.install(*(environment.folder / "dist").glob("*.whl"))
    folder, python = tmp_path / "run", environment.scripts / "python"
    run(environment.scripts / "lanescope", "record", "-o", folder, "--", python, "-c", PROGRAM)
    view = (environment.scripts / "lanescope", "view", folder, "--port", "0", "--no-browser")
    said = run_program(view, environment=variables, folder=tmp_path)
    assert said.returncode == 2
    assert "page's script was not built" in said.stderr
