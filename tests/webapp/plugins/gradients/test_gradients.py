"""Gradient norms: per parameter as recorded, and per step as sqrt of the sum of squares."""

from __future__ import annotations

import math
from pathlib import Path

from lanescope.webapp.analysis.parameter_history import gradient_norms, gradients
from lanescope.webapp.plugins.gradients.charts import total_norms
from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import START_NS, Builder

T = START_NS


def run_of(path: Path, *rows: tuple[int, int, str, float | None]) -> Run:
    """A run of gradients (rank, step, parameter, norm)."""
    builder = Builder(path, world_size=1 + max(rank for rank, *_ in rows))
    for order, (rank, step, parameter, norm) in enumerate(rows):
        builder.row(
            "gradient",
            rank,
            f"{1000 + rank}-0",
            time_ns=T + order,
            step=step,
            parameter=parameter,
            norm=norm,
            numel=4,
            dtype="float32",
            device="cpu",
        )
    return open_run(builder.write())


def test_rows_are_as_recorded(tmp_path: Path) -> None:
    run = run_of(tmp_path, (0, 0, "a.weight", 0.1), (0, 0, "b", None), (0, 1, "b", math.nan))
    found = gradients(run)
    assert found["parameter"].tolist() == ["a.weight", "b", "b"]
    assert found["step"].tolist() == [0, 0, 1]
    assert found["time_ns"].tolist() == [0, 1, 2]
    assert found["norm"].tolist()[0] == 0.1
    assert found["norm"].isna().tolist() == [False, True, True]
    assert found["missing"].tolist() == [False, True, False]
    assert found["thread"].tolist() == ["1000-0"] * 3
    assert found.dtypes["step"] == "int32"


def test_norm_of_a_step(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        (0, 0, "a", 3.0),
        (0, 0, "b", 4.0),
        (0, 0, "c", None),
        (0, 1, "a", 5.0),
        (1, 0, "a", 1.0),
    )
    found = gradient_norms(run)
    assert found[["rank", "step", "norm", "parameters", "missing"]].values.tolist() == [
        [0, 0, 5.0, 2, 1],
        [0, 1, 5.0, 1, 0],
        [1, 0, 1.0, 1, 0],
    ]
    assert found["time_ns"].tolist() == [2, 3, 4]


def test_nan_and_infinity_are_not_lost(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        (0, 0, "a", 1.0),
        (0, 0, "b", math.nan),
        (0, 1, "a", math.inf),
        (0, 1, "b", 1.0),
        (0, 2, "a", None),
    )
    norms = gradient_norms(run)["norm"].tolist()
    assert math.isnan(norms[0])
    assert norms[1:] == [math.inf, 0.0]


def test_a_run_without_gradients_has_an_empty_table(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    builder.op(T, 1)
    run = open_run(builder.write())
    assert gradients(run).empty
    assert list(gradient_norms(run).columns) == [
        "rank",
        "step",
        "norm",
        "parameters",
        "missing",
        "time_ns",
    ]


def test_points_on_the_edge_of_a_chart_are_whole(tmp_path: Path) -> None:
    """Plotly leaves no room above norms that are far from 0, where the axis begins."""
    run = run_of(tmp_path, (0, 0, "a", 3.0), (0, 1, "a", 3.1))
    figure = total_norms(gradient_norms(run), "light", log=False)
    assert figure.layout.template.data.scatter[0].cliponaxis is False
