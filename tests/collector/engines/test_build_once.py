"""Processes that start at once with an empty cache build one engine between them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lanescope.collector.engines.build import find_torch, torch_in
from lanescope.collector.engines.built_libraries import COMPILER_VARIABLE
from tests.support.processes import variables

PROCESSES = 16

COMPILER = """#!/bin/sh
echo "$*" >> "{log}"
for word; do made=$word; done
: > "$made"
"""

PROGRAM = """
import sys
from lanescope.collector.engines import build
print("ready", flush=True)
sys.stdin.readline()
print(build.ensure())
"""


@pytest.mark.slow
def test_sixteen_processes_with_an_empty_cache_build_once(tmp_path: Path) -> None:
    compiler, log = tmp_path / "c++", tmp_path / "calls"
    compiler.write_text(COMPILER.format(log=log))
    compiler.chmod(0o755)
    environment = variables({COMPILER_VARIABLE: str(compiler), "XDG_CACHE_HOME": str(tmp_path)})
    with contextlib.ExitStack() as ends:
        started = [
            ends.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", PROGRAM],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environment,
                    text=True,
                )
            )
            for _ in range(PROCESSES)
        ]
        for one in started:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for one in started:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        libraries = {one.communicate()[0].strip() for one in started}
    assert len(libraries) == 1
    assert os.path.exists(libraries.pop())
    calls = log.read_text().splitlines()
    assert sum("-shared" in call.split() for call in calls) == 1
    objects = [call.split()[-1] for call in calls if "-c" in call.split()]
    assert len(objects) == len(set(objects))


def test_the_folder_of_a_torch_is_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    # The compiler runs in another folder.
    found = find_torch()
    monkeypatch.chdir(found.folder.parent)
    assert torch_in(Path(found.folder.name)) == torch_in(found.folder)
