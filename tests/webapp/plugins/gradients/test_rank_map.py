"""On which rank which layer has other gradients: the ratios, and what the page says of them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.plugins.gradients.page_rank_layers import (
    ALL,
    chosen_cell,
    ranks_figure,
    section,
    words_of,
)
from lanescope.webapp.plugins.gradients.rank_map import rank_map
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.ui.context import Context
from tests.support.synthetic import START_NS, Builder

LAYERS = ("embed", "blocks.0", "blocks.1", "head")


def run_of(path: Path, other: dict[tuple[str, int], float], ranks: int = 4) -> Run:
    """Four steps of norms 2; `other`: those of rank 2 at (layer, step)."""
    builder = Builder(path, world_size=ranks)
    for rank in range(ranks):
        for step in range(4):
            at = START_NS + step * 1000
            builder.phase(at, 900, "optimizer", rank=rank, thread=f"{1000 + rank}-0", step=step)
            for layer in LAYERS:
                norm = other.get((layer, step), 2.0) if rank == min(2, ranks - 1) else 2.0
                builder.row(
                    "gradient",
                    rank,
                    f"{1000 + rank}-0",
                    time_ns=at,
                    step=step,
                    parameter=f"{layer}.weight",
                    norm=norm,
                    numel=8,
                    optimizer=0,
                )
    return open_run(builder.write())


def test_the_rank_that_is_apart(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", {("blocks.1", 2): 3.0, ("blocks.1", 3): 0.5, ("head", 3): 2.2})
    found = rank_map(run)
    assert (found.layers_apart, found.ranks_apart) == (["blocks.1", "head"], [2])
    ratio, step = found.farthest()
    assert ratio.loc["blocks.1"].tolist() == pytest.approx([1, 1, 0.25, 1])
    assert (step.at["blocks.1", 2], step.at["head", 2]) == (3, 3)
    assert found.of_rank(2).loc["blocks.1"].tolist() == pytest.approx([1, 1, 1.5, 0.25])
    assert words_of(found) == (
        "Norms differ in 2 of 4 layers (blocks.1, head), on rank 2, from step 2 on. The farthest "
        "is blocks.1 at step 3, where rank 2 has 0.25 × the median of all ranks."
    )
    drawn, _ = ranks_figure(found, ALL, "light")
    (heat,) = drawn.data
    assert list(heat.y) == ["blocks.1", "head"]
    assert list(heat.x) == [f"rank {rank}" for rank in range(4)]
    assert list(heat.text[0]) == ["", "", "0.25 ×", ""]
    assert heat.customdata[0][2] == "rank 2, step 3"
    by_step, _ = ranks_figure(found, "2", "dark")
    assert by_step.data[0].customdata[1][3] == "rank 2, step 3"
    what = chosen_cell(
        Context(run), {"points": [{"y": "blocks.1", "customdata": "rank 2, step 2"}]}, None
    )
    assert what[1] == " at step 2. rank 0: 2, rank 1: 2, rank 2: 3, rank 3: 2. "
    assert unquote(what[2].href).startswith("/timeline?t=")
    assert "Click a cell" in chosen_cell(Context(run), None, None)[0]


def test_all_agree(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", {("head", 1): 2.0 * (1 + 1e-9)})
    assert words_of(rank_map(run)) == (
        "All 4 ranks have the same norm in every layer, at each of 4 steps."
    )
    _, note = section(Context(run))
    assert "good" in note.className


def test_cells_that_are_nan_on_one_rank_alone_and_collapsed_ones(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", {("blocks.0", 1): float("nan")})
    found = rank_map(run, 1)
    assert found.layers == ["embed", "blocks", "head"]
    assert found.ratios[1, 2, 1] == np.inf
    assert "rank 2 has a norm that is NaN or infinite." in words_of(found)
    drawn, _ = ranks_figure(found, ALL, "light")
    assert drawn.data[0].text[0][2] == "NaN or infinite"


def test_two_ranks_are_compared_with_their_middle(tmp_path: Path) -> None:
    found = rank_map(run_of(tmp_path / "run", {("head", 0): 6.0}, ranks=2))
    assert found.ranks_apart == [0, 1]
    assert found.ratios[3, :, 0].tolist() == pytest.approx([0.5, 1.5])


def test_one_rank_has_no_such_section(tmp_path: Path) -> None:
    assert section(Context(run_of(tmp_path / "run", {}, ranks=1))) == []


def test_a_run_without_steps_has_no_map(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.op(START_NS, 10)
    with pytest.raises(NotApplicable, match="the run has no steps"):
        rank_map(open_run(builder.write()))
