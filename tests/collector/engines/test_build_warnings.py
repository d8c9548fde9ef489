"""The observer compiles without warnings; here they are errors, on users' machines never."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lanescope.collector.engines import build
from tests.support.processes import run_program


@pytest.mark.slow
def test_every_unit_compiles_without_warnings(native: Path, tmp_path: Path) -> None:
    compiler = build.find_compiler()
    assert compiler is not None

    def messages(command: tuple[str, ...]) -> str:
        strict = [*command, "-Werror", "-fsyntax-only"]
        return run_program(strict).stderr

    commands = build.compile_commands(build.find_torch(), compiler, tmp_path)
    with ThreadPoolExecutor(2) as pool:
        assert "".join(pool.map(messages, commands)) == ""


def test_warnings_are_on_and_no_errors_for_users() -> None:
    assert {"-Wall", "-Wextra"} <= set(build.FLAGS)
    assert not {"-w", "-Werror"} & set(build.FLAGS)
