"""The skeleton of a hook: it records, and is gone afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp import open_run
from tests.support.processes import fork_program
from tests.support.recording import OBSERVERS, UNCOMPACTED, write_program

PROGRAM = """
    import sys, torch
    import lanescope.collector as ls
    from lanescope.collector.hooks import _skeleton, registry

    registry.WITH_ENGINE += (_skeleton.HOOK,)  # what a line in the registry does
    with ls.record(sys.argv[1], engine=sys.argv[2]):
        torch.use_deterministic_algorithms(False)
        torch.ones(2)
    torch.use_deterministic_algorithms(True)
"""


@pytest.mark.parametrize("engine", OBSERVERS)
def test_a_copied_hook_records(tmp_path: Path, engine: str) -> None:
    program = write_program(tmp_path, PROGRAM)
    run = tmp_path / "run"
    done = fork_program(program, str(run), engine, environment=UNCOMPACTED)
    assert done.returncode == 0, done.stderr
    names = open_run(run).events("phase", columns=["name"])["name"].to_pylist()
    assert [name for name in names if "determin" in name] == ["deterministic: False"]
