"""How a run that cannot be read is refused, and how to make one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lanescope.collector.format import schema
from lanescope.webapp.cli import main
from lanescope.webapp.runs.run import RunError, open_run

OP_FILE = "rank=00001/thread=1001-0/op-00000.parquet"


def refusal(path: Path | str) -> str:
    """The sentence with which a path is refused, by the interface and by every command alike."""
    with pytest.raises(RunError) as caught:
        open_run(path)
    sentence = str(caught.value)
    for command in (["info"], ["info", "--json"], ["check"], ["view", "--no-browser"]):
        result = CliRunner().invoke(main, [*command, str(path)])
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.startswith("lanescope: ")
        assert result.stderr.count("\n") == 1
    return sentence


def change(run: Path, how: Callable[[dict[str, Any]], object]) -> Path:
    """Rewrites the manifest."""
    file = run / schema.MANIFEST
    manifest = json.loads(file.read_text())
    how(manifest)
    file.write_text(json.dumps(manifest))
    return run


def setter(*keys: Any) -> Callable[[dict[str, Any]], None]:
    """Sets a place deep in the manifest to the last argument."""
    *path, last, value = keys

    def change_it(manifest: dict[str, Any]) -> None:
        place: Any = manifest
        for key in path:
            place = place[key]
        place[last] = value

    return change_it
