"""Settings and data that differ between two runs are named, also where no operator differs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lanescope.collector.format.names import ENVIRONMENT, SETTINGS
from lanescope.webapp.plugins.diff.diff import compare
from lanescope.webapp.runs.run import open_run
from tests.support.recording import record_into, write_program

PROGRAM = """
    import os, sys, torch
    from torch import nn
    import lanescope.collector as ls

    class Model(nn.Module):
        def __init__(self, shift=0.0, forgets=0.1):
            super().__init__()
            self.body, self.shift, self.forgets = nn.Linear(8, 4), shift, forgets
            self.register_buffer("mean", torch.zeros(8))
        def forward(self, x):
            self.mean.lerp_(x.mean(0), self.forgets)
            return self.body(x), x.sum(1) + self.shift

    def train(seed=0, kind=torch.optim.SGD, decay_at=99, shift=0.0, offset=0.0, rows=None,
              tiny=0.0, accuracy=0.5, variable="", forgets=0.1, clip=None, **settings):
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = variable
        os.environ["NVIDIA_API_KEY"] = os.environ["TORCH_HUB_TOKEN"] = "nvapi-of-alice"
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        torch.manual_seed(seed)
        model = Model(shift, forgets)
        optimizer = kind(model.parameters(), **{"lr": 0.1, **settings})
        data = torch.randn(10, 16, 8)
        for step in range(10):
            optimizer.zero_grad()
            if step == decay_at:
                optimizer.param_groups[0]["lr"] = 0.01
            x = data[step if rows is None else rows[step]]
            loss = (model(x)[0] - 1).square().mean()
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            ls.value("train/loss", float(loss) + offset * (step >= 3) + tiny)
            ls.value("samples/s", 100.0 + offset)
            ls.value("accuracy", accuracy)
            optimizer.step()

    VARIANTS = {
        "base": {}, "again": {}, "rate": {"lr": 0.2}, "seed": {"seed": 2**50 + 1},
        "rule": {"kind": torch.optim.RMSprop}, "momentum": {"momentum": 1e-300},
        "schedule": {"decay_at": 4}, "order": {"rows": [0, 1, 2, 3, 4, 5, 6, 7, 9, 8]},
        "buffer": {"forgets": 0.9}, "clip": {"clip": 0.1},
        "output": {"shift": 1.0}, "loss": {"offset": 0.5}, "loss_in_its_last_bit": {"tiny": 1e-16},
        "metric": {"accuracy": 0.75}, "variable": {"variable": ":4096:8"},
        "betas": {"kind": torch.optim.Adam, "betas": (0.9, 0.99)},
        "other_betas": {"kind": torch.optim.Adam, "betas": (0.9, 0.999)},
    }
    torch.set_num_threads(1)
    for name, given in VARIANTS.items():
        with ls.record(f"{sys.argv[1]}/{name}"):
            train(**given)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("settings")
    script = write_program(folder, PROGRAM)
    done = record_into(folder, script)
    assert done.returncode == 0, done.stderr
    assert "recorder error" not in done.stderr
    return folder


@pytest.mark.parametrize(
    ("run", "verdict", "note"),
    [
        ("rate", "diverged", "settings differ: SGD 0, lr 0.1 became 0.2"),
        ("seed", "diverged", "settings differ: seed 0 became 1125899906842625"),
        ("momentum", "identical", "settings differ: SGD 0, momentum 0 became 1e-300"),
        (
            "rule",
            "diverged",
            "settings differ: SGD 0 in the baseline alone; RMSprop 0 in the run alone",
        ),
        (
            "schedule",
            "diverged",
            "the learning rate differs since step 4 at the latest: 0.1 became",
        ),
        ("order", "diverged", "the data differs since step 8 of rank 0 at the latest"),
        ("output", "diverged", "Model returns other values since step 0 at the latest"),
        (
            "buffer",
            "diverged",
            "an operator at program.py:12 multiplies or blends tensors with 0.9",
        ),
        ("clip", "diverged", "settings differ: max_norm of clip_grad_norm_"),
        ("loss", "diverged", "the logged value train/loss differs since step 3"),
        ("metric", "diverged", "the logged value accuracy differs since step 0: 0.5 became 0.75"),
        (
            "variable",
            "identical",
            "settings differ: CUBLAS_WORKSPACE_CONFIG empty became :4096:8",
        ),
    ],
)
def test_what_differs_is_named(recorded: Path, run: str, verdict: str, note: str) -> None:
    found = compare(open_run(recorded / "base"), open_run(recorded / run))
    assert found.verdict == verdict, found.notes
    assert found.notes[0].startswith(note), found.notes


def test_keys_and_tokens_are_not_recorded(recorded: Path) -> None:
    names = open_run(recorded / "base").events("value")["name"].cast(pa.string()).to_pylist()
    assert f"{SETTINGS}{ENVIRONMENT}TOKENIZERS_PARALLELISM=false" in names
    assert not [name for name in names if "nvapi" in name]


def test_betas(recorded: Path) -> None:
    found = compare(open_run(recorded / "betas"), open_run(recorded / "other_betas"))
    assert found.notes[0] == "settings differ: Adam 0, betas[1] 0.99 became 0.999"


def test_equal_runs_have_equal_settings(recorded: Path) -> None:
    base = open_run(recorded / "base")
    same = compare(base, open_run(recorded / "again"))
    assert same.verdict == "identical"
    assert not any("differ" in note for note in same.notes), same.notes
    near = compare(base, open_run(recorded / "loss_in_its_last_bit"), "tolerance")
    assert near.verdict == "within_tolerance"
