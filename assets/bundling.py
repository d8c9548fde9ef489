"""Bundles the page's modules into one script with esbuild.

Sixty modules would be sixty requests, which take the browser longer than running them. A wheel
has the bundles instead of the modules, a source archive and an editable install both. Where
esbuild is installed beside the modules, it runs when a server starts or a page is exported, so
that a changed module is served at once; else the bundle must be of these very modules.

setup.py runs this file by its path, so it imports nothing of the package.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sysconfig
from functools import lru_cache
from pathlib import Path

FOLDER = Path(__file__).parent
MODULES = FOLDER / "timeline"
BUNDLES = FOLDER / "built"
"""The bundles of an installed package, each beside its source map."""

ENTRIES = ("page/main.js", "page/offline_page.js")
"""The modules that start a page: the server's, and the exported one."""

DIGEST = "digest"
"""The file beside the bundles that holds the digest of their modules."""

_MAP = "//# sourceMappingURL=data:application/json;base64,"


class BundleError(Exception):
    """Says in one sentence why there is no script."""


def script(entry: str) -> tuple[str, str]:
    """Returns the script of an entry with all that it imports, and its source map (JSON).

    Raises BundleError where there is neither esbuild nor a bundle of the modules that are there, or
    where a module is wrong.
    """
    has_modules = (MODULES / entry).exists()
    program = esbuild() if has_modules else None
    if program:
        return _bundled(program, entry, modules_digest())
    made = BUNDLES / entry
    if not made.exists() or (has_modules and not is_made()):
        raise BundleError(
            "the page's script was not built, or its modules have changed since, and esbuild is "
            "missing: run 'make setup' in a checkout, or install a wheel"
        )
    return made.read_text("utf-8"), made.with_suffix(".js.map").read_text("utf-8")


def is_made() -> bool:
    """Returns whether there are bundles, of the modules that are there."""
    made = BUNDLES / DIGEST
    return made.exists() and made.read_text("utf-8") == modules_digest()


def modules_digest() -> str:
    """Returns what changes with each change of a module."""
    found = hashlib.sha256()
    for path in sorted(MODULES.rglob("*.js")):
        found.update(f"{path.relative_to(MODULES).as_posix()}\n".encode() + path.read_bytes())
    return found.hexdigest()


def write(into: Path, program: str) -> None:
    """Writes all bundles and their source maps into a folder, see `script`."""
    digest = modules_digest()
    for entry in ENTRIES:
        for suffix, text in zip((".js", ".js.map"), _bundled(program, entry, digest), strict=True):
            path = (into / entry).with_suffix(suffix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    (into / DIGEST).write_text(digest, "utf-8")


def esbuild() -> str | None:
    """Returns the path of esbuild: in this Python's environment, else on PATH."""
    return shutil.which("esbuild", path=sysconfig.get_path("scripts")) or shutil.which("esbuild")


@lru_cache
def _bundled(program: str, entry: str, digest: str) -> tuple[str, str]:
    """Returns script and source map of an entry. The digest says when modules have changed."""
    options = ("--bundle", "--format=esm", "--minify", "--sourcemap=inline", "--log-level=warning")
    command = (program, entry, *options)
    done = subprocess.run(command, cwd=MODULES, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        raise BundleError(f"esbuild could not bundle {entry}:\n{done.stderr}")
    text, _, source_map = done.stdout.rpartition(_MAP)
    return text, base64.b64decode(source_map).decode()
