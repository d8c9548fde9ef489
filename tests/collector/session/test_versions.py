"""Versions out of the tested range: said at once, and no program is harmed by them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import tomllib

from lanescope.collector.format.names import MISSING
from lanescope.collector.recorder import versions
from tests.matrix import run as matrix
from tests.support import ROOT
from tests.support.processes import run_program
from tests.support.recording import record_program

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _torch_of(folder: Path, version: str) -> Path:
    package = folder / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(f"__version__ = {version!r}\nones = list\n")
    return folder


def test_a_torch_that_is_too_old_is_not_recorded_and_says_so(tmp_path: Path) -> None:
    run = tmp_path / "run"
    environment = {
        "LANESCOPE_RECORD": str(run),
        "PYTHONPATH": str(_torch_of(tmp_path, "2.4.1+cpu")),
    }
    program = "import torch, sys; print(torch.ones((1,))); sys.exit(3)"
    done = run_program([sys.executable, "-c", program], environment=environment)
    assert done.returncode == 3
    assert done.stdout == "[1]\n"
    assert done.stderr == (
        "lanescope: this process is not recorded: torch 2.4.1+cpu is older than 2.5, the oldest "
        "recorded\n"
    )
    assert not run.exists()


@pytest.mark.parametrize(
    ("torch", "python", "said"),
    [
        ("2.5.0", "3.10.13", ()),
        ("2.15.1+cu132", "3.14.9", ()),
        ("9.1.0a0+git", "3.11.9", ("torch 9.1.0a0+git is newer than 2.15",)),
        ("2.13.0", "3.99.0", ("Python 3.99.0 is newer than 3.14",)),
    ],
)
def test_the_coverage_names_versions_newer_than_the_tested_ones(
    monkeypatch: pytest.MonkeyPatch, torch: str, python: str, said: tuple[str, ...]
) -> None:
    module = type(sys)("torch")
    module.__version__ = torch
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(sys, "version", f"{python} (main)")
    monkeypatch.setattr(sys, "version_info", tuple(map(int, python.split("."))))
    assert versions.unsupported(module) is None
    assert versions.untested() == tuple(f"untested: {one}, the newest tested" for one in said)


def test_a_python_without_the_interpreter_lock_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = type(sys)("torch")
    module.__version__ = "2.13.0"
    monkeypatch.setattr(sys, "version", "3.14.0 free-threading build (main)")
    assert "no global interpreter lock" in str(versions.unsupported(module))


def test_the_range_is_the_same_wherever_it_stands() -> None:
    oldest, newest = ("{}.{}".format(*v) for v in (versions.OLDEST_TORCH, versions.NEWEST_TORCH))
    assert PROJECT["optional-dependencies"]["record"] == [f"torch>={oldest}"]
    assert PROJECT["requires-python"] == ">={}.{}".format(*versions.OLDEST_PYTHON)
    classifiers = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"3\.\d+$", c)]
    pythons = [f"3.{n}" for n in range(versions.OLDEST_PYTHON[1], versions.NEWEST_PYTHON[1] + 1)]
    assert classifiers == pythons
    assert set(pythons) <= set(matrix.PYTHONS)
    assert matrix.TORCHES[0].startswith(f"{oldest}.")
    assert any(one.startswith(f"{newest}.") for one in matrix.TORCHES)


def test_the_pinned_versions_lack_nothing_that_is_looked_up(tmp_path: Path, native: Path) -> None:
    recorded = record_program(tmp_path, "import torch; torch.ones(2).sum()")
    assert MISSING not in (recorded.run / "manifest.json").read_text()
