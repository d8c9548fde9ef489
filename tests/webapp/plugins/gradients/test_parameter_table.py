"""The table of parameters, and what 10,000 of them cost the page, in bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dash import html

from lanescope.webapp.plugins.gradients.charts_heat import layer_heat
from lanescope.webapp.plugins.gradients.layer_map import layer_map
from lanescope.webapp.plugins.gradients.page import body, layout
from lanescope.webapp.plugins.gradients.page_layers import depth_figure
from lanescope.webapp.plugins.gradients.parameter_table import asked_rows, parameter_table
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.ui.context import Context
from tests.support.synthetic import START_NS, Builder, write_wide_run

ALL = {"startRow": 0, "endRow": 100, "sortModel": [], "filterModel": {}}
NAN = float("nan")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(write_wide_run(tmp_path_factory.mktemp("wide") / "run", steps=3, ranks=1))


def test_words(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.op(START_NS, 50)
    norms = {
        "all": (1.0, 3.0, 2.0),
        "none": (None, None, None),
        "some": (2.0, None, 1.0),
        "zero": (0.0, 0.0, 0.0),
        "wrong": (1.0, NAN, float("inf")),
    }
    for step in range(3):
        for name, values in norms.items():
            common = {"time_ns": START_NS + step, "step": step, "numel": 8, "dtype": "float32"}
            builder.row("gradient", 0, "1000-0", parameter=name, norm=values[step], **common)
    table = parameter_table(open_run(builder.write())).set_index("parameter")
    assert table["gradient"].to_dict() == {
        "all": "At 3 of 3 steps",
        "none": "None at 3 of 3 steps",
        "some": "None at 1 of 3 steps",
        "zero": "Exactly zero at 3 of 3 steps",
        "wrong": "NaN or infinite at 2 of 3 steps",
    }
    assert table.loc["all", ["first", "last", "least", "greatest"]].tolist() == [1, 2, 1, 3]
    assert table["missing"].tolist() == [0, 3, 1, 0, 0]


def test_rows_are_sorted_and_filtered_by_the_server(wide: Run) -> None:
    table = parameter_table(wide)
    assert len(table) == 10_016
    assert table["gradient"].value_counts().to_dict() == {
        "At 3 of 3 steps": 9_998,
        "No optimizer holds it. None at 1 of 1 sampled step": 16,
        "None at 3 of 3 steps": 2,
    }
    first = asked_rows(table, {**ALL, "sortModel": [{"colId": "last", "sort": "asc"}]})
    assert first["rowCount"] == 10_016
    assert len(first["rowData"]) == 100
    assert first["rowData"][0]["parameter"] == "blocks.624.mlp.down.bias"
    assert first["rowData"][0]["last"] == f"{3 * 10 ** (-4 * 9997 / 10000):.3g}"
    found = asked_rows(table, {**ALL, "filterModel": {"parameter": {"filter": "NONE at 3"}}})
    assert [row["parameter"] for row in found["rowData"]] == [
        "blocks.624.adapter.weight",
        "blocks.624.adapter.bias",
    ]
    assert found["rowData"][0]["first"] == "none"
    named = asked_rows(table, {**ALL, "filterModel": {"parameter": {"filter": "head.attn.q"}}})
    assert named["rowCount"] == 2


def test_ten_thousand_parameters_are_few_bytes(wide: Run) -> None:
    context = Context(wide)

    def size(made: Any) -> int:
        return len(json.dumps(made.to_plotly_json(), default=lambda one: one.to_plotly_json()))

    assert size(html.Div([layout(context), *body(context)])) < 60_000
    assert len(json.dumps(asked_rows(parameter_table(wide), ALL))) < 30_000
    assert len(depth_figure(context, "0 1 2", "gradient", None, 0, "light").to_json()) < 60_000
    table = layer_map(wide, 0, "gradient")
    assert table.shape == (5_000, 3)
    assert len(layer_heat(table, "gradient norm", "light").to_json()) < 60_000
    long = table[[0] * 1000].set_axis(range(1000), axis=1)
    assert len(layer_heat(long, "gradient norm", "light").to_json()) < 1_000_000
