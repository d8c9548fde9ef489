"""Bundles the page's modules into one script with esbuild.

Sixty modules would be sixty requests, which take the browser longer than running them. A wheel
has the bundles instead of the modules, a source archive both. A checkout has no bundle that could
be out of date: there esbuild runs when a server starts or a page is exported.

setup.py runs this file by its path, so it imports nothing of the package.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import sysconfig
from functools import lru_cache
from pathlib import Path

FOLDER = Path(__file__).parent
MODULES = FOLDER / "timeline"
BUNDLES = FOLDER / "bundles"
"""The bundles of an installed package, each beside its source map."""

ENTRIES = ("page/main.js", "page/offline_page.js")
"""The modules that start a page: the server's, and the exported one."""

_MAP = "//# sourceMappingURL=data:application/json;base64,"


class BundleError(Exception):
    """Says in one sentence why there is no script."""


def script(entry: str) -> tuple[str, str]:
    """Returns the script of an entry with all that it imports, and its source map (JSON).

    Raises BundleError where there is neither a bundle nor esbuild, or where a module is wrong.
    """
    made = BUNDLES / entry
    program = esbuild() if (MODULES / entry).exists() else None
    if program is None and made.exists():
        return made.read_text("utf-8"), made.with_suffix(".js.map").read_text("utf-8")
    if program is None:
        raise BundleError(
            "the page's script was not built, because esbuild was missing: "
            "run 'make setup' in a checkout, or install a wheel"
        )
    modules = [path.stat().st_mtime_ns for path in MODULES.rglob("*.js")]
    return _bundled(program, entry, (len(modules), max(modules)))


def write(into: Path, program: str) -> None:
    """Writes all bundles and their source maps into a folder, see `script`."""
    for entry in ENTRIES:
        for suffix, text in zip((".js", ".js.map"), _bundled(program, entry, ()), strict=True):
            path = (into / entry).with_suffix(suffix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")


def esbuild() -> str | None:
    """Returns the path of esbuild: in this Python's environment, else on PATH."""
    return shutil.which("esbuild", path=sysconfig.get_path("scripts")) or shutil.which("esbuild")


@lru_cache
def _bundled(program: str, entry: str, state: tuple[int, ...]) -> tuple[str, str]:
    """Returns script and source map of an entry. `state` is different once modules have changed."""
    options = ("--bundle", "--format=esm", "--minify", "--sourcemap=inline", "--log-level=warning")
    command = (program, entry, *options)
    done = subprocess.run(command, cwd=MODULES, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        raise BundleError(f"esbuild could not bundle {entry}:\n{done.stderr}")
    text, _, source_map = done.stdout.rpartition(_MAP)
    return text, base64.b64decode(source_map).decode()
