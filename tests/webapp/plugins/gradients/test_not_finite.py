"""The share of steps at which a layer's gradient was not finite, and how the page says so."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from lanescope.webapp.plugins.gradients.charts_heat import layer_heat
from lanescope.webapp.plugins.gradients.layer_map import layer_map
from lanescope.webapp.plugins.gradients.not_finite import (
    low_precision,
    not_finite_elements,
    not_finite_layers,
)
from lanescope.webapp.plugins.gradients.page_layers import (
    chosen_layer,
    depth_figure,
    few_bits,
    not_finite_part,
)
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.ui.context import Context
from tests.support.synthetic import START_NS, Builder

THREAD = "1000-0"


def run_of(path: Path, wrong: bool = True) -> Run:
    """Four steps of three layers; `a` is NaN at 1 and 2, `b.weight` infinite at 2, `c` never.

    The scaler leaves step 4 out because of `a.bias`.
    """
    builder = Builder(path)
    for step in range(4):
        for name in ("a.weight", "a.bias", "b.weight", "c.weight", "c.unused"):
            norm: float | None = None if name == "c.unused" else 2.0
            if wrong and step in (1, 2) and name.startswith("a"):
                norm = math.nan
            if wrong and step == 2 and name == "b.weight":
                norm = math.inf
            builder.row(
                "gradient",
                0,
                THREAD,
                time_ns=START_NS + step,
                step=step,
                parameter=name,
                norm=norm,
                numel=4,
                optimizer=0,
            )
    if wrong:
        builder.row(
            "parameter",
            0,
            THREAD,
            time_ns=START_NS + 9,
            step=4,
            parameter="a.bias",
            skipped=True,
            grad_norm=math.nan,
            numel=4,
            optimizer=0,
        )
    return open_run(builder.write())


def test_share_of_steps_per_layer(tmp_path: Path) -> None:
    assert not_finite_layers(run_of(tmp_path)).to_dict("records") == [
        {
            "layer": "a",
            "share": 0.6,
            "wrong": 3,
            "steps": 5,
            "skipped": 1,
            "first": 1,
            "last": 4,
            "parameters": 2,
        },
        {
            "layer": "b",
            "share": 0.2,
            "wrong": 1,
            "steps": 5,
            "skipped": 0,
            "first": 2,
            "last": 2,
            "parameters": 1,
        },
    ]


def test_share_of_elements_is_of_what_a_layers_backward_computed(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    for place, (layer, wrong) in enumerate((("a", 3), ("b", 0))):
        at = START_NS + 100 * place
        builder.op(at, 10, "aten::addmm", module=layer, sequence=place)
        builder.op(at + 1000, 50, "AddmmBackward0", scope="backward", sequence=place)
        builder.op(at + 1060, 20, "AccumulateGrad", scope="backward")
        for start, nan in ((at, 8), (at + 1010, wrong - wrong // 2), (at + 1065, 8)):
            builder.row(
                "tensor",
                0,
                THREAD,
                start_ns=start,
                position="out0",
                numel=8,
                nan=nan,
                inf=wrong // 2 if start == at + 1010 else 0,
            )
    # Of another thread, whose numbers count for themselves.
    builder.op(START_NS + 1000, 50, "AddmmBackward0", thread="1000-1", scope="backward", sequence=1)
    builder.row("tensor", 0, "1000-1", start_ns=START_NS + 1010, position="out0", numel=8, nan=8)
    assert not_finite_elements(open_run(builder.write())).to_dict() == {"a": 3 / 8, "b": 0.0}
    assert not_finite_elements(run_of(tmp_path / "timing")).empty


def test_shares_of_what_underflows_and_overflows_by_layer(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "half")
    rows = [  # start, position, dtype, zeros, inf, nan
        (0, "out0", "float16", 1, 2, 0),
        (10, "out0", "float32", 8, 0, 0),
        (20, "read0", "float16", 8, 0, 0),
        (110, "out0", "float16", 6, 0, 1),
        (200, "out0", "bfloat16", 0, 0, 0),
    ]
    builder.op(START_NS, 5, "aten::addmm", module="a", sequence=7)
    builder.op(START_NS + 10, 5, "aten::relu", module="a")
    builder.op(START_NS + 20, 5, "aten::add", module="a")
    builder.op(START_NS + 100, 50, "AddmmBackward0", scope="backward", sequence=7)
    builder.op(START_NS + 110, 5, "aten::mm", depth=1)
    builder.op(START_NS + 200, 5, "aten::mul", module="")
    for start, position, dtype, zeros, inf, nan in rows:
        builder.row(
            "tensor",
            0,
            THREAD,
            start_ns=START_NS + start,
            position=position,
            dtype=dtype,
            depth=int(start == 110),
            numel=8,
            zeros=zeros,
            inf=inf,
            nan=nan,
        )
    run = open_run(builder.write())
    assert low_precision(run).to_numpy().tolist() == [
        ["a", "float16", "forward", 8, 1 / 8, 2 / 8, 0.0],
        ["a", "float16", "backward", 8, 6 / 8, 0.0, 1 / 8],
        ["", "bfloat16", "forward", 8, 0.0, 0.0, 0.0],
    ]
    answer = few_bits(Context(run))[-1].children.rowData
    assert [(row["layer"], row["underflow_text"]) for row in answer] == [
        ("a", "12.5 %"),
        ("a", "75 %"),
        ("(no module)", "0 %"),
    ]
    none = run_of(tmp_path / "timing")
    assert low_precision(none).empty
    assert few_bits(Context(none)) == []


def test_a_healthy_run_has_no_such_layers(tmp_path: Path) -> None:
    run = run_of(tmp_path, wrong=False)
    assert not_finite_layers(run).empty
    assert not_finite_part(Context(run)) == []


def test_the_page_neither_hides_them_nor_calls_them_zero(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    table = layer_map(run, 0, "gradient")
    assert table.loc["a", [1, 2]].tolist() == [math.inf, math.inf]
    assert table.loc["c"].tolist() == [2.0] * 4
    relative = layer_map(run, 0, "relative")
    assert relative.at["a", 1] == math.inf
    assert math.isnan(relative.at["c", 1])  # of the model's, which is not known
    _, wrong = layer_heat(table, "gradient norm", "light").data
    assert wrong.name == "NaN or infinite"
    assert np.argwhere(wrong.z == 1)[:2].tolist() == [[0, 1], [0, 2]]
    click = {"points": [{"y": "a", "x": "2"}]}
    _, note = chosen_layer(Context(run), click, "gradient", None, 0, "light")
    assert note[1] == " at step 2, rank 0: NaN or infinite. "
    depth = depth_figure(Context(run), "2", "gradient", None, 0, "light")
    assert list(depth.data[0].y) == [None, None, 2.0]
    assert len(depth.data) == 2  # no line of decay from one value, but a mark at its foot
