"""What is found in each program of this folder; and that twins are silent."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from lanescope.webapp.analysis.findings import Finding, run_question
from lanescope.webapp.analysis.parameter_history import gradient_rows
from lanescope.webapp.analysis.plugin import questions
from lanescope.webapp.cli import main
from lanescope.webapp.plugins.gradients.backward_threads import backward_threads
from lanescope.webapp.runs.run import open_run
from tests.support.recording import record_into

ENTRIES = {
    "vanishing:vanishing",
    "exploding:exploding",
    "dead_parameters:dead_parameters",
    "no_step:no_step",
    "unzeroed_gradients:kept_gradients",
    "lora:lora",
    "scaling:scaler_skips",
    "scaling:clipped_while_scaled",
    "validators:validators",
}

EXPECTED: dict[str, list[tuple[str, str, int | None]]] = {
    "sigmoids": [("vanishing_gradient", "", 0)],
    "residual_sigmoids": [],
    "small_and_healthy": [],
    "biases_alone": [],
    "tiny_weights": [("vanishing_gradient", "", 0)],
    "zero_initialised_branches": [],
    "branch_warmed_up_by_epochs": [],
    "rate_too_high": [("exploding_gradient", "growth", 7)],
    "rate_too_high_late": [("exploding_gradient", "growth", 28)],
    "scale_is_learned": [("exploding_gradient", "growth", 89)],
    "leaves_a_plateau": [],
    "not_a_number": [("exploding_gradient", "not_finite", 4)],
    "clipped_and_healthy": [],
    "large_and_healthy": [],
    "outputs_grow": [("exploding_gradient", "forward", 0)],
    "clipped_and_large": [],
    "step_overturns": [("exploding_gradient", "updates", 0)],
    "rnn_explodes": [("exploding_gradient", "backward", 0)],
    "rnn_of_a_large_loss": [],
    "critic_beside_actor": [],
    "sigmoids_in_backward": [("vanishing_gradient", "", 0)],
    "tanhs_in_backward": [],
    "unused_head": [("dead_parameter", "unused", 0)],
    "layers_called_alone": [],
    "layer_detached": [("dead_parameter", "unused", 0)],
    "heads_in_turn": [],
    "frozen_body": [],
    "minimum_reached": [],
    "margin_kept": [("dead_parameter", "zero", 1)],
    "dead_relu": [("dead_parameter", "zero", 0)],
    "forgotten_body": [("dead_parameter", "not_in_optimizer", 0)],
    "blocks_in_a_list": [("dead_parameter", "not_in_optimizer", 0)],
    "blocks_in_a_list_and_the_optimizer": [],
    "layer_made_late": [],
    "rate_of_zero": [("dead_parameter", "no_rate", 0)],
    "rate_of_a_hundredth": [],
    "rate_decays_per_batch": [("dead_parameter", "no_rate", 3)],
    "rate_decays_to_zero": [],
    "rate_warms_up": [],
    "rate_never_set": [("dead_parameter", "no_rate", 0)],
    "trained_by_hand": [],
    "decayed": [("dead_parameter", "decay", 0)],
    "unused_rows": [],
    "sparse_rows": [],
    "clipped_away": [("dead_parameter", "clipped", 0)],
    "rounded_away": [("dead_parameter", "rounded", 0)],
    "not_rounded_away": [("dead_parameter", "no_rate", 0)],
    "written_back": [("dead_parameter", "undone", 0)],
    "kept_within_bounds": [],
    "gradients_let_go": [("dead_parameter", "unused", 0)],
    "copied_after_the_optimizer": [("dead_parameter", "replaced", 0)],
    "step_forgotten": [("dead_parameter", "no_step", None)],
    "scheduler_in_place_of_the_optimizer": [("dead_parameter", "no_step", None)],
    "step_in_a_branch_not_taken": [("dead_parameter", "no_step", None)],
    "stepped_by_hand": [],
    "stepped_by_a_wrapped_optimizer": [],
    "critic_of_a_hinge": [],
    "another_model_before": [],
    "stepped_in_hooks": [],
    "stepped_in_hooks_beside_another": [],
    "gradients_of_the_input": [],
    "one_long_accumulation": [],
    "output_detached": [("dead_parameter", "unused", 0)],
    "output_detached_beside_a_library": [("dead_parameter", "unused", 0)],
    "output_detached_by_a_library": [("dead_parameter", "unused", 0)],
    "model_called_without_gradients": [("dead_parameter", "unused", 0)],
    "features_detached": [
        ("dead_parameter", "unused", 0),
        ("dead_parameter", "not_in_optimizer", 0),
    ],
    "zeroed_before_the_step": [("dead_parameter", "unused", 0)],
    "target_detached": [],
    "evaluated_in_between": [],
    "closures": [],
    "tasks_by_turns": [],
    "stops_half_way": [("dead_parameter", "stopped", 12)],
    "freezes_half_way": [],
    "pauses_half_way": [],
    "clipped_while_scaled": [("vanishing_gradient", "clipped_while_scaled", 1)],
    "clipped_when_unscaled": [],
    "scale_collapses": [("scaler_skips", "", 10)],
    "scale_settles": [],
    "scale_begins_too_high": [],
    "two_threads": [],
    "never_zeroed": [("exploding_gradient", "kept", 1)],
    "one_never_zeroed": [("exploding_gradient", "kept", 2)],
    "zeroed_late": [],
    "let_go_late": [],
    "added_up": [],
    "zeroed_by_hand": [],
    "zeroed_now_and_then": [],
    "faded": [],
    "asserted": [("dead_parameter", "unused", 0), ("validator", "", 0), ("validator", "", 4)],
    "lora_learns": [],
    "lora_beside_its_frozen_base": [],
    "lora_first_steps": [],
    "lora_second_adapter": [],
    "lora_waits_in_the_optimizer": [],
    "lora_not_trainable": [("lora_inactive", "not_trainable", 0)],
    "lora_not_in_optimizer": [("lora_inactive", "not_in_optimizer", 0)],
    "lora_disabled": [("lora_inactive", "no_gradient", 0)],
    "lora_checkpointed": [("lora_inactive", "no_gradient", 0)],
    "lora_checkpointed_as_it_should": [],
    "lora_clipped": [("lora_inactive", "clipped", 0)],
    "lora_stays_zero": [("lora_inactive", "zero", 0)],
    "lora_written_back": [("lora_inactive", "undone", 0)],
    "lora_decayed": [("lora_inactive", "decayed", 5)],
    "lora_compiled_away": [("lora_inactive", "compiled_away", 0)],
}
"""Program -> (kind, cause, since which step)."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learning")
    script = Path(__file__).with_name("programs.py")
    done = record_into(folder, script, "adapters")
    assert done.returncode == 0, done.stderr
    assert "recorder error" not in done.stderr
    return folder


