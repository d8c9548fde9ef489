"""The observer compiles without warnings; here they are errors, on users' machines never."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lanescope.collector.engines import build, built_libraries
from tests.support.processes import run_program


@pytest.mark.slow
def test_every_unit_compiles_without_warnings(native: Path, tmp_path: Path) -> None:
    compiler = built_libraries.find_compiler()
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


def test_where_trimmed_headers_do_not_do_torchs_own_are_taken(tmp_path: Path) -> None:
    header = tmp_path / "include/ATen/ATen.h"
    header.parent.mkdir(parents=True)
    header.write_text("constexpr int whole = 1;\n")
    source = tmp_path / "unit.cpp"
    source.write_text("#include <ATen/ATen.h>\nint found = whole;\n")
    compiler = built_libraries.find_compiler()
    trimmed, own = f"-isystem{build.TRIMMED}", f"-isystem{tmp_path / 'include'}"
    command = (str(compiler), trimmed, own, "-c", str(source), "-o", str(tmp_path / "unit.o"))
    assert trimmed in " ".join(build.compile_commands(build.find_torch(), Path("c++"), tmp_path)[0])
    assert built_libraries.run_compiler(command, tmp_path).returncode != 0
    assert build._compiled(command, tmp_path).returncode == 0
