"""What is found in each program of two ranks; and that twins are silent."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from lanescope.webapp.analysis.findings import run_question
from lanescope.webapp.analysis.plugin import questions
from lanescope.webapp.runs.run import open_run
from tests.support.recording import record_into

FILES = {path.name for path in Path(__file__).parent.glob("rank_*.py")}
"""Of the programs."""

ACCUMULATION, EVALUATION = ("environment", "no_sync"), ("straggler", "evaluation")
SAME_BATCHES, SAME_ORDER = ("repeated_data", "same_on_ranks"), ("repeated_data", "same_order")
CLIPPING = ("rank_divergence", "local_clipping")
STATISTICS = ("environment", "broadcast_buffers")
CONSTANT_OUTPUT = ("repeated_data", "constant_output")
EXPECTED: dict[str, list[tuple[str, str]]] = {
    "adds_up_and_reduces_each_time": [ACCUMULATION],
    "reduces_two_losses_apart": [ACCUMULATION],
    "reduces_real_and_fake_apart": [ACCUMULATION],
    "adds_up_without_reducing": [],
    "two_models_of_one_shape": [],
    "many_buckets_of_one_shape": [],
    "columns_clipped_alone": [CLIPPING],
    "rows_clipped_alone": [CLIPPING],
    "experts_clipped_alone": [CLIPPING],
    "columns_clipped_together": [],
    "replicas_clipped": [],
    "models_of_their_own_clipped": [],
    "statistics_of_each_rank": [STATISTICS],
    "statistics_not_averaged": [STATISTICS],
    "statistics_of_each_rank_in_a_convolution": [STATISTICS],
    "statistics_broadcast": [],
    "statistics_averaged_before_evaluation": [],
    "statistics_that_are_fixed": [],
    "first_rank_evaluates": [EVALUATION],
    "last_rank_evaluates_a_copy": [EVALUATION],
    "first_rank_evaluates_once": [EVALUATION],
    "both_ranks_evaluate": [],
    "first_rank_evaluates_at_the_end": [],
    "first_rank_writes": [],
    "one_seed_for_all_ranks": [SAME_BATCHES],
    "loader_without_a_sampler": [SAME_BATCHES],
    "averaged_by_hand_over_the_same_batches": [SAME_BATCHES],
    "one_seed_per_rank": [],
    "each_rank_takes_its_part": [],
    "whole_data_at_each_step": [],
    "epoch_never_set": [SAME_ORDER],
    "epoch_set_on_another_sampler": [SAME_ORDER],
    "epoch_set_to_the_same": [SAME_ORDER],
    "epoch_set": [],
    "in_order_on_purpose": [],
    "looked_at_and_then_one_epoch": [],
    "evaluated_in_the_same_order": [],
    "input_times_zero": [CONSTANT_OUTPUT],
    "mean_over_the_batch": [CONSTANT_OUTPUT],
    "dead_units": [CONSTANT_OUTPUT],
    "loaded_and_not_used": [("repeated_data", "constant_input")],
    "one_row_for_all": [("repeated_data", "constant_input")],
    "episodes_that_begin_in_one_state": [],
    "output_varies": [],
    "last_layer_begins_as_zero": [],
    "one_output_for_a_batch_of_one": [],
    "table_of_positions": [],
    "one_seed_and_a_dropout_of_nothing": [],
    "broadcast_and_averaged_in_rounds": [],
    "models_of_their_own_and_a_common_metric": [],
}
"""Program -> (kind, name or cause)."""

ASKED = {
    "Reductions between accumulated gradients",
    "Evaluation that other ranks wait for",
    "Gradients clipped by the norms of single ranks",
    "Running statistics that ranks do not share",
    "Same batches on several ranks",
    "Epochs in the same order",
    "Inputs and outputs that do not vary",
    "Diverging data-parallel replicas",
    "Ranks that train apart",
    "Random numbers of ranks",
    "Dropout of ranks with parts of one model",
    "Samplers of ranks",
}


MAIN = (
    "adds_up_and_reduces_each_time",
    "adds_up_without_reducing",
    "columns_clipped_alone",
    "replicas_clipped",
    "statistics_of_each_rank",
    "statistics_broadcast",
    "first_rank_evaluates",
    "both_ranks_evaluate",
    "one_seed_for_all_ranks",
    "one_seed_per_rank",
    "epoch_never_set",
    "epoch_set",
    "input_times_zero",
    "last_layer_begins_as_zero",
)
"""A fault and a twin of each class; the others are slow tests."""


def record(folder: Path, names: Iterable[str]) -> Path:
    script = Path(__file__).with_name("rank_programs.py")
    done = record_into(folder, script, *names, ranks=2)
    assert done.returncode == 0, done.stderr
    assert "recorder error" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("ranks"), MAIN)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("ranks"), [name for name in EXPECTED if name not in MAIN])


def check(path: Path) -> None:
    run = open_run(path)
    answers = [run_question(one, run) for one in questions() if one.text in ASKED]
    assert len(answers) == len(ASKED)
    assert not any(one.failed for one in answers), answers
    found = [finding for one in answers for finding in one.findings]
    named = [(f.kind, f.evidence.get("cause") or f.evidence.get("name")) for f in found]
    assert named == EXPECTED[path.name], [f.title for f in found]
    unplaced = (SAME_ORDER, STATISTICS, CLIPPING)
    for one, said in zip(found, named, strict=True):
        assert said in unplaced or str(one.where).partition(":")[0] in FILES


@pytest.mark.parametrize("name", MAIN)
def test_faults_of_ranks(recorded: Path, name: str) -> None:
    check(recorded / name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in MAIN])
def test_other_faults_of_ranks(others: Path, name: str) -> None:
    check(others / name)
