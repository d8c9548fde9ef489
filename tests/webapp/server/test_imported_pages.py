"""Pages and answers about an imported trace: what it holds is shown, what it lacks is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lanescope.webapp.analysis.findings import run_questions
from lanescope.webapp.plugins.collectives import charts as collective_charts
from lanescope.webapp.plugins.collectives import page as collectives_page
from lanescope.webapp.plugins.collectives.collectives import collectives
from lanescope.webapp.plugins.collectives.skew import LateMap, late_map
from lanescope.webapp.plugins.hangs import page as hang
from lanescope.webapp.plugins.overview import page as overview
from lanescope.webapp.plugins.threads import charts as thread_charts
from lanescope.webapp.plugins.threads.forward_backward_gap import forward_to_backward
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui.context import Context
from tests.support.trace_files import imported, slice_, write_trace


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two ranks, one seen for longer: which calls are the same is not known."""
    folder = tmp_path_factory.mktemp("imported")
    reported = {
        "Collective name": "allreduce",
        "Process Group Name": "0",
        "Group size": 2,
        "In msg nelems": 4,
        "dtype": "Float",
    }
    files = []
    for rank, calls in ((0, 3), (1, 2)):
        events: list[dict[str, Any]] = [
            slice_("record_param_comms", 10 * k, 5, cat="cpu_op", args=reported)
            for k in range(calls)
        ]
        about = {"rank": rank, "world_size": 2}
        path = folder / f"rank{rank}.json"
        files.append(write_trace(path, events, distributedInfo=about))
    return imported(folder / "run", *files)


def test_calls_of_groups_of_unknown_size_are_in_the_table(run: Run) -> None:
    table = collectives(run)
    assert run.counts["collective"] == table["calls"].sum() == 5
    assert table["group_size"].isna().all()
    assert table["busbw_gbs"].isna().all()


def test_facts_in_no_trace_are_not_said_to_be_fine(run: Run) -> None:
    answers = {one.question: one.unanswered for one in run_questions(run)}
    for words in (
        "Mismatched collective calls",
        "backward needs",
        "Deadlocks",
        "context variables",
        "CUDA device",
        "Hangs",
        "Stragglers",
        "Data races",
    ):
        (answer,) = (text for question, text in answers.items() if words in question)
        assert answer, words


def test_pages_without_data(run: Run) -> None:
    shown = str(hang.hang_verdict(Context(run)))
    assert "Not checked: the trace is not whole" in shown
    standing = str(hang._ranks(Context(run), 0))
    assert "its trace ends" in standing
    assert "ended" not in standing  # the program may have gone on
    assert not thread_charts.forward_windows(forward_to_backward(run).assign(name=""), "light").data
    reported = json.dumps([str(one) for one in overview._lead(run)])
    assert "Imported from" in reported
    assert "rank0.json, rank1.json" in reported


def test_of_one_rank_alone_nothing_is_said_of_lateness(tmp_path: Path) -> None:
    reported = {
        "Collective name": "allreduce",
        "Process Group Name": "0",
        "Group size": 2,
        "In msg nelems": 4,
        "dtype": "Float",
    }
    events = [
        slice_("record_param_comms", 10 * k, 5, cat="cpu_op", args=reported) for k in range(3)
    ]
    about = {"rank": 0, "world_size": 2}
    alone = imported(
        tmp_path / "run", write_trace(tmp_path / "0.json", events, distributedInfo=about)
    )
    table = collectives(alone)
    assert table["calls"].tolist() == [3]
    assert table[["skew_p50_ns", "skew_max_ns", "transfer_p50_ns"]].isna().all(axis=None)
    assert late_map(alone, "0").late_ns.size == 0
    shown = str(collectives_page.body(Context(alone)))
    assert "came last in" in shown
    assert "0 of 0" not in shown


def test_a_group_that_waits_for_no_rank_is_not_coloured_as_late() -> None:
    calls = np.arange(3)
    alone = LateMap((0,), calls, 1, np.zeros((1, 3)), calls[None])
    (heat,) = collective_charts.late_heat(alone, "light").data
    assert (heat.zmin, heat.zmax) == (0, 1)


def test_without_bandwidths_there_are_words_and_no_axes() -> None:
    columns = ["name", "group", "bytes", "total_bytes", "busbw_gbs"]
    table = pd.DataFrame([["all_reduce", "0", 8, 8, np.nan]], columns=columns)
    figure = collective_charts.by_size(table, "busbw_gbs", "bus bandwidth", "light")
    assert not figure.data
    (words,) = figure.layout.annotations
    assert words.text == "The bus bandwidth is unknown for every call of this run."
    assert figure.layout.xaxis.visible is False


def test_axes_of_sizes_and_times_have_a_space_before_the_unit() -> None:
    columns = ["name", "group", "bytes", "total_bytes", "time_ns"]
    rows = [["all_reduce", "0", 4096, 4096, 2e5], ["all_reduce", "0", 4 << 20, 4 << 20, 9e7]]
    figure = collective_charts.by_size(pd.DataFrame(rows, columns=columns), "time_ns", "t", "light")
    sizes = ("1\N{THIN SPACE}kB", "10\N{THIN SPACE}kB", "100\N{THIN SPACE}kB", "1\N{THIN SPACE}MB")
    assert figure.layout.xaxis.ticktext[:4] == sizes
    assert "10\N{THIN SPACE}ms" in figure.layout.yaxis.ticktext
    assert figure.data[0].text == ("4.10 kB: 200 us", "4.19 MB: 90.0 ms")
