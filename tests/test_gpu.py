"""`make gpu` without a GPU: it says so, and nothing that it could not run counts as passed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests.gpu.__main__ import TESTS, one, run_tests
from tests.support import ROOT
from tests.support.processes import run_program


@pytest.mark.slow
def test_without_a_gpu_it_says_so_and_ends_with_2() -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    done = run_program([sys.executable, "-m", "tests.gpu"], environment=hidden, folder=ROOT)
    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith(f"make gpu: torch {torch.__version__} ")
    assert done.stdout.endswith(", expected one NVIDIA GPU and a torch for it: nothing was run\n")
    assert done.stdout.count("\n") == 1


def test_make_runs_it() -> None:
    said = run_program(["make", "--dry-run", "gpu"], folder=ROOT).stdout
    assert "python -m tests.gpu" in said


def test_what_a_check_raises_is_its_row() -> None:
    def fails() -> list[tuple[str, str]]:
        raise AssertionError("3 kernels have no launch")

    assert one("kernels", fails) == [
        ("kernels", "FAILED", "AssertionError: 3 kernels have no launch")
    ]
    assert one("kernels", lambda: [("kernels", "9")]) == [("kernels", "ok", "9")]


@pytest.mark.slow
def test_a_test_that_is_skipped_has_failed(tmp_path: Path) -> None:
    rows = run_tests(tmp_path, 200.0)
    assert sorted(name for name, _, _ in rows) == sorted(one.partition("::")[2] for one in TESTS)
    expected = "ok" if torch.cuda.is_available() else "FAILED"
    assert {how for _, how, _ in rows} == {expected}
    if expected == "FAILED":
        assert all("needs a GPU" in said for _, _, said in rows)
