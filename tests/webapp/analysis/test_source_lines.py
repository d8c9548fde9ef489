"""Lines of the program in findings, slices and bundles: from the run, never from the disk."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp.analysis.findings import findings
from lanescope.webapp.analysis.source_lines import excerpt, excerpts_of, layer_line, source_coverage
from lanescope.webapp.analysis.tables import table_pieces
from lanescope.webapp.bundles.writer import pack
from lanescope.webapp.exporters.report import report_markdown
from lanescope.webapp.plugins.sql.queries import Queries
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.timeline.span_details import slice_facts
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.processes import run_program
from tests.support.recording import BIN, record_program
from tests.support.run_builder import START_NS, Builder
from tests.webapp.bundles.test_redaction import texts_of

SECRET = "token_12345"
RACE = f"""
    import threading, torch
    weight = torch.zeros(4)
    def train():  # {SECRET}
        for _ in range(3):
            weight.add_(1)  # </script><img src=x onerror=alert(1)> {SECRET}
    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""
LINE = f"        weight.add_(1)  # </script><img src=x onerror=alert(1)> {SECRET}"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A race whose program on the disk is another one by now."""
    folder = tmp_path_factory.mktemp("race")
    run = record_program(folder, RACE, "--stacks", "all").run
    (folder / "program.py").write_text("another text\n" * 20)
    return open_run(run)


def test_a_finding_has_the_lines_that_ran(recorded: Run) -> None:
    race = next(one for one in findings(recorded) if one.kind == "race")
    assert race.where == "program.py:6"
    (found,) = race.source
    assert found["where"] == "program.py:6"
    assert found["line"] == 6
    assert found["lines"][2] == {"line": 5, "text": "    for _ in range(3):"}
    assert found["lines"][3] == {"line": 6, "text": LINE}
    assert [one["line"] for one in found["lines"]] == list(range(3, 10))


CLIPPED = """
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.randn(8, 4) + 9).sum().backward()
        optimizer.step()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
