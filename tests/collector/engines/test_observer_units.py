"""Parts of the native observer alone: a C++ program; each of its checks is a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lanescope.collector.engines import build, journal_layout
from tests.support import ROOT
from tests.support.processes import compiled, run_program

SOURCES = ROOT / "tests" / "fixtures" / "observer_units"
CHECKS = [
    name
    for room in sorted(SOURCES.glob("*.h"))
    for name in re.findall(r"^CHECK\((\w+)\)", room.read_text(encoding="utf-8"), re.MULTILINE)
]
PARTS = (
    "base/own_file.cpp",
    "journal/background_compactor.cpp",
    "journal/journal.cpp",
    "journal/segment_ring.cpp",
    "journal/string_table.cpp",
    build.KERNEL,
)


@pytest.fixture(scope="module")
def program(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program; compiled without optimization, which is most of the time it takes."""
    folder = tmp_path_factory.mktemp("units")
    (folder / "layout.h").write_text(journal_layout.layout_header(), encoding="utf-8")
    # In one, as the engine's: each would include the same headers, which takes as long again.
    whole = folder / "units.cpp"
    whole.write_text("".join(f'#include "{part}"\n' for part in (*PARTS, SOURCES / "main.cpp")))
    torch = build.find_torch()
    libraries = torch.folder / "lib"
    return compiled(
        whole,
        folder / "units",
        *build.FLAGS,
        "-O0",
        "-DLANESCOPE_VARIANT=generic",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.new_abi)}",
        f"-I{folder}",
        f"-I{build.SOURCES}",
        f"-isystem{torch.folder / 'include'}",
        f"-L{libraries}",
        f"-Wl,-rpath,{libraries}",
        "-lc10",
    )


@pytest.mark.parametrize("check", CHECKS)
def test_observer(program: Path, check: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    done = run_program([str(program), check, str(folder)])
    assert (done.returncode, done.stdout) == (0, "")
