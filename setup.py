"""Finds the packages, and adds the start-up file to the wheel; the rest is in pyproject.toml.

`lanescope_start.pth` is beside the packages in site-packages. It makes LANESCOPE_RECORD=RUN
record any Python process, however it was started, and does nothing while that is not set.
"""

import shutil

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

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


setup(packages=packages(), cmdclass={"build_py": BuildWithStartFile})
