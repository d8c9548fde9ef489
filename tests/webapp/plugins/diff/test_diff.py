"""Diff: verdict, counts and first difference of runs that differ in one known place."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.cli import main
from lanescope.webapp.plugins.diff.diff import Comparison, Mode, compare, diff
from lanescope.webapp.plugins.diff.divergence import divergence
from lanescope.webapp.plugins.diff.page import verdict_part
from lanescope.webapp.plugins.diff.verdict_words import headline, uncompared, verdict_markdown
from lanescope.webapp.runs.run import Run, RunError, open_run
from lanescope.webapp.ui.context import Context
from tests.support.synthetic import START_NS, Builder, write_run

T = START_NS
Row = tuple[int, int, str, "float | None", str]


def run_of(path: Path, *rows: Row, ops: dict[tuple[int, str, str], int] | None = None) -> Run:
    """Gradients (rank, step, parameter, norm, dtype) and ops {(step, thread, name): calls}."""
    world = 1 + max((rank for rank, *_ in rows), default=0)
    builder = Builder(path, world_size=world)
    for order, (rank, step, parameter, norm, dtype) in enumerate(rows):
        builder.row(
            "gradient",
            rank,
            f"{1000 + rank}-0",
            time_ns=T + order,
            step=step,
            parameter=parameter,
            norm=norm,
            dtype=dtype,
        )
    for (step, thread, name), calls in (ops or {}).items():
        for _ in range(calls):
            builder.op(T, 1, name, thread=thread, step=step)
    return open_run(builder.write())


def of_norms(path: Path, base: float | None, run: float | None, mode: Mode, *dtypes: str) -> str:
    """The verdict on two runs of one gradient each."""
    first, second = dtypes or ("float32", "float32")
    left = run_of(path / "base", (0, 0, "w", base, first))
    return compare(left, run_of(path / "run", (0, 0, "w", run, second)), mode).verdict


def test_a_run_is_identical_to_itself(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", ranks=2, threads=2, steps=3, ops=20)
    for mode in ("bitwise", "tolerance", "simple"):
        found = compare(open_run(path), open_run(path), mode)
        assert found.to_json() == {
            "verdict": "identical",
            "compared": 2 * 2 * 3 * 20 + 2 * 3 * 4,
            "only_in_base": 0,
            "only_in_run": 0,
            "first": None,
        }
        assert set(found.table["state"]) == {"identical"}


def test_the_first_difference_is_by_step_then_rank_then_order(tmp_path: Path) -> None:
    rows: list[Row] = [
        (rank, step, name, 1.0, "float32")
        for step in range(3)
        for rank in range(2)
        for name in ("z", "a.b.weight")
    ]
    base = run_of(tmp_path / "base", *rows)
    rows[3] = (1, 0, "a.b.weight", 1.5, "float32")
    rows[4] = (0, 1, "z", 2.0, "float32")
    found = compare(base, run_of(tmp_path / "run", *rows))
    assert found.verdict == "diverged"
    assert found.compared == 12
    assert found.first == {
        "rank": 1,
        "thread": "1001-0",
        "step": 0,
        "phase": "backward",
        "op": "gradient",
        "parameter": "a.b.weight",
        "module": "a.b",
        "where": None,
        "base": {"norm": 1.0, "dtype": "float32"},
        "run": {"norm": 1.5, "dtype": "float32"},
        "origin": None,
    }
    different = found.table[found.table["state"] == "different"]
    assert different[["step", "rank", "name", "difference"]].values.tolist() == [
        [0, 1, "a.b.weight", 0.5],
        [1, 0, "z", 1.0],
    ]


NEXT = math.nextafter(1.0, 2.0)


@pytest.mark.parametrize(
    ("base", "run", "bitwise", "tolerance", "simple"),
    [
        (1.0, 1.0, "identical", "identical", "identical"),
        (1.0, NEXT, "diverged", "within_tolerance", "within_tolerance"),
        (1.0, 1.0 + 1.2e-6, "diverged", "within_tolerance", "within_tolerance"),
        (1.0, 1.0 + 1.4e-6, "diverged", "diverged", "within_tolerance"),
        (1.0, 1.0 + 9.9e-5, "diverged", "diverged", "within_tolerance"),
        (1.0, 1.0 + 1.01e-4, "diverged", "diverged", "diverged"),
        (1e6, 1e6 + 1.0, "diverged", "within_tolerance", "diverged"),
        (0.0, -0.0, "diverged", "within_tolerance", "within_tolerance"),
        (0.0, 1e-9, "diverged", "diverged", "within_tolerance"),
        (math.nan, math.nan, "identical", "identical", "identical"),
        (math.nan, 1.0, "diverged", "diverged", "diverged"),
        (math.inf, math.inf, "identical", "identical", "identical"),
        (math.inf, 1.0, "diverged", "diverged", "diverged"),
        (math.inf, -math.inf, "diverged", "diverged", "diverged"),
        (None, None, "identical", "identical", "identical"),
        (None, 0.0, "diverged", "diverged", "diverged"),
        (None, math.nan, "diverged", "diverged", "diverged"),
    ],
)
def test_modes(
    tmp_path: Path, base: float | None, run: float | None, bitwise: str, tolerance: str, simple: str
) -> None:
    left = run_of(tmp_path / "base", (0, 0, "w", base, "float32"))
    right = run_of(tmp_path / "run", (0, 0, "w", run, "float32"))
    modes: tuple[Mode, ...] = ("bitwise", "tolerance", "simple")
    assert [compare(left, right, mode).verdict for mode in modes] == [bitwise, tolerance, simple]


def test_the_coarser_dtype_sets_the_tolerance(tmp_path: Path) -> None:
    assert of_norms(tmp_path, 1.0, 1.01, "tolerance", "bfloat16", "float32") == "within_tolerance"
    assert of_norms(tmp_path, 1.0, 1.01, "tolerance", "float16", "float32") == "diverged"
    assert of_norms(tmp_path, 1.0, 1.0 + 1e-6, "tolerance", "float64", "float64") == "diverged"
    assert of_norms(tmp_path, 1.0, 1.01, "tolerance", "float8", "float8") == "within_tolerance"
    # Of the larger of the two norms, whichever side it is on.
    assert (
        of_norms(tmp_path, 1.0, 1.0161, "tolerance", "bfloat16", "bfloat16") == "within_tolerance"
    )
    assert (
        of_norms(tmp_path, 1.0161, 1.0, "tolerance", "bfloat16", "bfloat16") == "within_tolerance"
    )
    assert of_norms(tmp_path, 1.0, 1.017, "tolerance", "bfloat16", "bfloat16") == "diverged"


def test_what_only_one_side_has_is_counted(tmp_path: Path) -> None:
    base = run_of(
        tmp_path / "base",
        (0, 0, "a", 1.0, ""),
        (0, 0, "b", 1.0, ""),
        (1, 0, "a", 1.0, ""),
        ops={(0, "1000-0", "x"): 5, (0, "1000-0", "y"): 1},
    )
    run = run_of(
        tmp_path / "run",
        (0, 0, "a", 1.0, ""),
        (0, 1, "a", 1.0, ""),
        ops={(0, "1000-0", "x"): 3, (0, "1000-0", "z"): 4},
    )
    found = compare(base, run)
    # Common: the norm of a at step 0, three calls of x.
    assert found.compared == 1 + 3
    assert found.only_in_base == 2 + 2 + 1
    assert found.only_in_run == 1 + 4
    assert found.verdict == "identical"
    assert found.first is None
    assert headline(found) == "identical in what both runs have"
    alone = (
        "not compared, as only one run has it: 2 gradient norms, 3 calls (x 2, y 1) of the "
        "baseline; 1 gradient norm, 4 calls (z 4) of the run"
    )
    assert uncompared(found) == alone
    assert f"- {alone}" in verdict_markdown(found, "base", "run").splitlines()
    page = str(verdict_part(found, Context(run, base), base))
    assert "Identical in what both runs have" in page
    assert alone[1:] in page
    ops = found.table[found.table["kind"] == "op"]
    assert ops[["name", "state", "difference"]].values.tolist() == [
        ["x", "only_in_base", -2.0],
        ["y", "only_in_base", -1.0],
        ["z", "only_in_run", 4.0],
    ]


def test_op_counts_decide_where_there_are_no_norms(tmp_path: Path) -> None:
    one = run_of(tmp_path / "one", ops={(0, "1000-0", "x"): 5})
    same = run_of(tmp_path / "same", ops={(0, "1000-0", "x"): 5})
    more = run_of(tmp_path / "more", ops={(0, "1000-0", "x"): 6})
    other = run_of(tmp_path / "other", ops={(0, "1000-0", "y"): 5})
    assert compare(one, same).verdict == "identical"
    assert headline(compare(one, same)) == "identical in what ran: no values were compared"
    with pytest.raises(NotApplicable, match="no gradients or values"):
        divergence(one, same)
    assert compare(one, more).verdict == "diverged"
    (answer,) = divergence(one, more)
    assert answer.title == (
        "Other operators ran than in the baseline, and the runs share no values. Record both with "
        "--level numerics."
    )
    assert compare(one, other).verdict == "diverged"


def test_threads_are_matched_by_name_whatever_their_number(tmp_path: Path) -> None:
    base, run = Builder(tmp_path / "base"), Builder(tmp_path / "run")
    base.thread(0, 50, 0)
    base.thread(0, 50, 1, name="evaluate")
    run.thread(0, 60, 0)
    run.thread(0, 60, 3, name="evaluate")
    base.op(T, 1, thread="50-1")
    run.op(T, 1, thread="60-3")
    found = compare(open_run(base.write()), open_run(run.write()))
    assert found.verdict == "identical"
    assert found.table["thread"].tolist() == ["evaluate"]


def test_a_parameter_that_passes_twice_in_a_step_is_compared_in_order(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", (0, 0, "a", 1.0, ""), (0, 0, "a", 2.0, ""))
    run = run_of(tmp_path / "run", (0, 0, "a", 1.0, ""), (0, 0, "a", 3.0, ""))
    assert compare(base, run).table["state"].tolist() == ["identical", "different"]


@pytest.mark.slow
@settings(max_examples=8)
@given(
    st.lists(st.one_of(st.none(), st.floats()), min_size=1, max_size=6),
    st.lists(st.one_of(st.none(), st.floats()), min_size=1, max_size=6),
)
def test_verdicts_agree_with_each_other(
    tmp_path_factory: pytest.TempPathFactory,
    base: list[float | None],
    run: list[float | None],
) -> None:
    path = tmp_path_factory.mktemp("runs")
    sides = [
        run_of(path / name, *((0, 0, f"p{i}", v, "float32") for i, v in enumerate(norms)))
        for name, norms in (("base", base), ("run", run))
    ]
    forward: Comparison = compare(sides[0], sides[1])
    back = compare(sides[1], sides[0])
    assert forward.verdict == back.verdict
    assert (forward.only_in_base, forward.only_in_run) == (back.only_in_run, back.only_in_base)
    assert forward.compared + forward.only_in_base == len(base)
    assert forward.compared + forward.only_in_run == len(run)
    for mode in ("tolerance", "simple"):
        loose = compare(sides[0], sides[1], mode)
        assert forward.verdict != "identical" or loose.verdict == "identical"
        assert loose.verdict != "identical" or forward.verdict == "identical"
    json.dumps(forward.to_json(), allow_nan=False)


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path, (0, 0, "a", 1.0, ""))
    with pytest.raises(RunError, match="no mode 'exact', expected one of bitwise, tolerance"):
        diff(run, run, cast("Any", "exact"))


def test_the_command(tmp_path: Path) -> None:
    base = str(write_run(tmp_path / "base", steps=2, ops=8))
    run = str(write_run(tmp_path / "run", steps=2, ops=8, gradient_scale=1.0 + 1e-7))
    runner = CliRunner()
    same = runner.invoke(main, ["diff", base, base])
    assert same.exit_code == 0
    assert same.stdout.startswith("identical  (mode bitwise)\n")
    other = runner.invoke(main, ["diff", base, run])
    assert other.exit_code == 1
    assert other.stdout.startswith("diverged  (mode bitwise)\n")
    assert "first difference: step 0, rank 0, gradient of embed.weight: 0.63" in other.stdout
    close = runner.invoke(main, ["diff", base, run, "--mode", "tolerance", "--json"])
    assert close.exit_code == 0
    found = json.loads(close.stdout)
    assert found["verdict"] == "within_tolerance"
    assert (found["first"]["step"], found["first"]["parameter"]) == (0, "embed.weight")
    assert set(found) == {"verdict", "compared", "only_in_base", "only_in_run", "first"}
