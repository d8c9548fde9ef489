"""Samples of parameters, activations and clipping have the program's own numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp.plugins.gradients.parameter_table import parameter_table
from lanescope.webapp.plugins.learning.dead_parameters import dead_parameters
from lanescope.webapp.runs.run import open_run
from tests.support.recording import Recorded, record_program

PROGRAM = """
    import json, torch
    torch.manual_seed(0)
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.base = torch.nn.Linear(4, 64).requires_grad_(False)
            self.wide = torch.nn.Linear(64, 200)
            self.head = torch.nn.Linear(200, 2, bias=False)
            self.forgotten = torch.nn.Linear(2, 2, bias=False)
            self.unused = torch.nn.Linear(2, 2, bias=False)
        def forward(self, x):
            return {"out": self.forgotten(self.head(torch.relu(self.wide(self.base(x)))))}
    model = Model()
    groups = [{"params": [*model.wide.parameters(), *model.unused.parameters()], "lr": 0.1},
              {"params": model.head.parameters(), "weight_decay": 0.25}]
    optimizer = torch.optim.SGD(groups, lr=0.5, momentum=0.9, foreach=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    reported = []
    for step in range(6):
        if step == 2:
            model.base.requires_grad_(True)
        x = torch.ones(3, 4) * (float("inf") if step == 3 else 1.0)
        out = model(x)["out"]
        scaler.scale(out.square().sum()).backward()
        scaler.unscale_(optimizer)
        total = torch.nn.utils.clip_grad_norm_([*model.wide.parameters()], 0.5)
        named = dict(model.named_parameters())
        before = {name: p.detach().clone() for name, p in named.items()}
        grads = {name: p.grad.clone() for name, p in named.items() if p.grad is not None}
        scaler.step(optimizer)
        scaler.update()
        reported.append({"total": total.item(), "out": out.norm().item(), "parameters": {name: {
            "grad_norm": grads[name].norm().item() if name in grads else None,
            "grad_max": grads[name].abs().max().item() if name in grads else None,
            "grad_zeros": (grads[name] == 0).double().mean().item() if name in grads else None,
            "norm": before[name].norm().item(),
            "change": (p.detach() - before[name]).norm().item() / before[name].norm().item(),
        } for name, p in named.items()}})
        for p in model.parameters():
            p.grad = None
    print(json.dumps(reported))
"""

RANKS = """
    import torch, torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    def make():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3, bias=False))
    def train(model, **settings):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **settings)
        for step in range(4):
            torch.manual_seed(10 * step + rank)
            for half in range(2):  # accumulated
                (model(torch.randn(4, 5)).square().mean() / 2).backward()
            if isinstance(model, FullyShardedDataParallel):
                model.clip_grad_norm_(0.05)
            else:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()
    train(DistributedDataParallel(make()), fused=True)
    model = make()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    train(model)
    train(FullyShardedDataParallel(make(), device_id=torch.device("cpu")))  # one flat parameter
    dist.destroy_process_group()
