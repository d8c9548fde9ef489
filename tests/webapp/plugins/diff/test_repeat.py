"""Repetitions: spread on paper, a real command whose values differ, bad input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lanescope.webapp import RunError, check, open_run
from lanescope.webapp.cli import main
from lanescope.webapp.plugins.diff.charts_repeat import fluctuation_by_threads, spread_by_step
from lanescope.webapp.plugins.diff.page_repeat import layout, parameters
from lanescope.webapp.plugins.diff.repeats import (
    FILE,
    Repetition,
    fluctuation,
    nondeterminism,
    repeats,
    repetition_in,
)
from lanescope.webapp.server.server import make_app
from lanescope.webapp.ui.context import Context
from tests.support.recording import BIN, run_program, write_program
from tests.support.synthetic import START_NS, Builder, write_run

PROGRAM = """
import os, sys, time, torch
assert os.environ["OMP_NUM_THREADS"] == sys.argv[1] == "2"
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(8, 4)
    if step == 1:
        x.add_(time.time_ns() % 1_000_003 * 1e-6)  # another number each time
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("not part of the answer")
"""


@pytest.mark.slow
def test_a_command_that_differs_each_time(tmp_path: Path) -> None:
    program, folder = write_program(tmp_path, PROGRAM), tmp_path / "twice"
    done = run_program(
        [
            str(BIN / "lanescope"),
            "repeat",
            "-n",
            "2",
            "--threads",
            "2",
            "--json",
            "-o",
            str(folder),
            "--",
            sys.executable,
            str(program),
            "{threads}",
        ]
    )
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert answer["runs"] == 2
    (one,) = answer["by_threads"]
    assert (one["threads"], one["bitwise_identical"]) == (2, False)
    assert one["gradient_fluctuation"] > 1e-5
    assert (one["first"]["step"], one["first"]["op"]) == (1, "aten::add_")
    assert one["first"]["where"] == "program.py:10"
    assert json.loads((folder / FILE).read_text()) == answer

    run = open_run(folder / "threads-2" / "run-01")
    report = check(run)
    assert report.metrics["gradient_fluctuation"] == one["gradient_fluctuation"]
    (finding,) = nondeterminism(run)
    assert finding.severity == "error"
    assert "aten::add_ at program.py:10" in finding.title
    assert "Look for data races" in finding.title
    one["first"]["op"] = "aten::randn"
    (folder / FILE).write_text(json.dumps(answer))
    (finding,) = nondeterminism(open_run(run.path))
    assert "torch.manual_seed()" in finding.title
    again = CliRunner().invoke(main, ["repeat", "-o", str(folder), "--", "true"])
    assert again.exit_code == 2
    assert "is not empty" in again.output


@pytest.mark.slow
def test_runs_that_are_the_same(tmp_path: Path) -> None:
    runs = [open_run(write_run(tmp_path / name)) for name in ("a", "b", "c")]
    found = repeats(runs, 1)
    assert (found.fluctuation, found.identical, found.first) == (0.0, True, None)
    other = open_run(write_run(tmp_path / "d", gradient_scale=2.0))
    found = repeats([*runs, other], 1)
    assert not found.identical
    assert found.first is not None
    assert found.first["run_number"] == 3


def test_spread_is_that_of_the_definition(tmp_path: Path) -> None:
    norms = {"w": (1.0, 2.0, 6.0), "nan": (np.nan,) * 3, "odd": (1.0, np.inf, 1.0)}
    runs = []
    for k in range(3):
        builder = Builder(tmp_path / str(k))
        for name, values in norms.items():
            builder.row("gradient", 0, "1000-0", time_ns=START_NS, parameter=name, norm=values[k])
        if k == 1:  # has a gradient in one run only
            builder.row("gradient", 0, "1000-0", time_ns=START_NS, parameter="late", norm=1.0)
        runs.append(open_run(builder.write()))
    table = fluctuation(runs).set_index("parameter")["std"]
    assert table.to_dict() == {"w": np.std([1, 2, 6]), "nan": 0.0, "odd": np.inf}


def test_a_file_that_is_not_a_verdict(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "threads-1" / "run-00"))
    entry = '"threads": 1, "gradient_fluctuation": [], "bitwise_identical": 0, "first": 1'
    for text in (
        '{"by_threads": [{"threads": 1}]}',
        f'{{"by_threads": [{{{entry}}}]}}',
        "[" * 9999,
    ):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(RunError, match="not the file of a repetition"):
            check(run)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--threads", "1,x", "--", "true"], 2, "expected numbers such as 1,2,4"),
        (["-n", "1", "--", "true"], 2, "1 is not in the range"),
        ([], 2, "Missing argument"),
    ],
)
def test_bad_input(tmp_path: Path, arguments: list[str], status: int, words: str) -> None:
    done = CliRunner().invoke(main, ["repeat", "-o", str(tmp_path / "x"), *arguments])
    assert done.exit_code == status
    assert words in done.output


def test_a_failing_command_ends_it_with_its_status(tmp_path: Path) -> None:
    command = [str(BIN / "lanescope"), "repeat", "-o", str(tmp_path / "x"), "-n", "3"]
    done = run_program([*command, "--", sys.executable, "-c", "raise SystemExit(7)"])
    assert done.returncode == 7
    assert not (tmp_path / "x" / FILE).exists()
    assert "run 2 of 3" not in done.stderr


def repetition(folder: Path) -> Path:
    """One and two threads, three runs each; with two, norms of `b` fluctuate in step 1."""
    for threads in (1, 2):
        for k in range(3):
            builder = Builder(folder / f"threads-{threads}" / f"run-{k:02d}")
            for step in range(3):
                odd = threads == 2 and step == 1
                for name, norm in (("a", 1.0), ("b", 2.0 + k * odd)):
                    builder.row(
                        "gradient",
                        0,
                        "1000-0",
                        time_ns=START_NS + step,
                        parameter=name,
                        step=step,
                        norm=norm,
                        dtype="float32",
                    )
            builder.write()
    reported = []
    for threads in (1, 2):
        runs = [open_run(place) for place in sorted(folder.glob(f"threads-{threads}/run-*"))]
        reported.append(repeats(runs, threads).to_json())
    (folder / FILE).write_text(json.dumps({"runs": 3, "by_threads": reported}))
    return folder


def test_the_page_of_a_repetition(tmp_path: Path) -> None:
    folder = repetition(tmp_path / "twice")
    found = repetition_in(folder)
    assert found is not None
    assert found.pair() == (f"{folder}/threads-2/run-01", f"{folder}/threads-2/run-00")
    same = Repetition(folder, found.entries[:1])
    assert same.pair() == (f"{folder}/threads-1/run-00", None)
    with pytest.raises(RunError, match="its runs are gone"):
        Repetition(tmp_path / "gone", found.entries).pair()
    count, spread = found.spread(2)
    assert count == 3
    assert spread.set_index(["parameter", "step"])["std"].to_dict() == {
        **{(name, step): 0.0 for name in "ab" for step in range(3)},
        ("b", 1): np.std([2, 3, 4]),
    }
    [line] = spread_by_step(spread, 1e-5, "light").data
    assert (line.name, list(line.x)) == ("b", [0, 1, 2])
    assert list(line.y) == [None, pytest.approx(np.std([2, 3, 4])), None]
    for limit in (1e-5, 0.0):
        same = spread_by_step(spread.assign(std=0.0), limit, "light")
        assert not same.data
        assert same.layout.annotations[-1].text == "the norms are the same in every run"
    [crosses] = spread_by_step(spread.assign(std=np.inf), 1e-5, "dark").data[2:]
    assert list(crosses.x) == [0, 1, 2]
    figure = fluctuation_by_threads(found.entries, 1e-5, "light")
    assert figure.layout.yaxis.range[0] == pytest.approx(-6)  # room below the limit
    counts, same = figure.data
    assert (list(counts.x), list(same.x)) == (["1", "2"], ["1"])
    assert list(counts.y) == [None, pytest.approx(np.std([2, 3, 4]))]

    text = json.dumps(parameters(count, spread), default=lambda part: part.to_plotly_json())
    assert '"share_text": "27.2 %"' in text
    text = json.dumps(parameters(*found.spread(1)), default=lambda part: part.to_plotly_json())
    assert "All norms of gradients of the 3 runs are the same." in text
    run = open_run(folder / "threads-2" / "run-00")
    client = make_app(run).server.test_client()
    assert "repeat-threads" in json.dumps(
        layout(Context(run)), default=lambda part: part.to_plotly_json()
    )
    assert '"repeat": "compare"' in str(client.get("/_dash-layout").get_json())
    plain = make_app(open_run(write_run(tmp_path / "plain"))).server.test_client()
    assert '"repeat": "compare"' not in str(plain.get("/_dash-layout").get_json())


def test_view_of_a_repetition_without_runs(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"by_threads": []}')
    done = CliRunner().invoke(main, ["view", str(tmp_path), "--no-browser", "--port", "0"])
    assert done.exit_code == 2
    assert "its runs are gone, only repeat.json is left" in done.output
