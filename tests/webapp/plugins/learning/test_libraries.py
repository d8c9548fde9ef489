"""Parameters that a library's code leaves unused are information, those of the program warnings."""

from __future__ import annotations

from pathlib import Path

from lanescope.webapp.plugins.learning.dead_parameters import dead_parameters
from lanescope.webapp.runs.run import open_run
from tests.support.recording import record_program

LIBRARY = """
import torch
from torch import nn

class Pooler(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(8, 8)
    def forward(self, x):
        return self.dense(x).tanh()

class Encoder(nn.Module):
    def __init__(self, pools):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.body = nn.Linear(8, 8)
        self.pooler = Pooler()
        self.mask = nn.Parameter(torch.zeros(8))
        self.pools = pools
    def forward(self, x):
        states = self.body(x).relu()
        return states, self.pooler(states) if self.pools else None

class Wrapped(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
    def forward(self, x):
        return self.encoder(x)[0]
"""

PROGRAM = """
import sys
sys.path.insert(0, {path!r})
import torch
from torch import nn
from encoders import Encoder, Wrapped

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder({pools})
        self.unused = nn.Linear(8, 2)
    def forward(self, x):
        return self.encoder(x)[0]

torch.manual_seed(0)
{model}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    {call}(torch.randn(4, 8)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def severities(
    folder: Path, model: str, *, pools: bool = False, call: str = "model"
) -> dict[str, str]:
    """Parameters that no gradient reaches -> severity of the finding that names them."""
    library = folder / "site-packages"
    library.mkdir()
    (library / "encoders.py").write_text(LIBRARY)
    source = PROGRAM.format(path=str(library), model=model, pools=pools, call=call)
    recorded = record_program(folder, source)
    assert recorded.status == 0, recorded.stderr
    found = dead_parameters(open_run(recorded.run))
    return {name: one.severity for one in found for name in one.evidence["parameters"]}


def test_parts_that_a_library_does_not_call(tmp_path: Path) -> None:
    found = severities(tmp_path, "model = Wrapped(Encoder(False))")
    names = ("pooler.dense.weight", "pooler.dense.bias", "norm.weight", "norm.bias", "mask")
    assert found == dict.fromkeys((f"encoder.{name}" for name in names), "info")


def test_results_that_a_library_does_not_use(tmp_path: Path) -> None:
    found = severities(tmp_path, "model = Wrapped(Encoder(True))", pools=True)
    assert set(found.values()) == {"info"}
    assert "encoder.pooler.dense.weight" in found


def test_a_layer_of_the_program_beside_a_library(tmp_path: Path) -> None:
    found = severities(tmp_path, "model = Net()")
    assert found["unused.weight"] == "warning"
    assert found["encoder.pooler.dense.weight"] == "info"


def test_results_that_the_program_does_not_use(tmp_path: Path) -> None:
    found = severities(tmp_path, "model = Net()", pools=True)
    assert found["encoder.pooler.dense.weight"] == "warning"


def test_results_that_the_program_detaches(tmp_path: Path) -> None:
    model = """
model = Encoder(True)
def uses(x):
    states, pooled = model(x)
    return states + pooled.detach()
"""
    found = severities(tmp_path, model, call="uses")
    assert found["pooler.dense.weight"] == "warning"


def test_a_layer_that_the_program_adds_to_a_library_in_vain(tmp_path: Path) -> None:
    found = severities(tmp_path, "model = Wrapped(Encoder(False))\nmodel.head = nn.Linear(8, 2)")
    assert found["head.weight"] == "warning"
    assert found["encoder.mask"] == "info"


def test_a_loss_that_depends_on_nothing_of_a_library_but_one_layer(tmp_path: Path) -> None:
    model = """
model = Encoder(True)
def uses(x):
    states, pooled = model(x)
    return (states > 0).float() + model.mask
"""
    found = severities(tmp_path, model, pools=True, call="uses")
    assert found["body.weight"] == found["pooler.dense.weight"] == "warning"