"""


def test_a_layer_or_a_call_of_a_library_leads_to_the_line_of_the_program(tmp_path: Path) -> None:
    run = open_run(record_program(tmp_path, CLIPPED).run)
    late = next(one for one in findings(run) if one.evidence.get("cause") == "clipped_late")
    assert late.where == "program.py:9"
    assert late.source
    named = ({"layers": ["2"]}, {"parameter": "2.weight"}, {"layers": [{"layer": "2"}]})
    for evidence in (*named, {"parameters": ["of_the_model_itself"]}):
        assert layer_line(run, (0,), evidence) == "program.py:7"
    assert layer_line(run, (0,), {"layers": ["absent"]}) is None
    assert layer_line(run, (0,), {"group": "2"}) is None


@pytest.mark.slow
def test_check_and_report_show_the_line(recorded: Run) -> None:
    command = [BIN / "lanescope", "check", recorded.path, "--fail-on", "never"]
    said = run_program(command).stdout
    assert f"program.py:6: {LINE.strip()}" in said
    as_json = json.loads(run_program([*command, "--json"]).stdout)
    assert len(as_json["source"]) == len(as_json["findings"])
    shown = report_markdown(recorded)
    assert "source: program" in shown
    assert "<img" not in shown


def test_a_slice_has_the_lines_of_its_stack(recorded: Run) -> None:
    timeline = Timeline.open(recorded)
    facts = [
        slice_facts(timeline, lane.id, ref)
        for lane in timeline.index.lanes
        if lane.kind == "thread"
        for ref in range(2)
    ]
    one = next(f for f in facts if f.get("name") == "aten::add_")
    assert len(one["source"]) == len(one["stack"])
    assert one["source"][0]["lines"][3]["text"] == LINE
    assert one["races"][0]["source"][0]["lines"][3]["text"] == LINE


def test_sql_and_exports_have_the_table(recorded: Run) -> None:
    asked = Queries(recorded).answer("SELECT text FROM source WHERE line = 6", 10)
    assert asked.to_pylist() == [{"text": LINE}]
    (exported,) = table_pieces(recorded, "source")
    assert LINE in exported["text"].to_pylist()


def test_a_bundle_carries_the_lines_and_a_redacted_one_none(recorded: Run, tmp_path: Path) -> None:
    pack(recorded, tmp_path / "whole.lanes")
    whole = open_run(tmp_path / "whole.lanes")
    assert whole.counts["source"] == recorded.counts["source"]
    assert findings(whole)[0].source == findings(recorded)[0].source
    pack(recorded, tmp_path / "redacted.lanes", redact=True)
    assert SECRET not in (tmp_path / "redacted.lanes").read_bytes().decode("latin-1")
    with zipfile.ZipFile(tmp_path / "redacted.lanes") as archive:
        for entry in archive.infolist():
            data = archive.read(entry)
            texts = [entry.filename, data.decode("latin-1")]
            texts += texts_of(data) if entry.filename.endswith(".parquet") else []
            assert not any(SECRET in text or "onerror" in text for text in texts), entry.filename
    redacted = open_run(tmp_path / "redacted.lanes")
    assert redacted.counts["source"] == 0
    assert {one.source for one in findings(redacted)} == {()}
    assert (
        subprocess.run([BIN / "lanescope", "verify", tmp_path / "redacted.lanes"]).returncode == 0
    )


def built(path: Path, rows: list[tuple[str, int, str | None]]) -> Run:
    builder = Builder(path, world_size=2)
    for rank in (0, 1):
        builder.op(START_NS, 10, rank=rank, thread=f"{1000 + rank}-0", stack=1)
        frames = [{"file": file, "line": line, "function": "f"} for file, line, _ in rows]
        builder.rows("stack", rank, None, stack=[1], frames=[frames])
    for file, line, text in rows:
        builder.rows("source", 1, None, file=[file], line=[line], text=[text])
    return open_run(builder.write())


def test_where_files_of_one_name_differ_a_stack_decides(tmp_path: Path) -> None:
    run = built(tmp_path / "run", [("/a/x.py", 3, "in a"), ("/b/x.py", 3, "in b")])

    def shown(evidence: dict[str, Any], *ranks: int) -> list[str]:
        found = excerpts_of(run, ranks, "x.py:3", evidence)
        return [line["text"] for one in found for line in one["lines"]]

    assert shown({}) == []
    assert shown({"first": {"stack": ["/b/x.py:3 f"]}}) == ["in b"]
    assert shown({"base": {"stack": ["/b/x.py:3 f"]}}) == []
    assert shown({"first": {"stack": ["/b/x.py:3 f"]}}, 0) == []
    assert excerpts_of(run, (), "an unknown place", {}) == ()
    assert excerpts_of(run, (), None, {"missing": [{"where": "y.py:3"}]}) == ()


def test_what_has_no_text_is_not_shown_and_counted(tmp_path: Path) -> None:
    rows = [
        ("/a/x.py", 3, "x"),
        ("/a/x.py", 9, None),
        ("/lib/python3.12/site-packages/y.py", 1, "y"),
    ]
    run = built(tmp_path / "run", rows)
    assert excerpt(run, 1, "/a/x.py", 9) is None
    assert excerpt(run, 0, "/a/x.py", 3) is None
    assert excerpt(run, 7, "/a/x.py", 3) is None
    words = source_coverage(run)
    assert words.startswith("Lines of the program are recorded for 1 place of stacks, ")
    assert "1 whose file changed" in words
    assert "2 that were not readable" in words


def test_a_line_of_a_strangers_run_is_cut(tmp_path: Path) -> None:
    run = built(tmp_path / "run", [("/a/x.py", 3, "x" * 100_000)])
    found = excerpt(run, 1, "/a/x.py", 3)
    assert found is not None
    assert len(found["lines"][0]["text"]) == 200