"""

STEPS = (0, 1, 2, 3)  # step 3 is the last number: the step that was skipped did not count


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    options = ("--level", "timing", "--sample-every", "3", "--activations-every", "2")
    found = record_program(tmp_path_factory.mktemp("parameters"), PROGRAM, *options)
    assert found.status == 0, found.stderr
    assert "recorder error" not in found.stderr
    return found


def reported(recorded: Recorded) -> list[dict[str, Any]]:
    """Returns what the program printed for iterations whose step was not skipped."""
    found: list[dict[str, Any]] = json.loads(recorded.stdout)
    return [one for number, one in enumerate(found) if number != 3]


def rows(recorded: Recorded, **which: Any) -> list[dict[str, Any]]:
    found: list[Any] = recorded.rows("parameter")
    return [r for r in found if all(r[k] == v for k, v in which.items())]


def test_numbers_are_those_of_the_program(recorded: Recorded) -> None:
    truth = reported(recorded)
    for row in rows(recorded, optimizer=0, skipped=False):
        expected = truth[row["step"]]["parameters"][row["parameter"]]
        assert row["norm"] == pytest.approx(expected["norm"], rel=1e-6)
        if expected["grad_norm"] is None:
            assert (row["grad_norm"], row["grad_max"], row["grad_zeros"]) == (None, None, None)
            assert row["update_ratio"] == 0
        else:
            for name in ("grad_norm", "grad_max", "grad_zeros"):
                assert row[name] == pytest.approx(expected[name], rel=1e-6), (row, name)
            # wide.weight has 12800 elements: every fourth was looked at
            rough = 0.3 if row["parameter"] == "wide.weight" else 1e-5
            assert row["update_ratio"] == pytest.approx(expected["change"], rel=rough)


def test_steps_names_and_settings(recorded: Recorded) -> None:
    held = rows(recorded, optimizer=0, skipped=False)
    assert [(r["step"], r["parameter"]) for r in held] == [
        (step, name)
        for step in (0, 1, 2, 3)
        for name in ("wide.weight", "wide.bias", "unused.weight", "head.weight")
    ]
    settings = {r["parameter"]: (r["lr"], r["weight_decay"], r["rule"]) for r in held}
    assert settings["wide.bias"] == (0.1, 0.0, "SGD")
    assert settings["head.weight"] == (0.5, 0.25, "SGD")
    assert all(r["trainable"] and r["numel"] == r["whole_numel"] for r in held)


def test_parameters_of_no_optimizer(recorded: Recorded) -> None:
    found = rows(recorded, optimizer=None)
    assert [(r["step"], r["parameter"], r["trainable"]) for r in found] == [
        (0, "base.weight", False),
        (0, "base.bias", False),
        (0, "forgotten.weight", True),
        (1, "forgotten.weight", True),
        (2, "base.weight", True),
        (2, "base.bias", True),
        (2, "forgotten.weight", True),
        (3, "base.weight", True),
        (3, "base.bias", True),
        (3, "forgotten.weight", True),
    ]
    truth = reported(recorded)[1]["parameters"]["forgotten.weight"]
    assert found[3]["norm"] == pytest.approx(truth["norm"])
    assert found[3]["grad_norm"] == pytest.approx(truth["grad_norm"])


def test_every_trainable_parameter_has_a_row_also_without_a_gradient(recorded: Recorded) -> None:
    table = parameter_table(open_run(recorded.run)).set_index("parameter")
    assert set(table.index) == set(reported(recorded)[0]["parameters"])
    words = table["gradient"].to_dict()
    assert words["wide.weight"] == "At 5 of 5 steps"
    assert words["unused.weight"] == "None at 5 of 5 steps: its module was not called"
    assert words["forgotten.weight"] == "No optimizer holds it. At 4 of 4 sampled steps"
    assert words["base.bias"] == "No optimizer holds it. At 2 of 2 sampled steps"  # then unfrozen


UNSAMPLED = """
    import torch
    model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in ("a", "b", "c", "d")})
    model.forward = lambda x: model["b"](model["a"](x)) + model["c"](x).detach()
    model["d"].requires_grad_(False)
    held = [*model["a"].parameters(), *model["c"].parameters()]
    optimizer = torch.optim.SGD(held, lr=0.1)
    for step in range(3):
        model(torch.ones(2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_run_without_samples_names_them_once(tmp_path: Path) -> None:
    found = record_program(tmp_path, UNSAMPLED, "--sample-every", "0", "--level", "timing")
    assert found.status == 0, found.stderr
    assert [(r["step"], r["parameter"], r["trainable"]) for r in found.rows("parameter")] == [
        (0, f"{layer}.{name}", layer == "b") for layer in "bd" for name in ("weight", "bias")
    ]
    table = parameter_table(open_run(found.run)).set_index("parameter")["gradient"].to_dict()
    assert table == {
        f"{layer}.{name}": words
        for layer, words in (
            ("a", "At 3 of 3 steps"),
            ("b", "No optimizer holds it. At 1 of 1 sampled step"),
            ("c", "None at 3 of 3 steps"),
        )
        for name in ("weight", "bias")
    }


def test_a_skipped_step_names_the_gradients_that_are_not_finite(recorded: Recorded) -> None:
    found = rows(recorded, skipped=True)
    assert {r["parameter"] for r in found} == {"wide.weight", "wide.bias", "head.weight"}
    assert {r["step"] for r in found} == {3}
    assert not any(math.isfinite(r["grad_norm"]) for r in found)


def test_clipping(recorded: Recorded) -> None:
    values = [r for r in recorded.rows("value") if str(r["name"]).startswith("clip_")]
    norms = [r["value"] for r in values if r["name"] == "clip_total_norm"]
    truth = [one["total"] for one in json.loads(recorded.stdout)]
    assert [n for n in norms if math.isfinite(n)] == [n for n in truth if math.isfinite(n)]
    assert len(norms) == len(truth)
    assert {r["value"] for r in values if r["name"] == "clip_max_norm"} == {0.5}


def test_activations(recorded: Recorded) -> None:
    found: list[Any] = recorded.rows("activation")
    names = ["base", "wide", "head", "forgotten", "Model"]
    assert [(r["step"], r["module"]) for r in found] == [(s, n) for s in (0, 2, 4) for n in names]
    assert all(r["training"] and r["device"] == "cpu" for r in found)
    assert found[4]["norm"] == pytest.approx(reported(recorded)[0]["out"], rel=1e-6)
    assert found[1]["numel"] == 600


@pytest.mark.slow
@pytest.mark.torchrun
def test_shards_add_up_to_what_whole_replicas_have(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, RANKS, "--sample-every", "1", ranks=2)
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    both: list[list[dict[str, Any]]] = [
        [r for r in recorded.rows("parameter", rank) if r["optimizer"] is not None]
        for rank in (0, 1)
    ]
    flat = [r for one in both for r in one if r["parameter"].startswith("Sequential#3")]
    both = [[r for r in one if r not in flat] for one in both]
    whole = [[r for r in one if r["numel"] == r["whole_numel"]] for one in both]
    parts = [[r for r in one if r["numel"] < r["whole_numel"]] for one in both]
    names = ["0.weight", "0.bias", "2.weight"]
    assert [r["parameter"] for r in whole[0]] == names * 4
    # The second model of the process carries its class in front, which fully_shard changed.
    assert [r["parameter"] for r in parts[0]] == [f"Sequential#2.{name}" for name in names] * 4
    for one, other, *shards in zip(*whole, *parts, strict=True):
        assert one["grad_norm"] == other["grad_norm"]
        assert sum(s["numel"] for s in shards) == one["numel"] == shards[0]["whole_numel"]
        for name in ("grad_norm", "norm"):
            joined = math.hypot(*(s[name] for s in shards))
            assert joined == pytest.approx(one[name], rel=1e-5), name
        assert max(s["grad_max"] for s in shards) == pytest.approx(one["grad_max"], rel=1e-5)
    for one in whole[0]:
        shards = [
            s
            for s in flat
            if s["parameter"] == f"Sequential#3.{one['parameter']}" and s["step"] == one["step"] + 8
        ]
        assert sum(s["numel"] for s in shards) == one["numel"] == shards[0]["whole_numel"]
        joined = math.hypot(*(s["grad_norm"] for s in shards))
        assert joined == pytest.approx(one["grad_norm"], rel=1e-5)


def test_what_vmap_makes_many_of_has_no_norm(tmp_path: Path) -> None:
    recorded = record_program(
        tmp_path,
        """
        import torch
        from torch.func import functional_call, grad, stack_module_state, vmap

        models = [torch.nn.Linear(4, 1) for _ in range(3)]
        state, buffers = stack_module_state(models)

        def loss(state, buffers, x):
            return functional_call(models[0], (state, buffers), (x,)).square().mean()

        vmap(grad(loss), in_dims=(0, 0, None))(state, buffers, torch.ones(2, 4))
        models[1](torch.ones(2, 4))
        """,
        "--activations-every",
        "1",
    )
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    assert [row["numel"] for row in recorded.rows("activation")] == [2]


def test_parameters_without_memory_have_no_row(tmp_path: Path) -> None:
    """Of a module on the meta device that is called with the parameters of others."""
    recorded = record_program(
        tmp_path,
        """
        import copy, torch
        from torch.func import functional_call
        layer, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
        shell = copy.deepcopy(layer).to("meta")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(3):
            hidden = functional_call(shell, dict(layer.named_parameters()), (torch.ones(2, 4),))
            other(hidden).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    )
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    rows = recorded.rows("parameter")
    assert {row["numel"] for row in rows if row["optimizer"] is None} == {8, 2}
    assert {row["numel"] for row in rows if row["optimizer"] is not None} == {16, 4}


@pytest.mark.parametrize("engine", ["native", "portable"])
def test_parameters_that_an_inner_step_computed_have_no_row(tmp_path: Path, engine: str) -> None:
    """As packages for meta learning do: torch warns of who reads the gradient of such a tensor."""
    recorded = record_program(
        tmp_path,
        """
        import warnings
        import torch
        warnings.simplefilter("error")
        outer, layer = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
        started, within = [*layer.parameters()], layer._parameters
        optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)
        for _ in range(3):
            loss = layer(outer(torch.ones(2, 4))).square().mean()
            inner = torch.autograd.grad(loss, started, create_graph=True)
            for name, one, gradient in zip([*within], started, inner):
                within[name] = one - 0.1 * gradient
            layer(outer(torch.ones(2, 4))).square().mean().backward()
            optimizer.step()
            within.update(zip([*within], started))
            optimizer.zero_grad()
        """,
        "--engine",
        engine,
    )
    assert recorded.status == 0, recorded.stderr
    assert "Warning" not in recorded.stderr
    rows = recorded.rows("parameter")
    assert {row["numel"] for row in rows} == {16, 4, 1}


WRAPPED = """
    import torch
    from torch import nn
    from torch.testing._internal.two_tensor import TwoTensor
    def two(*shape):
        return nn.Parameter(TwoTensor(torch.randn(shape), torch.randn(shape)))
    plain, wrapped = nn.Linear(4, 1), nn.Linear(4, 1)
    wrapped.weight, wrapped.bias = two(1, 4), two(1)
    optimizer = torch.optim.SGD([*plain.parameters(), *wrapped.parameters()], lr=0.1)
    for _ in range(6):
        for model in (plain, wrapped):
            model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_tensors_of_classes_with_operators_of_their_own_have_no_norm(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, WRAPPED, "--level", "access")
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    assert {row["parameter"] for row in recorded.rows("gradient")} == {"weight", "bias"}
    assert {row["parameter"] for row in recorded.rows("parameter")} == {"weight", "bias"}
    run = open_run(recorded.run)
    assert run.coverage["gradients_not_read"] == 12
    assert dead_parameters(run) == []  # which is not the same as that they have no gradient
