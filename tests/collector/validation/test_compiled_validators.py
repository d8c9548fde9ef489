"""Validators of modules that torch.compile captured: looked at on request, and otherwise said."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.analysis.findings import Finding
from tests.collector.engines.test_compile import BACKENDS
from tests.support.processes import fork_program
from tests.support.recording import record_program, write_program

# Two layers that share one graph of fullgraph=True, the second one wrong; one in a
# checkpoint; one whose graph breaks inside; and one that is called as it is, too.
PROGRAM = """
    import sys, torch
    import lanescope.collector as ls
    from lanescope.collector import reference
    from torch._dynamo.utils import counters
    from torch.utils.checkpoint import checkpoint

    backend, kind, asked = sys.argv[1:]
    torch.manual_seed(3)
    torch.set_num_threads(1)

    class Norm(torch.nn.Module):
        def __init__(self, factor=1.0):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8))
            self.eps, self.factor = 1e-6, factor
        def forward(self, x, scale=None):
            size = self.factor * x.square().mean(-1, keepdim=True)
            return x * torch.rsqrt(size + self.eps) * self.weight

    class Kept(Norm):
        pass

    class Layer(torch.nn.Module):
        def __init__(self, norm):
            super().__init__()
            self.norm = norm
            self.linear = torch.nn.Linear(8, 8)
        def forward(self, x, turn):
            return torch.softmax(self.linear(self.norm(x)), -1)

    class Checkpointed(Layer):
        def forward(self, x, turn):
            return checkpoint(super().forward, x, turn, use_reentrant=False)

    class Broken(Norm):
        def forward(self, x):
            y = super().forward(x)
            torch._dynamo.graph_break()
            return y * 1

    compiled = asked == "asked"
    if asked != "none":
        ls.validator(Norm, compiled=compiled)(reference.rms_norm(every=1))
        ls.validator(Kept, compiled=compiled)(reference.rms_norm(every=1))
        @ls.validator("aten::softmax")
        def rows(event, inputs, outputs):
            assert outputs.sum(-1).sub(1).abs().max() < 1e-5

    layers = [Layer(Norm(1.1 if kind == "fault" and n == 1 else 1.0)) for n in range(2)]
    layers.append(Checkpointed(Kept()))
    x = torch.randn(4, 8)
    for layer in layers:
        layer.compile(backend=backend, fullgraph=True)
    for turn in range(2):
        y = x
        for layer in layers:
            y = layer(y, turn)
        y.square().mean().backward()
        print(y.sum().item().hex(), x.sum().item().hex())
    broken = torch.nn.Sequential(Broken(1.1 if kind == "fault" else 1.0), torch.nn.Linear(8, 8))
    print(torch.compile(broken, backend=backend)(x).sum().item().hex())
    print(layers[0].norm(x).sum().item().hex())
    print(counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))
"""


def validated(folder: Path, *arguments: str) -> tuple[list[Finding], list[str]]:
    """What is found, and the lines that the program printed."""
    recorded = record_program(folder, PROGRAM, arguments=arguments)
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    assert not [name for name in recorded.op_names() if name.startswith("lanescope")]
    return recorded.findings("validator"), recorded.stdout.splitlines()


CHECKPOINT = (
    "Validator rms_norm cannot look at Kept inside of compiled code (norm: it is in a region that "
    "is captured apart, as a checkpoint is). Set TORCH_COMPILE_DISABLE=1 to run it uncompiled."
)
FUSED = (
    "Validator rows does not see aten::softmax where torch.compile fuses it with other operators. "
    "Record with --compile-backend aot_eager, which runs each on its own."
)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_asked_for_they_look_at_what_compiled_code_computed(tmp_path: Path, backend: str) -> None:
    found, lines = validated(tmp_path, backend, "fault", "asked")
    # Numbers, graphs and breaks are those of the program without validators and recorder.
    program = write_program(tmp_path, PROGRAM)
    bare = fork_program(program, backend, "fault", "none", timeout=300)
    assert lines == bare.stdout.splitlines()
    said = {f.evidence["target"]: f for f in found if f.severity == "error"}
    assert list(said) == ["Norm"]
    # The second layer and the one that broke; the first is right, in compiled code and out.
    assert said["Norm"].evidence["times"] == 2
    assert "differs from the reference by 0.047 of its norm" in said["Norm"].title
    titles = [f.title for f in found if f.severity == "info" and "Kept" in f.title]
    assert titles == [CHECKPOINT]
    fused = [f.title for f in found if f.evidence["target"] == "aten::softmax"]
    assert fused == ([FUSED] if backend == "inductor" else [])


@pytest.mark.slow
def test_the_clean_twin(tmp_path: Path) -> None:
    found, _ = validated(tmp_path, "aot_eager", "clean", "asked")
    assert [f.severity for f in found] == ["info", "info"]  # those of the checkpoint


@pytest.mark.slow
def test_not_asked_for_they_say_so(tmp_path: Path) -> None:
    found, _ = validated(tmp_path, "aot_eager", "fault", "not-asked")
    (failed,) = [f for f in found if f.severity == "error"]
    assert failed.evidence["times"] == 1  # where the graph broke, modules are called as ever
    assert [f.title for f in found if f.severity == "info" and "at Norm" in f.title] == [
        "Validator rms_norm does not look at Norm inside of compiled code (norm). Register it with "
        "compiled=True."
    ]
