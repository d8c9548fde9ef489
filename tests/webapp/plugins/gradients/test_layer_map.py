"""The heat map's table, the way to a layer's backward, and what the page makes of them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest

from lanescope.webapp.analysis.links import backward_link
from lanescope.webapp.plugins.gradients.charts import depth_lines
from lanescope.webapp.plugins.gradients.charts_heat import greatest_cell, layer_heat
from lanescope.webapp.plugins.gradients.layer_map import depths, layer_map, quantiles
from lanescope.webapp.plugins.gradients.page_layers import _depth, chosen_layer, depth_figure
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.ui.context import Context
from tests.support.synthetic import START_NS, Builder

LAYERS = ("net.0.attention", "net.0.mlp", "net.1.attention", "head")
THREAD = "1000-0"
WRONG = "zero, NaN or infinite"


def run_of(path: Path, scale: float = 1.0) -> Run:
    """Three steps; layer i has a weight of norm 3 and a bias of norm 4, both times 10^i."""
    builder = Builder(path)
    for step in range(3):
        at = START_NS + step * 10_000
        builder.phase(at, 8_000, "optimizer", step=step)
        for place, layer in enumerate(LAYERS):
            builder.op(at + 100 * place, 50, step=step, module=layer, sequence=place)
            builder.op(
                at + 4_000 + 100 * place,
                60,
                "MmBackward0",
                scope="backward",
                step=step,
                sequence=place,
            )
            for name, norm in (("weight", 3.0), ("bias", 4.0)):
                dead = step == 2 and layer == "head"
                common = {
                    "time_ns": at + 7_000,
                    "step": step,
                    "parameter": f"{layer}.{name}",
                    "numel": 8,
                    "optimizer": 0,
                    "dtype": "float32",
                }
                builder.row(
                    "gradient", 0, THREAD, norm=0.0 if dead else norm * scale * 10**place, **common
                )
                if step != 1:
                    builder.row(
                        "parameter",
                        0,
                        THREAD,
                        whole_numel=8,
                        trainable=True,
                        norm=norm,
                        update_ratio=0.5,
                        grad_norm=norm,
                        grad_zeros=1.0 if dead else 0.75 if name == "bias" else 0.25,
                        **common,
                    )
    return open_run(builder.write())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("layers") / "run")


def test_layers_in_the_order_of_the_model(run: Run) -> None:
    table = layer_map(run, 0, "gradient")
    assert list(table.index) == list(LAYERS)
    assert table[0].tolist() == [5.0, 50.0, 500.0, 5000.0]
    assert table[2].tolist() == [5.0, 50.0, 500.0, 0.0]


def test_the_order_of_the_model_and_not_of_the_optimizers_groups(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.op(START_NS, 50)
    # Of what decays, and then of what does not; a parameter of none of its modules among them.
    for layer in ("emb", "0.linear", "1.linear", "own", "0.norm", "1.norm", "norm"):
        builder.row(
            "gradient",
            0,
            THREAD,
            time_ns=START_NS,
            parameter=f"{layer}.weight",
            norm=1.0,
            numel=8,
            optimizer=0,
        )
    for path in ("Model", "emb", "0", "0.linear", "0.norm", "1", "1.linear", "1.norm", "norm"):
        builder.row("module", 0, None, path=path)
    table = layer_map(open_run(builder.write()), 0, "gradient")
    assert list(table.index) == ["emb", "0.linear", "0.norm", "1.linear", "own", "1.norm", "norm"]


def test_a_collapsed_tree_adds_up_as_squares(run: Run) -> None:
    assert depths(run) == 3
    table = layer_map(run, 0, "gradient", depth=1)
    assert list(table.index) == ["net", "head"]
    assert table.at["net", 1] == pytest.approx(np.sqrt(25 + 2500 + 250000))


def test_other_measures(run: Run, tmp_path: Path) -> None:
    relative = layer_map(run, 0, "relative")
    assert (relative[0] ** 2).mean() == pytest.approx(1.0)
    update = layer_map(run, 0, "update")
    assert list(update.columns) == [0, 2]
    assert update[2].tolist() == pytest.approx([0.5] * 4)
    assert layer_map(run, 0, "parameters")[0].tolist() == [5.0] * 4
    assert layer_map(run, 0, "alive").loc[["net.0.mlp", "head"], 2].tolist() == [0.5, 0.0]
    base = run_of(tmp_path, scale=0.5)
    ratio = layer_map(run, 0, "baseline", baseline=base)
    assert ratio[1].tolist() == pytest.approx([2.0] * 4)
    assert layer_map(run, 0, "baseline").empty


def test_the_way_to_a_layers_backward(run: Run) -> None:
    link = unquote(backward_link(run, 0, "net.0", 1))
    low = run.origin_ns - START_NS + 10_000 + 4_000
    assert f"at=0/{THREAD}@{low}" in link
    assert "@" not in backward_link(run, 0, "nothing", 1)
    assert backward_link(run, 0, "nothing", 7) == "/timeline"


def test_zeros_are_drawn_apart(run: Run) -> None:
    figure = layer_heat(layer_map(run, 0, "gradient"), "gradient norm", "light")
    norms, zeros = figure.data
    assert norms.z[0][0] == pytest.approx(np.log10(5))
    assert norms.text[3][1] == "5000"
    assert np.argwhere(np.isnan(norms.z)).tolist() == [[3, 2]]
    assert np.argwhere(zeros.z == 1).tolist() == [[3, 2]]
    assert zeros.name == "zero"


def test_layers_are_named_without_what_all_begin_with(run: Run) -> None:
    table = layer_map(run, 0, "gradient").rename(index=lambda name: f"base.model.{name}")
    rows = layer_heat(table, "gradient norm", "light").layout.yaxis
    assert list(rows.tickvals) == list(table.index)
    assert list(rows.ticktext) == list(LAYERS)
    assert rows.title.text == "in base.model"
    names = [f"{name}.adapter.of.this.one" for name in table.index]
    axis = depth_lines({"step 0": table[0].set_axis(names)}, "norm", "light").layout.xaxis
    assert max(len(text) for text in axis.ticktext) == 21


def test_cells_of_many_layers_and_steps_are_bins(run: Run) -> None:
    index = [f"layers.{n}.linear" for n in range(1000)]
    many = pd.DataFrame(np.arange(600_000.0).reshape(1000, 600) + 1, index=index)
    many.iloc[:, 3] = np.nan
    many.iat[7, 4] = 1e9
    heat = layer_heat(many, "gradient norm", "light")
    assert heat.data[0].z.shape == (200, 200)  # 5 layers and 3 steps each
    assert len(heat.data) == 1
    assert heat.data[0].z[1, 1] == pytest.approx(9)
    assert heat.data[0].text[1][1] == "1e9"
    assert "<b>%{y}</b> and the next 4<br>step %{x} and the next 2" in heat.data[0].hovertemplate
    assert greatest_cell(many, "layers.5.linear", "3") == ("layers.7.linear", 4)
    assert greatest_cell(many, "layers.6.linear", "3") is None
    assert len(heat.layout.yaxis.ticktext) <= 64
    lines = depth_lines({"step 0": many[0]}, "norm", "light", decay=0.7)
    (line,) = lines.data  # a line per bin would be no decay per layer
    assert len(line.x) == 200
    assert line.mode == "lines"
    assert line.y[1] == 9 * 600 + 1


def test_by_depth_the_first_layer_is_on_the_left(run: Run) -> None:
    figure = depth_figure(Context(run), "2, 0 and 7", "gradient", None, 0, "light")
    assert figure.layout.yaxis.type == "log"
    lines = {trace.name: trace for trace in figure.data}
    assert list(lines) == ["step 0", "step 2", "\N{MULTIPLICATION SIGN} 0.7 a layer", WRONG]
    assert list(lines["step 0"].x) == list(LAYERS)
    assert list(lines["step 0"].y) == [5.0, 50.0, 500.0, 5000.0]
    assert list(lines["step 2"].y) == [5.0, 50.0, 500.0, None]
    assert list(lines[WRONG].x) == ["head"]
    assert list(lines["\N{MULTIPLICATION SIGN} 0.7 a layer"].y)[-2:] == pytest.approx([3500, 5000])
    # Without a step: quantiles over the three steps; of the head two are 5000 and one is 0.
    figure = depth_figure(Context(run), "", "gradient", None, 0, "light")
    assert [trace.name for trace in figure.data][:5] == list(
        quantiles(layer_map(run, 0, "relative"))
    )
    assert [trace.y[3] for trace in figure.data[:5]] == [None, 1000, 5000, 5000, 5000]


def test_layers_stand_in_the_order_of_the_forward(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    for at, module in enumerate(("last.in", "first", "last.out", "other")):
        phase = "backward" if module == "other" else "forward"
        builder.op(START_NS + at, 1, module=module, phase=phase)
    for layer in ("first", "first.unused", "last.in", "last.out"):
        common = {"time_ns": START_NS + 9, "parameter": f"{layer}.weight", "numel": 8}
        builder.row("gradient", 0, THREAD, norm=None if layer == "first.unused" else 1.0, **common)
    for path in ("Model", "first", "first.unused", "last", "last.in", "last.out"):
        builder.row("module", 0, None, path=path)
    run = open_run(builder.write())
    table = layer_map(run, 0, "gradient")
    assert list(table.index) == ["last.in", "first", "first.unused", "last.out"]
    assert table[0].isna().tolist() == [False, False, True, False]  # a row also without gradient
    assert list(layer_map(run, 0, "gradient", 1).index) == ["last", "first"]
    grey = layer_heat(table, "gradient norm", "light").data[-1]
    assert (grey.name, np.argwhere(grey.z == 1).tolist()) == ("no gradient", [[2, 0]])
    missing = depth_figure(Context(run), "0", "gradient", None, 0, "light").data[-1]
    assert (missing.name, list(missing.x)) == ("no gradient", ["first.unused"])


def test_the_text_of_a_cell(run: Run) -> None:
    click = {"points": [{"y": "head", "x": "1"}]}
    curves, note = chosen_layer(Context(run), click, "update", None, 0, "light")
    assert [trace.name for trace in curves.data] == ["rank 0"]
    assert note[0].children == "head"
    assert note[1] == " at step 0, rank 0: 0.5. "  # the last sampled one before step 1
    assert note[2].href.startswith("/timeline?t=")
    _, note = chosen_layer(Context(run), None, "gradient", None, 0, "dark")
    assert note[0].startswith("Click a cell")


def test_very_many_layers_of_one_level_are_all_shown(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.op(START_NS, 50)
    for number in range(100):
        builder.row(
            "gradient",
            0,
            THREAD,
            time_ns=START_NS,
            parameter=f"Linear#{number}.weight",
            norm=1.0,
            numel=8,
            optimizer=0,
            step=0,
        )
    assert _depth(Context(open_run(builder.write()))) == "all"
