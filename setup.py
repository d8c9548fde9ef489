"""Finds the packages, and adds the start-up file to the wheel; the rest is in pyproject.toml.

`lanescope_start.pth` is beside the packages in site-packages. It makes LANESCOPE_RECORD=RUN
record any Python process, however it was started, and does nothing while that is not set.
"""

import os
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

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


class BuildWithStartFile(build_py):
    """Puts the start-up file at the root of the wheel, of an editable one too."""

    def run(self) -> None:
        """Build, then copy the file beside the packages."""
        super().run()
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
    packages=packages(), cmdclass={"build_py": BuildWithStartFile, "bdist_wheel": WheelWithEngines}
)
