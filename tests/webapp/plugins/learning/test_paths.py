"""Which layers a gradient passes, on a graph whose answer can be worked out on paper."""

from __future__ import annotations

from pathlib import Path

from lanescope.webapp.analysis.parameter_history import gradient_rows
from lanescope.webapp.plugins.learning.gradient_paths import growth, relative_to_passed, ways
from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import START_NS, Builder

THREAD = "1000-0"
FORWARD = {"a": 10, "b": 20, "c": 30, "d": 31, "": 40}
NODES = [
    ("AddBackward0", 40, "", "1 2"),
    ("AddmmBackward0", 30, "", "3 5"),
    ("AddmmBackward0", 31, "", "3 6"),
    ("AddmmBackward0", 20, "", "4 7"),
    ("AddmmBackward0", 10, "", "8 9"),
    ("AccumulateGrad", None, "c.weight", ""),
    ("AccumulateGrad", None, "d.weight", ""),
    ("AccumulateGrad", None, "b.weight", ""),
    ("AccumulateGrad", None, "a.weight", ""),
    ("AccumulateGrad", None, "a.bias", ""),
]
"""a, then b, then c and d beside each other, whose results are added."""

NORMS = {
    "a.weight": 40.0,
    "a.bias": 80.0,
    "b.weight": 4.0,
    "c.weight": 2.0,
    "d.weight": 6.0,
    "e.weight": 1.0,
}


def run_of(path: Path) -> Run:
    builder = Builder(path)
    for place, (module, sequence) in enumerate(FORWARD.items()):
        builder.row(
            "op",
            0,
            THREAD,
            start_ns=START_NS + place,
            duration_ns=1,
            name="aten::addmm",
            scope="function",
            module=module,
            sequence=sequence,
            step=0,
        )
    for node, (name, sequence, parameter, following) in enumerate(NODES):
        builder.row(
            "node",
            0,
            THREAD,
            time_ns=START_NS + 100,
            step=0,
            node=node,
            name=name,
            sequence=sequence,
            parameter=parameter,
            next=following,
        )
    for parameter, norm in NORMS.items():
        builder.row(
            "gradient",
            0,
            THREAD,
            time_ns=START_NS + 200,
            step=0,
            parameter=parameter,
            norm=norm,
            numel=4,
            optimizer=0,
            dtype="float32",
            device="cpu",
        )
    return open_run(builder.write())


def test_nodes_between_a_layer_and_the_loss(tmp_path: Path) -> None:
    known = ways(run_of(tmp_path), 0)
    assert set(known.layers) == {"a", "b", "c", "d"}  # e does not belong to the graph
    passed = {
        layer: {other for other, there in zip(known.layers, row, strict=True) if there}
        for layer, row in zip(known.layers, known.some, strict=True)
    }
    assert passed == {"a": {"b", "c", "d"}, "b": {"c", "d"}, "c": set(), "d": set()}
    assert known.nearest == {"a": ("b",), "b": (), "c": (), "d": ()}
    assert known.inner == {"b", "c", "d"}


def test_gradients_against_those_that_they_passed(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    rows, known = gradient_rows(run), ways(run, 0)
    relative = relative_to_passed(rows, known).loc[0]
    assert round(relative["a"] ** 2, 9) == round((40**2 + 80**2) / 8 / ((4 + 16 + 36) / 12), 9)
    assert round(relative["b"] ** 2, 9) == 16 / (40 / 2)
    assert relative[["c", "d"]].isna().all()
    assert growth(rows, known).loc[0].to_dict() == {"a": 40 / 4, "b": 4 / 6}
