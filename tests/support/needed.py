"""What a test needs of the machine: it skips, with the reason, where the machine lacks it."""

from __future__ import annotations

import os
import sys
import sysconfig
import venv
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.processes import run_program


def lacking(reason: str, required: str = "") -> NoReturn:
    """Skips the test; fails it where the variable `required` is 1."""
    if required and os.environ.get(required) == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def environment_with(folder: Path, *packages: str) -> Path:
    """The folder of a virtual environment that has all that this one has, and some packages."""
    venv.create(folder, with_pip=False)
    paths = {"base": str(folder), "platbase": str(folder)}
    place = Path(sysconfig.get_path("purelib", scheme="venv", vars=paths))
    ours = sysconfig.get_path("purelib")
    # The editable install of this environment as well.
    (place / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    install(folder / "bin/python", *packages)
    return folder


def install(python: Path, *packages: str | Path) -> None:
    """Installs packages of the index for an interpreter; skips the test if they cannot be had.

    In CI alone it skips as well: that takes minutes, and depends on what others have released.
    """
    if "CI" in os.environ:
        lacking(f"{packages[0]} is not installed in CI; make soak does it")
    command = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    bounded = ("--retries", "0", "--timeout", "60", "--disable-pip-version-check")
    done = run_program((*command, *bounded, *packages), timeout=1200)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        lacking(f"{packages[0]} cannot be installed: {(lines or ['no message'])[-1]}")
