"""Private names of torch and CPython: looked up in one way, and none is needed to record."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanescope.collector.format.names import MISSING
from lanescope.webapp import open_run
from tests.support import ROOT
from tests.support.recording import UNCOMPACTED, record_program, run_program

PROGRAM = Path(__file__).with_name("without_private_names.py")

DIRECT = {
    "os._exit": "documented",
    "sys._current_frames": "documented",
    "sys._getframe": "documented, and in CPython only, as is the recorder",
    "torch.utils._python_dispatch.TorchDispatchMode": "torch's documented way to see operators",
    "torch._dynamo.comptime.comptime": "traced by Dynamo, which knows it by this name",
    "torch._C._functorch.peek_interpreter_stack": "what it raises is a reason why a call is unseen",
    "torch.utils._pytree.tree_flatten": "of ls.gradcheck, which the program itself calls",
    "torch.utils._pytree.tree_unflatten": "of ls.gradcheck, which the program itself calls",
    "torch.nn.modules.dropout._DropoutNd": "of reference modules, which the program itself calls",
}
"""Private names that are used without `optional`, and why."""


def _without(*arguments: str, environment: dict[str, str]) -> list[dict[str, object]]:
    done = run_program([sys.executable, str(PROGRAM), *arguments], environment=environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", ["all", *(pytest.param(one, marks=pytest.mark.soak) for one in ("once", "each"))]
)
def test_a_version_without_private_names_is_recorded(
    tmp_path: Path, native: Path, how: str
) -> None:
    environment = {**UNCOMPACTED, "PYTHONPATH": str(ROOT)}
    engines = ("native", "portable")
    found = _without(str(tmp_path), how, *engines, environment=environment)
    assert {one["engine"] for one in found} == set(engines)
    for one in found:
        run = open_run(str(one["run"]))
        assert one["status"] == 0, one
        assert one["result"] == one["expected"], one
        assert run.counts["op"] or "operators" in str(one["missing"]), one
        coverage = {reason for reason in run.coverage if reason.startswith(MISSING)}
        for reason in one["missing"]:
            assert reason in coverage, one
            assert any(reason.removeprefix(MISSING) in said for said in run.warnings), one
        assert not run.coverage.get("recorder_errors"), one


TRACES = """
    import torch, torch.fx
    from torch import nn
    from lanescope.collector.recorder import private_names
    find = private_names._find  # of a torch without the flag that older ones have
    private_names._find = lambda module, name: (
        None if name == "_is_fx_tracing_flag" else find(module, name)
    )
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        def forward(self, x):
            return self.inner(x) + 1
    model = Model()
    torch.fx.symbolic_trace(model)
    model(torch.ones(1, 4))
"""


def test_a_trace_of_the_programs_own_is_known_without_its_flag(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, TRACES, "--trace-model")
    assert recorded.status == 0, recorded.stderr
    assert {row["graph"] for row in recorded.rows("fx")} == {"1 Model"}
    assert not any("torch.fx" in reason for reason in open_run(recorded.run).coverage)


def test_private_names_are_looked_up_with_a_fallback() -> None:
    files = sorted((ROOT / "collector").rglob("*.py"))
    found = {
        (name, str(path.relative_to(ROOT)))
        for path in files
        for name in _private_names(ast.parse(path.read_text()))
    }
    assert {name for name, _ in found} == set(DIRECT), sorted(found)


def _private_names(tree: ast.Module) -> Iterator[str]:
    """Dotted names with a private part that begin with a module imported from elsewhere."""
    known: dict[str, str] = {}
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                known[alias.asname or whole] = whole
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                name = known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                if _is_private(name):
                    yield name
    outermost = [n for n in nodes if isinstance(n, (ast.Assign, ast.AnnAssign))]
    for node in outermost:  # module: Any = torch.cuda
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        name = _dotted(node.value, known)
        if name and len(targets) == 1 and isinstance(targets[0], ast.Name):
            known.setdefault(targets[0].id, name)
    inner = {id(n.value) for n in nodes if isinstance(n, ast.Attribute)}
    for node in nodes:
        read = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        if isinstance(node, ast.Attribute) and read and id(node) not in inner:
            name = _dotted(node, known)
            if name and _is_private(name):
                yield name


def _dotted(node: ast.expr | None, known: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, known)
        return owner and f"{owner}.{node.attr}"
    return None


def _is_private(name: str) -> bool:
    """Whether a part behind the package is private: `_thread` itself is CPython's public module."""
    if name.startswith("lanescope."):
        return False
    parts = name.split(".")[1:]
    return any(part.startswith("_") and not part.startswith("__") for part in parts)
