"""The page's script: its modules, where its map leads, and what a checkout and a package
do about modules that change or are missing."""

from __future__ import annotations

import json
import shutil
import sysconfig
from pathlib import Path

import pytest

from lanescope.assets import bundling
from lanescope.webapp.exporters import html_page
from lanescope.webapp.server import server
from tests.support.processes import output_of

MODULE = "page/main.js"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with two entries and a module that one of them imports."""
    folder = tmp_path / "timeline"
    for name, text in {
        MODULE: 'import { b as c } from "../base/b.js";\nglobalThis.answer = c;\n',
        "page/offline_page.js": "globalThis.answer = 0;\n",
        "base/b.js": 'export const b = "first";\n',
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(bundling, "MODULES", folder)
    monkeypatch.setattr(bundling, "BUNDLES", tmp_path / "bundles")
    return folder


def test_all_modules_are_in_a_script_and_unchanged_in_its_map() -> None:
    assert bundling.ENTRIES == (server.PAGE_SCRIPT, html_page.OFFLINE_SCRIPT)
    maps = [json.loads(bundling.script(entry)[1]) for entry in bundling.ENTRIES]
    texts = {
        name: text
        for one in maps
        for name, text in zip(one["sources"], one["sourcesContent"], strict=True)
    }
    folder = bundling.MODULES
    kept = {one.relative_to(folder).as_posix(): one.read_text() for one in folder.rglob("*.js")}
    del kept[server.HOOKS]
    assert texts == kept


def test_the_map_leads_to_the_line(tmp_path: Path) -> None:
    """Asks the debugger's own reader of maps where a text of the script comes from."""
    text, source_map = bundling.script(server.PAGE_SCRIPT)
    kept = tmp_path / "map.json"
    kept.write_text(source_map)
    wanted = "/api/run"
    before = text[: text.index(wanted)]
    line, column = before.count("\n"), len(before) - (before.rfind("\n") + 1)
    node = Path(sysconfig.get_path("scripts"), "node")
    program = (
        "const { SourceMap } = require('node:module');"
        f"const map = new SourceMap(require({json.dumps(str(kept))}));"
        f"const at = map.findEntry({line}, {column});"
        "console.log(JSON.stringify([at.originalSource, at.originalLine]))"
    )
    source, at = json.loads(output_of(node, "-e", program))
    assert wanted in (bundling.MODULES / source).read_text().splitlines()[at]


def test_a_changed_module_is_served_at_once(modules: Path) -> None:
    assert "first" in bundling.script(MODULE)[0]
    (modules / "base/b.js").write_text('export const b = "second";\n')
    assert "second" in bundling.script(MODULE)[0]


def test_a_wrong_module_is_named(modules: Path) -> None:
    (modules / "base/b.js").write_text("export const a = 1;\n")
    with pytest.raises(bundling.BundleError, match=r'No matching export in "base/b.js"'):
        bundling.script(MODULE)


def test_without_esbuild_the_bundle_is_taken_or_missed_in_a_sentence(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = bundling.esbuild()
    assert program is not None
    monkeypatch.setattr(bundling, "esbuild", lambda: None)
    with pytest.raises(bundling.BundleError, match="run 'make setup' in a checkout"):
        bundling.script(MODULE)
    bundling.write(bundling.BUNDLES, program)
    text, source_map = bundling.script(MODULE)
    assert "first" in text
    assert json.loads(source_map)["sources"] == ["base/b.js", MODULE]
    (modules / "base/b.js").write_text('export const b = "second";\n')
    with pytest.raises(bundling.BundleError, match="its modules have changed since"):
        bundling.script(MODULE)


def test_a_package_without_modules_asks_for_no_esbuild(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = bundling.esbuild()
    assert program is not None
    bundling.write(bundling.BUNDLES, program)
    shutil.rmtree(modules)
    assert "first" in bundling.script(MODULE)[0]
