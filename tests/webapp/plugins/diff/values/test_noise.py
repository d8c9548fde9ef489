"""The noise floor of mode tolerance: what two recordings of the baseline are apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lanescope.webapp.cli import main
from lanescope.webapp.plugins.diff.diff import compare
from lanescope.webapp.plugins.diff.values.compared_ops import WITHIN
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.synthetic import START_NS, Builder
from tests.webapp.plugins.diff.values.test_diff_values import OPS, Op, run_of


def test_differences_between_baselines_do_not_count(tmp_path: Path) -> None:
    def apart(by: float, step: int, **more: Any) -> tuple[Op, ...]:
        place = 5 * step + 1
        other = replace(OPS[place], hash=999, l2=1.0 + by, **more)
        return (*OPS[:place], other, *OPS[place + 1 :])

    base, again = run_of(tmp_path / "base", *OPS), run_of(tmp_path / "again", *apart(1e-3, 1))

    def verdict_of(name: str, run: tuple[Op, ...]) -> str:
        found = compare(base, run_of(tmp_path / name, *run), "tolerance", again)
        assert "tensors: float32 0.002" in found.notes[-1]
        return found.verdict

    assert compare(base, run_of(tmp_path / "x", *apart(1e-3, 1)), "tolerance").verdict == "diverged"
    # Up to twice as far, from the step on in which they differ.
    assert verdict_of("same", apart(1e-3, 1)) == "within_tolerance"
    assert verdict_of("later", apart(1.9e-3, 2)) == "within_tolerance"
    assert verdict_of("further", apart(2.1e-3, 2)) == "diverged"
    assert verdict_of("before", apart(1e-3, 0)) == "diverged"
    assert verdict_of("nan", apart(1e-3, 1, nan=1)) == "diverged"
    assert verdict_of("dtype", apart(1e-3, 1, dtype="float64")) == "within_tolerance"
    same = compare(base, base, "tolerance", base)
    assert "tensors: none" in same.notes[-1]
    beside = Timeline.open(run_of(tmp_path / "beside", *apart(1e-3, 1)), base, noise=again)
    assert [one.state.tolist() for one in (beside.differences,) if one] == [[WITHIN]]
    assert again.etag in beside.etag
    with pytest.raises(RunError, match="is for mode tolerance, not for mode bitwise"):
        compare(base, base, "bitwise", again)


@pytest.mark.slow
def test_noise_of_gradient_norms_by_the_command(tmp_path: Path) -> None:
    paths = []
    for name, norm in (("base", 1.0), ("again", 1.001), ("near", 0.9985), ("far", 1.01)):
        builder = Builder(tmp_path / name)
        for step in range(3):
            builder.row(
                "gradient",
                0,
                "1000-0",
                time_ns=START_NS,
                parameter="w",
                step=step,
                norm=norm if step else 1.0,
                dtype="float32",
            )
        paths.append(str(builder.write()))
    base, again, near, far = paths
    runner = CliRunner()
    answer = runner.invoke(main, ["diff", base, near, "--noise", again])
    assert (answer.exit_code, "norms of gradients: float32 0.002" in answer.stdout) == (0, True)
    assert runner.invoke(main, ["diff", base, far, "--noise", again]).exit_code == 1
    assert runner.invoke(main, ["diff", base, near, "--mode", "tolerance"]).exit_code == 1
    checked = runner.invoke(main, ["check", near, "--baseline", base])
    assert "Gradients differ from the baseline" in checked.stdout
    checked = runner.invoke(main, ["check", near, "--baseline", base, "--noise", again])
    assert "gradients differ" not in checked.stdout
    for command in ("check", "view"):
        alone = runner.invoke(main, [command, near, "--noise", again])
        assert (alone.exit_code, "--baseline RUN0" in alone.output) == (2, True)
    refused = runner.invoke(main, ["diff", base, near, "--noise", again, "--mode", "bitwise"])
    assert refused.exit_code == 2
    assert "not for mode bitwise" in refused.output
