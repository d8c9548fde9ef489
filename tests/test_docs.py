"""The docs are true: tables are the schema's, examples run, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import duckdb
import pytest

from lanescope.webapp.analysis.plugin import kinds
from tests.support import ROOT
from tests.support.synthetic import write_run

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def examples(language: str) -> list[object]:
    """Code blocks marked ```<language> run, as parameters named after page and line.

    A block marked `run on` continues the block before it.
    """
    found: list[object] = []
    for page in PAGES:
        text, code = page.read_text(encoding="utf-8"), ""
        for block in re.finditer(
            rf"^```{language} run( on)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
        ):
            line = text.count("\n", 0, block.start()) + 1
            code = code + block[2] if block[1] else block[2]
            found.append(pytest.param(code, id=f"{page.name}:{line}"))
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the runs the examples speak of: runs/demo and runs/base."""
    write_run(tmp_path / "runs/demo", ranks=4, steps=4)
    write_run(tmp_path / "runs/base", ranks=4, steps=4, gradient_scale=1.5)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def structure(page: str) -> dict[str, list[str]]:
    """What a translation has in common with its original: levels, code, links, pictures."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    # Comments in examples of Python are translated, commands of the shell are not.
    code = [re.sub(r"  # .*", "", block) if kind == "python" else block for kind, block in blocks]
    links = re.findall(r"\]\(([^)]+)\)", text)
    return {
        "headings": re.findall(r"^#+(?= )", text, re.MULTILINE),
        "code": code,
        "links": [link for link in links if not link.startswith("README")],
        "pictures": re.findall(r'src(?:set)?="([^"]+)"', text),
        "columns": re.findall(r"^\|(?:---\|)+$", text, re.MULTILINE),
    }


def test_the_chinese_readme_says_the_same() -> None:
    assert structure("README.zh-CN.md") == structure("README.md")


FOLDERS = ("collector", "webapp", "assets", "tests", "docs", "examples", "benchmarks")
SOURCES = {".py", ".js", ".cpp", ".h", ".css"}


def folders() -> list[Path]:
    """Every folder of the repository with sources of its own, but for libraries of others."""
    found = {
        path.parent
        for name in FOLDERS
        for path in (ROOT / name).rglob("*")
        if path.suffix in SOURCES
    }
    return sorted(one for one in found if not {"vendor", "built"} & {*one.parts})


def test_every_folder_has_a_readme() -> None:
    assert [
        str(one.relative_to(ROOT)) for one in folders() if not (one / "README.md").exists()
    ] == []


def test_files_named_in_a_readme_exist() -> None:
    missing = []
    for folder in folders():
        named = re.findall(
            r"`([\w./*-]+(?:\.(?:py|js|cpp|h|css|toml)|/))`", (folder / "README.md").read_text()
        )
        for name in named:
            if not any(folder.rglob(name)) and not (ROOT / name).exists():
                missing.append(f"{folder.relative_to(ROOT)}: {name}")
    assert missing == []


def test_run_format_tables_are_current() -> None:
    reference = load(ROOT / "docs/schema_reference.py")
    page = reference.PAGE.read_text(encoding="utf-8")
    assert reference.updated(page) == page, "run: python docs/schema_reference.py"
    checks = (ROOT / "docs/checks.md").read_text(encoding="utf-8")
    assert reference.updated_checks(checks) == checks, "run: python docs/schema_reference.py"


@pytest.mark.parametrize("code", examples("python"))
@pytest.mark.usefixtures("here")
@pytest.mark.slow
def test_python_examples_run(code: str) -> None:
    exec(compile(code, "<example>", "exec"), {"__name__": "example"})


@pytest.mark.parametrize("query", examples("sql"))
@pytest.mark.usefixtures("here")
def test_sql_examples_return_rows(query: str) -> None:
    assert duckdb.sql(query).fetchall()


def test_every_kind_of_finding_is_made_and_listed() -> None:
    text = (ROOT / "docs/checks.md").read_text(encoding="utf-8")
    section = text.partition("\n## Findings\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE)) == sorted(kinds())
    folder = ROOT / "webapp"
    made = "".join(
        path.read_text(encoding="utf-8")
        for room in ("analysis", "plugins")
        for path in (folder / room).rglob("*.py")
        if path.name != "__init__.py"
    )
    assert [kind for kind in kinds() if f'"{kind}"' not in made] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
    targets += re.findall(r'(?:src|srcset)="([^":]+)"', text)
    broken = [target for target in targets if not (page.parent / target).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_targets_named_in_the_docs_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"`make ([a-z]+)", page.read_text(encoding="utf-8")))
    assert named - targets == set()