@functools.cache
def learning(run: Path) -> list[Finding]:
    opened, found = open_run(run), []
    for question in questions():
        if question.find.rpartition(".")[2] in ENTRIES:
            answer = run_question(question, opened)
            assert not answer.failed, answer.failed
            found += answer.findings
    return found


def in_short(found: list[Finding]) -> list[Any]:
    return [(f.kind, f.evidence.get("cause", ""), f.step) for f in found]


@pytest.mark.parametrize("name", EXPECTED)
def test_findings(recorded: Path, name: str) -> None:
    found = learning(recorded / name)
    assert in_short(found) == EXPECTED[name], [f.title for f in found]


@pytest.mark.parametrize(
    ("name", "severity"), [("rate_too_high_late", "warning"), ("scale_is_learned", "info")]
)
def test_slow_growth_is_information(recorded: Path, name: str, severity: str) -> None:
    assert [one.severity for one in learning(recorded / name)] == [severity]


def test_a_sparse_gradient_has_the_norm_of_its_summed_rows(recorded: Path) -> None:
    rows = gradient_rows(open_run(recorded / "sparse_rows"))
    norm = rows.loc[(rows["parameter"] == "0.weight") & (rows["step"] == 0), "norm"].item()
    torch.manual_seed(0)
    embedding, linear = nn.Embedding(50, 8), nn.Linear(8, 8)
    (linear(embedding(torch.tensor([1, 2, 2, 3, 3, 3]))) - 1).square().mean().backward()
    assert embedding.weight.grad is not None
    assert norm == pytest.approx(float(embedding.weight.grad.norm()))


