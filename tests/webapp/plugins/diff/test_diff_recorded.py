"""Diff of recorded programs: the line and the rank at which two runs part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lanescope.webapp.analysis.checks import check
from lanescope.webapp.cli import main
from lanescope.webapp.plugins.diff.diff import compare
from lanescope.webapp.plugins.diff.page import difference_tables, verdict_part
from lanescope.webapp.runs.run import open_run
from lanescope.webapp.ui.context import Context
from tests.support.recording import record_program
from tests.webapp.plugins.diff.values.test_diff_values import first_of

PROGRAM = """
    import sys
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 1, 0, 1, 0])
    for step in range(3):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model[2].weight.add_(float(sys.argv[1]) if step == 1 else 0.0)
"""


@pytest.mark.slow
def test_a_recorded_pair_parts_at_the_changed_line(tmp_path: Path) -> None:
    paths = []
    for name, change in (("base", "0"), ("again", "0"), ("run", "1e-3")):
        (tmp_path / name).mkdir()
        done = record_program(tmp_path / name, PROGRAM, "--level", "numerics", arguments=(change,))
        assert done.status == 0, done.stderr
        paths.append(str(done.run))
    base, again, run = map(open_run, paths)
    same = compare(base, again)
    assert (same.verdict, same.only_in_base, same.only_in_run) == ("identical", 0, 0)
    assert same.compared > 100

    found = compare(base, run)
    first = first_of(found)
    assert (found.verdict, found.only_in_base, found.only_in_run) == ("diverged", 0, 0)
    assert (first["op"], first["where"]) == ("aten::add_", "program.py:14")
    assert [tensor["position"] for tensor in first["run"]["tensors"]] == ["in0"]
    assert first["origin"] == {"kind": "compute", "rank": 0}
    rows = found.table[found.table["kind"] == "tensor"]
    assert len(rows) == found.differing >= 10
    assert rows.iloc[0]["name"] == "aten::add_"

    [finding] = [one for one in check(run, baseline=base).findings if one.kind == "divergence"]
    assert (
        finding.title
        == "Values differ from the baseline since step 2, first aten::add_ at program.py:14 "
        "(computed on rank 0 from inputs that are equal as far as recorded). Look at this first: "
        "the command has 1e-3 in place of 0."
    )

    runner = CliRunner()
    answer = runner.invoke(main, ["diff", paths[0], paths[2]])
    assert answer.exit_code == 1
    assert "aten::add_" in answer.stdout
    assert "at program.py:14: in0 mean" in answer.stdout
    assert "origin: computed on rank 0" in answer.stdout
    pasted = runner.invoke(main, ["diff", paths[0], paths[2], "--markdown"]).stdout
    assert pasted.startswith("**diverged** (mode bitwise)")
    assert "program.py:14" in pasted
    printed = json.loads(runner.invoke(main, ["diff", paths[0], paths[2], "--json"]).stdout)
    assert printed == found.to_json()

    page = json.dumps(
        verdict_part(found, Context(run, base), base), default=lambda part: part.to_plotly_json()
    )
    assert "First difference" in page
    lane = f"at=0%2F{first['thread']}@{first['run']['time_ns']}"
    assert lane in (finding.link or "")  # the card above leads there
    page = json.dumps(
        difference_tables(found, Context(run, base)), default=lambda part: part.to_plotly_json()
    )
    assert "diff-tensor" in page


CLIPPED = """
    import sys
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(2):
        model(torch.randn(6, 4)).square().sum().backward()
        if sys.argv[1] == "clip":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
"""


def test_operators_that_one_engine_alone_sees_are_no_change_of_the_program(tmp_path: Path) -> None:
    runs = []
    for engine, seed in (("portable", 0), ("native", 1)):
        (tmp_path / engine).mkdir()
        source = PROGRAM.replace("manual_seed(0)", f"manual_seed({seed})")
        options = ("--engine", engine)
        recorded = record_program(tmp_path / engine, source, *options, arguments=("0",))
        assert recorded.status == 0, recorded.stderr
        runs.append(open_run(recorded.run))
    found = compare(*runs)
    assert any("engine portable in the baseline, native" in note for note in found.notes)
    assert any("the data differs since step 0" in note for note in found.notes), found.notes
    assert not any("batch size" in note or "alone calls" in note for note in found.notes)


def test_gradients_that_one_run_alone_clips_are_inputs_by_that_line(tmp_path: Path) -> None:
    sides = []
    for how in ("not", "clip"):
        (tmp_path / how).mkdir()
        done = record_program(tmp_path / how, CLIPPED, "--level", "numerics", arguments=(how,))
        assert done.status == 0, done.stderr
        sides.append(open_run(done.run))
    first = first_of(compare(*sides))
    assert (first["step"], first["where"]) == (0, "program.py:11")
    [clipped] = [one for one in first["run"]["inputs"] if "mul_" in str(one["written_by"])]
    assert clipped["written_by"] == "aten::_foreach_mul_ at program.py:10"
    assert clipped["shape"] == "[8, 4]"


RANKS = """
    import sys
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(6, 4)
    for step in range(3):
        changed = dist.get_rank() == 1 and step == 1
        model(x.mul(float(sys.argv[1]) if changed else 1.0)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""


def test_a_difference_on_rank_1_that_all_reduce_spreads_is_rank_1s(tmp_path: Path) -> None:
    sides = []
    for name, change in (("base", "1"), ("run", "1.5")):
        (tmp_path / name).mkdir()
        done = record_program(
            tmp_path / name, RANKS, "--level", "numerics", ranks=2, arguments=(change,)
        )
        assert done.status == 0, done.stderr
        sides.append(open_run(done.run))
    found = compare(*sides)
    first = first_of(found)
    assert found.verdict == "diverged"
    assert (first["rank"], first["step"], first["op"]) == (1, 1, "aten::mul")
    assert first["where"] == "program.py:12"
    assert first["origin"] == {"kind": "compute", "rank": 1}
    tensors = found.table[found.table["kind"] == "tensor"]
    assert set(tensors["rank"]) == {0, 1}
    assert tensors["step"].min() == 1
