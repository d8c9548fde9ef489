"""The commands on the pages on bundles, import, export and SQL do what the pages say."""

from __future__ import annotations

import contextlib
import glob
import pickle
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanescope.webapp.plugins.sql.queries import Limits, Queries
from lanescope.webapp.runs.run import open_run
from tests.collector.importers.test_import_ranks import dump
from tests.support import ROOT
from tests.support.bundled import lanescope
from tests.support.synthetic import write_run
from tests.support.trace_files import slice_, write_trace

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with all that the commands name."""
    folder = tmp_path_factory.mktemp("docs")
    with contextlib.chdir(folder):
        fill()
        yield folder


def fill() -> None:
    write_run("runs/mine", ranks=4, threads=1, steps=21, ops=2)
    write_run("RUN", ranks=2, threads=1, steps=3, ops=6)
    for rank, place in ((0, "host-a/run"), (1, "host-b/run.lanes")):
        Path(place).parent.mkdir()
        part = Path(place).with_suffix(".lanes")
        assert lanescope("pack", "RUN", "-o", part, "--ranks", rank).exit_code == 0
    assert lanescope("merge", "host-a/run.lanes", "-o", "host-a/run").exit_code == 0
    for rank, name in ((0, "trace_rank0.json"), (1, "trace_rank1.json.gz")):
        info = {"rank": rank, "world_size": 2}
        write_trace(Path(name), [slice_("a", 1, 2)], distributedInfo=info)
    write_trace(Path("pipeline.json"), [slice_("F0", 1, 2, args={"step": 0})])
    Path("dumps").mkdir()
    for rank in (0, 1):
        Path(f"dumps/nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump(1, 2, 3)))
    Path("bucket").mkdir()


def typed(line: str, here: Path) -> list[str]:
    """A command as a shell would hand it over; the store is a folder, and nothing is served."""
    _, command, *words = shlex.split(line.replace("s3://", f"{here.as_uri()}/"), comments=True)
    words = [name for word in words for name in sorted(glob.glob(word)) or [word]]
    return ["info" if command == "view" else command, *words]


@pytest.mark.parametrize("page", ["bundles", "export", "import"])
@pytest.mark.slow
def test_printed_commands_work(page: str, here: Path) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    lines = re.findall(r"^(?: {4})?(lanescope .+)$", text, re.MULTILINE)
    assert len(lines) >= 3
    for line in lines:
        result = lanescope(*typed(line, here))
        assert result.exit_code == 0, f"{line}\n{result.output}"


def test_the_printed_query_has_an_answer(here: Path) -> None:
    query = re.search(r"```sql\n(.*?)```", (DOCS / "sql.md").read_text(), re.DOTALL)
    assert query is not None
    answer = Queries(open_run(here / "RUN"), Limits(seconds=20)).answer(query[1], 10)
    assert answer.column_names == ["module", "ops", "self_ms"]
    assert answer.num_rows > 0