def test_what_each_thread_adds_to_the_norm(recorded: Path) -> None:
    run = open_run(recorded / "two_threads")
    values = run.events("value").to_pandas()
    truth = values[values["name"] == "truth"].set_index(["thread", "step"])["value"]
    table = backward_threads(run).set_index(["thread", "step"])["added"].dropna()
    # At step 0 the first backward of all may be running when the second thread comes.
    assert [step for _, step in table.index if step].count(1) == 2
    assert {step for _, step in table.index} >= {1, 2, 3}
    for key, norm in table.items():
        assert norm == pytest.approx(truth[key], rel=1e-5)


def test_what_assertions_say(recorded: Path) -> None:
    unused, norm = learning(recorded / "asserted")[1:]
    assert unused.title == (
        "Assertion assert_nonzero_grad fails for other.weight and 1 more parameter at step 0: "
        "no gradient, expected more than 0; at 12 of 12 steps."
    )
    assert norm.evidence["measured"] > 1e-9
    assert norm.evidence["expected"] == "at most 1e-09"
    assert norm.evidence["target"] == "head.weight"
    assert norm.title.endswith("; at 8 of 8 steps.")


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("output_detached", "detach passes the result on without its gradient"),
        ("model_called_without_gradients", "runs without recording a gradient"),
        ("features_detached", "detach passes the result on without its gradient"),
        ("zeroed_before_the_step", "throws the gradients away"),
    ],
)
def test_where_gradients_end(recorded: Path, name: str, operator: str) -> None:
    found = learning(recorded / name)[0]
    assert str(found.where).startswith("cut.py:")
    assert operator in found.title


@pytest.mark.parametrize(
    "name", ["output_detached_beside_a_library", "output_detached_by_a_library"]
)
def test_the_line_is_one_of_the_program(recorded: Path, name: str) -> None:
    file, _, line = str(learning(recorded / name)[0].where).partition(":")
    assert file == "cut.py"
    assert "# named" in (Path(__file__).parent / file).read_text().splitlines()[int(line) - 1]


def test_sentences(recorded: Path) -> None:
    (sigmoids,) = learning(recorded / "sigmoids")
    named = [layer["layer"] for layer in sigmoids.evidence["layers"]]
    assert "0" in named
    assert "22" not in named
    assert sigmoids.link.startswith("/timeline?t=")
    (unused,) = learning(recorded / "unused_head")
    assert unused.evidence["parameters"] == ["other.weight", "other.bias"]
    (detached,) = learning(recorded / "layer_detached")
    assert detached.evidence["parameters"] == ["body.weight", "body.bias"]
    (forgotten,) = learning(recorded / "forgotten_body")
    assert forgotten.evidence["parameters"] == ["body.weight", "body.bias"]
    assert forgotten.evidence["elements"] == 72
    (listed,) = learning(recorded / "blocks_in_a_list")
    assert listed.evidence["parameters"][1:3] == ["Linear.bias", "Linear#2.weight"]
    late = open_run(recorded / "layer_made_late")
    assert "3.weight" in set(gradient_rows(late)["parameter"])
    (no_rate,) = learning(recorded / "rate_of_zero")
    assert (no_rate.severity, no_rate.evidence["dead"]) == ("warning", 2)
    (never,) = learning(recorded / "rate_never_set")
    assert never.severity == "error"
    assert never.title.startswith("No parameter changes: the learning rate is 0 or next to it")
    (dead,) = learning(recorded / "dead_relu")
    assert dead.evidence["parameters"] == ["0.weight", "0.bias"]
    (collapse,) = learning(recorded / "scale_collapses")
    assert collapse.evidence["parameters"] == ["0.weight", "1.weight"]
    (kept,) = learning(recorded / "one_never_zeroed")
    assert (kept.evidence["optimizer"], kept.evidence["pairs_looked_at"]) == (1, 7)
    assert str(kept.where).startswith("kept.py:")
    assert kept.title.startswith("Gradients are never zeroed: in each step backward adds to those")
    result = CliRunner().invoke(main, ["check", str(recorded / "one_never_zeroed")])
    assert str(kept.title)[:40] in result.stdout, result.output
    (frozen,) = learning(recorded / "lora_not_trainable")
    assert frozen.evidence["inactive"] == 4
    assert "self_attn.q_proj" in frozen.title
    assert "is_trainable=True" in frozen.title
