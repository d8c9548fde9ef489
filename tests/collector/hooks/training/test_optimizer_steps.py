"""Steps that do not simply follow a backward: a closure computes the gradients, or they are used
within backward; recorded is what the optimizer had, in the step in which it had it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp.analysis.parameter_history import gradient_rows
from lanescope.webapp.plugins.learning.exploding import exploding
from lanescope.webapp.runs.run import open_run
from tests.support.recording import Recorded, record_program

PROGRAM = """
    import json, sys, torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    x = torch.randn(8, 4)
    reported = []
    def note(parameters):
        reported.append({n: p.grad.norm().item() for n, p in model.named_parameters()
                     if any(p is one for one in parameters)})
    def loss():
        return (model(x) - 1).square().mean()
    own = list(model.parameters())
    if sys.argv[1] == "in_backward":
        def step(parameter):
            note([parameter])
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in own}
        for parameter in own:
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(4):
            loss().backward()
    else:
        rule = torch.optim.LBFGS if sys.argv[1] == "lbfgs" else torch.optim.Adam
        optimizer, calls = rule(own), 0
        for step in range(4):
            calls = 0
            def closure():
                global calls
                optimizer.zero_grad()
                found = loss()
                found.backward()
                calls += 1
                if calls == 1:
                    note(own)
                return found
            if step % 2:
                optimizer.step(closure)
            else:
                optimizer.step(closure=closure)
            optimizer.zero_grad()
    print(json.dumps(reported))
"""


def recorded(tmp_path: Path, name: str, *options: str) -> tuple[Recorded, list[Any]]:
    found = record_program(tmp_path, PROGRAM, *options, arguments=(name,))
    assert found.status == 0, found.stderr
    assert "recorder error" not in found.stderr
    return found, json.loads(found.stdout)


@pytest.mark.parametrize("name", ["lbfgs", "adam"])
def test_gradients_that_a_closure_computes(tmp_path: Path, name: str) -> None:
    run, reported = recorded(tmp_path, name, "--level", "timing")
    rows = run.rows("gradient")
    assert [(row["step"], row["parameter"]) for row in rows] == [
        (step, parameter) for step, norms in enumerate(reported) for parameter in norms
    ]
    assert len(rows) == 16
    for row in rows:
        assert row["norm"] == pytest.approx(reported[row["step"]][row["parameter"]], rel=1e-5), row
    changed = [row for row in run.rows("parameter") if row["step"] < 4]
    assert changed
    assert all(row["update_ratio"] > 0 for row in changed)


def test_steps_within_backward_are_of_the_step_of_that_backward(tmp_path: Path) -> None:
    run, reported = recorded(tmp_path, "in_backward", "--level", "timing")
    rows = run.rows("gradient")
    assert len(rows) == len(reported) == 16
    for row, (place, norms) in zip(rows, enumerate(reported), strict=True):
        assert row["step"] == place // 4
        assert {row["parameter"]: pytest.approx(row["norm"], rel=1e-5)} == norms
    backwards = [row for row in run.rows("phase") if row["kind"] == "backward"]
    assert [row["step"] for row in backwards] == [0, 1, 2, 3]


ONE_AFTER_THE_OTHER = """
    import torch
    def train(scale):
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01 / scale)
        for _ in range(8):
            ((model(torch.ones(4, 4)) - 1).square().mean() * scale).backward()
            optimizer.step()
            optimizer.zero_grad()
    for scale in (1, 1e-3, 1e4):
        train(scale)
"""


def test_optimizers_that_follow_one_another_have_numbers_of_their_own(tmp_path: Path) -> None:
    run = open_run(record_program(tmp_path, ONE_AFTER_THE_OTHER).run)
    rows = gradient_rows(run)
    steps = rows.groupby("optimizer")["step"].agg(["min", "max"])
    assert steps.to_numpy().tolist() == [[0, 7], [8, 15], [16, 23]]
    assert exploding(run) == []


BESIDE = """
    import sys, torch
    kept = []
    shared = torch.nn.Linear(4, 4)
    helper = torch.optim.SGD(shared.parameters(), lr=0.01)
    def step(model, optimizer):
        model(shared(torch.ones(4, 4))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for _ in range(2):
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(40):
            step(model, optimizer)
            if number == 20:
                helper.step()
        if sys.argv[1] == "kept":
            kept.append(optimizer)
        del optimizer, model
        helper.step()
"""


@pytest.mark.parametrize(("models", "least"), [("gone", 78), ("kept", 48)])
def test_a_helper_beside_models_that_follow_one_another_ends_no_long_steps(
    tmp_path: Path, models: str, least: int
) -> None:
    run = open_run(record_program(tmp_path, BESIDE, arguments=(models,)).run)
    rows = gradient_rows(run)
    steps = rows[rows["parameter"].str.endswith("weight")]["step"]
    assert least <= steps.nunique() <= 82


STRANGE = """
    import torch
    weights = [torch.nn.Parameter(torch.ones(2))]
    emptied = torch.optim.SGD(weights, 0.1)
    emptied.param_groups.clear()
    emptied.step()
    class Own(torch.optim.Optimizer):
        def step(self, closure=None):
            return 7
    own = Own(weights, {"lr": 0.1})
    own.param_groups = [{"weights": weights}]
    assert own.step() == 7
"""


def test_optimizers_with_groups_of_their_own_step(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, STRANGE)
    assert recorded.status == 0, recorded.stderr


CHECKPOINT = """
    import torch
    from torch.distributed.checkpoint.state_dict import get_state_dict
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    get_state_dict(model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
"""


def test_a_step_that_only_makes_state_is_not_counted(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, CHECKPOINT)
    assert recorded.status == 0, recorded.stderr
    rows = gradient_rows(open_run(recorded.run))
    assert sorted(set(rows["step"])) == [0, 1, 2]
