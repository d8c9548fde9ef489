"""What is slower than in a baseline, and how differences of values grow by step and layer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from lanescope.webapp.commands.diff import show
from lanescope.webapp.plugins.diff.charts import growth_by_layer, growth_by_step
from lanescope.webapp.plugins.diff.diff import Comparison, compare
from lanescope.webapp.plugins.diff.page import difference_tables
from lanescope.webapp.plugins.diff.timing_differences import timing_differences
from lanescope.webapp.plugins.diff.verdict_words import step_times, verdict_markdown
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.ui.context import Context
from tests.support.beside import US, pair
from tests.support.synthetic import START_NS, Builder

MS = 1000 * US


def timed(path: Path, steps: int, **lengths: int | tuple[int, ...]) -> Run:
    """Steps of 10 ms whose ops take so many us each, or so many in each step."""
    builder = Builder(path)
    for step in range(steps):
        begin = START_NS + step * 10 * MS
        for k, (name, length) in enumerate(lengths.items()):
            us = length[step] if isinstance(length, tuple) else length
            if us:
                builder.op(begin + k * MS, us * US, name, step=step, module="m")
        builder.phase(begin, 9 * MS, "forward", step=step)
        builder.phase(begin + 9 * MS, MS, "optimizer", step=step)
    return open_run(builder.write())


def test_slower_faster_added_and_removed_operators(tmp_path: Path) -> None:
    base = timed(
        tmp_path / "base",
        6,
        same=300,
        slow=100,
        fast=500,
        small=10,
        gone=50,
        once=(9000 // 10, *[100] * 5),
        noisy=(100, 100, 300, 100, 100, 100),
    )
    run = timed(
        tmp_path / "run",
        6,
        same=310,
        slow=200,
        fast=250,
        small=25,
        new=80,
        once=100,
        noisy=(100, 200, 200, 200, 200, 200),
    )
    found = timing_differences(base, run)
    assert (found.steps, found.base_step_ns, found.run_step_ns) == (5, 10 * MS, 10 * MS)
    rows = found.table.set_index("name")
    # `once` takes longer in the first step alone; 15 us are too few; one step of the baseline took
    # longer than all of the run.
    assert rows["state"].to_dict() == {
        "fast": "faster",
        "slow": "slower",
        "new": "added",
        "gone": "removed",
        "same": "same",
        "small": "same",
        "once": "same",
        "noisy": "same",
    }
    assert found.changed["name"].tolist()[:2] == ["fast", "slow"]
    assert rows.loc["slow", ["base_ns", "run_ns", "ratio"]].tolist() == [100 * US, 200 * US, 2.0]
    assert rows.loc["new", ["base_ns", "run_ns", "base_calls"]].tolist() == [0, 80 * US, 0]
    assert set(rows["module"]) == {"m"}
    assert timing_differences(base, base).changed.empty


def test_a_slowdown_of_most_operators_belongs_to_none_of_them(tmp_path: Path) -> None:
    ops = {f"op{k}": 100 + k for k in range(12)}
    base = timed(tmp_path / "base", 6, **ops, slow=100, kept=100)
    busy = {name: 3 * us // 2 for name, us in ops.items()}
    run = timed(tmp_path / "run", 6, **busy, slow=400, kept=100)
    found = timing_differences(base, run)
    assert found.common == pytest.approx(1.5, rel=0.01)
    assert found.changed["name"].tolist() == ["slow"]
    assert "most ops take x 1.5 alike (machine or threads), beyond that: 1 slower" in step_times(
        found
    )
    back = timing_differences(run, base)
    assert back.changed[["name", "state"]].values.tolist() == [["slow", "faster"]]


def test_two_steps_say_little(tmp_path: Path) -> None:
    base, run = (timed(tmp_path / name, 3, a=us) for name, us in (("base", 100), ("run", 300)))
    found = timing_differences(base, run)
    assert found.changed.empty
    assert step_times(found).endswith(
        "too few steps to call any slower or faster (it takes 5 after the first)"
    )


def test_steps_that_one_run_has_not_are_left_out(tmp_path: Path) -> None:
    base = timed(tmp_path / "base", 4, a=100)
    run = timed(tmp_path / "run", 9, a=(100,) * 4 + (900,) * 5)
    found = timing_differences(base, run)
    assert (found.steps, found.table["state"].tolist()) == (3, ["same"])
    empty = Builder(tmp_path / "none")
    empty.op(START_NS, 10, "a")
    none = timing_differences(base, open_run(empty.write()))
    assert (none.steps, len(none.table)) == (0, 0)


def test_times_are_shown_wherever_the_verdict_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = timed(tmp_path / "base", 6, **{"slow|er": 100})
    run = timed(tmp_path / "run", 6, **{"slow|er": 200}, new=50)
    found = compare(base, run)
    assert found.verdict == "diverged"  # nothing in common but ops, and not equally many
    answer = verdict_markdown(found, "base", "run")
    assert "| `slow¦er` | `m` | 100 us | 200 us | x 2 | slower |" in answer
    assert "| `new` | `m` | 0 ns | 50.0 us |  | added |" in answer
    assert "ops by module: 1 slower, 1 added" in answer
    show(found, Console(width=200))
    printed = capsys.readouterr().out
    assert "a step takes 10.0 ms, in the baseline 10.0 ms (x 1, median of 5 steps)" in printed
    assert "x 2" in printed
    page = json.dumps(
        difference_tables(found, Context(run)), default=lambda part: part.to_plotly_json()
    )
    assert "diff-timing" in page
    assert '"ratio_text": "x 2"' in page


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compare(*pair(tmp_path_factory.mktemp("grown")))


def test_the_difference_by_rank_step_and_layer(found: Comparison) -> None:
    answer = found.growth[found.growth["differing"] > 0]
    rows = answer[["rank", "step", "module", "tensors", "differing"]].to_numpy().tolist()
    assert rows == [[0, 2, "layer.1", 2, 1], [1, 1, "layer.0", 1, 1]]
    # Bits alone: 0. The norm 1.0 became 1.5, and the mean 0.5 of it 0.75.
    assert answer["largest"].tolist() == [0.0, pytest.approx(1 / 3)]


def test_charts_of_the_growth(found: Comparison) -> None:
    one, two = growth_by_step(found.growth, 1, "light").data
    assert list(one.x) == [0, 1, 2]
    assert list(one.y) == [None, pytest.approx(1 / 3), None]
    assert list(two.y) == [0.0, pytest.approx(100 / 3), 0.0]
    [layers] = growth_by_layer(found.growth, 1, "dark").data
    assert list(layers.y) == ["layer.0"]
    assert [list(row) for row in layers.text] == [
        ["bitwise identical", "differs by 0.333", "bitwise identical"]
    ]
    wrong = found.growth.assign(largest=float("inf"))
    assert [trace.name for trace in growth_by_step(wrong, 0, "light").data][2:] == [
        "not comparable (NaN, shape)"
    ]
    [layers] = growth_by_layer(wrong, 1, "light").data
    assert layers.text[0][1] == "cannot be compared"
    assert (layers.z[0][1], layers.showscale) == (layers.zmax, False)  # nothing to read off
