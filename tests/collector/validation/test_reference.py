"""The built-in validators: silent on right modules, with both values on planted wrong ones."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lanescope.collector import reference
from lanescope.collector.reference import Reference
from lanescope.collector.validation.validators import ENTRY_POINTS, Event
from tests.support.recording import record_program


def failure(checked: Reference, module: nn.Module, *inputs: Any, **keywords: Any) -> str:
    """What the validator has against a call of the module; "" is nothing."""
    torch.manual_seed(0)
    with torch.no_grad():
        outputs = module(*inputs, **keywords)
        try:
            checked(Event("", 0, 0, 0, 0, keywords, module), inputs, outputs)
        except AssertionError as error:
            return str(error)
    return ""


class Norm(nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2, 32))
        self.variance_epsilon = 1e-6
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "centred":
            x = x - x.mean(-1, keepdim=True)
        size = x.pow(2).sum(-1, keepdim=True) if self.fault == "sum" else x.pow(2).mean(-1, True)
        return x * torch.rsqrt(size + self.variance_epsilon) * self.weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rms_norm(dtype: torch.dtype) -> None:
    x = torch.randn(4, 700, 32).to(dtype)
    assert failure(reference.rms_norm(), Norm().to(dtype), x) == ""
    assert failure(reference.rms_norm(), nn.RMSNorm(32).to(dtype), x) == ""
    assert "of its norm, expected at most" in failure(
        reference.rms_norm(), Norm("sum").to(dtype), x
    )
    assert "differs" in failure(reference.rms_norm(), Norm("centred").to(dtype), x + 1)
    assert "differs" in failure(reference.rms_norm(offset=1.0), Norm().to(dtype), x)  # as Gemma's


class Gated(nn.Module):
    def __init__(self, fault: str = "", names: str = "w1 w3 w2", dropout: float = 0.0) -> None:
        super().__init__()
        self.names = names.split()
        for name, shape in zip(self.names, ((16, 48), (16, 48), (48, 16)), strict=True):
            setattr(self, name, nn.Linear(*shape, bias=False))
        self.fault, self.dropout = fault, nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        gate, up, down = (getattr(self, name) for name in self.names)
        if self.fault == "exchanged":
            gate, up = up, gate
        act = F.gelu if self.fault == "gelu" else F.silu
        made: Tensor = self.dropout(down(act(gate(x)) * up(x)))
        return made


def test_swiglu() -> None:
    x = torch.randn(2, 5, 16)
    for names in ("w1 w3 w2", "gate_proj up_proj down_proj"):
        assert failure(reference.swiglu(), Gated(names=names), x) == ""
    named = reference.swiglu(gate="a", up="b", down="c")
    assert failure(named, Gated(names="a b c"), x) == ""
    for fault in ("exchanged", "gelu"):
        assert "differs from the reference by" in failure(reference.swiglu(), Gated(fault), x)
    assert failure(reference.swiglu(), Gated(dropout=0.5), x) == ""  # training: cannot be followed
    assert "differs" in failure(reference.swiglu(), Gated("gelu", dropout=0.5).eval(), x)
    with pytest.raises(TypeError, match=r"'gate_proj' is NoneType, expected torch.nn.Linear"):
        failure(reference.swiglu(), Norm(), torch.randn(2, 32))


class Rotary(nn.Module):
    """Turns x (batch, heads, tokens, d)."""

    def __init__(self, base: float = 10000.0, interleaved: bool = False, late: int = 0) -> None:
        super().__init__()
        self.base, self.interleaved, self.late = base, interleaved, late

    def forward(self, x: Tensor) -> Tensor:
        d = x.shape[-1]
        frequency = 1.0 / self.base ** (torch.arange(0, d, 2) / d)
        angle = torch.outer(torch.arange(x.shape[-2]) + self.late, frequency)
        if self.interleaved:
            turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.polar(
                torch.ones_like(angle), angle
            )
            return torch.view_as_real(turned).flatten(-2)
        cos, sin = (torch.cat([f, f], -1) for f in (angle.cos(), angle.sin()))
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin


class Tables(nn.Module):
    """cos and sin as in transformers."""

    def __init__(self, fault: bool = False) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        d = x.shape[-1]
        frequency = 1.0 / 10000 ** (torch.arange(0, d, 2) / (d - 2 if self.fault else d))
        angle = position_ids[..., None].float() * frequency
        wide = torch.cat([angle, angle], -1)
        return wide.cos(), wide.sin()


def test_rotary() -> None:
    x = torch.randn(2, 3, 40, 16)
    assert failure(reference.rotary(), Rotary(), x) == ""
    assert failure(reference.rotary(interleaved=True), Rotary(interleaved=True), x) == ""
    assert failure(reference.rotary(base=5e5), Rotary(5e5), x) == ""
    assert "differs" in failure(reference.rotary(), Rotary(interleaved=True), x)
    assert "differs" in failure(reference.rotary(), Rotary(5e5), x)
    assert "differs" in failure(reference.rotary(), Rotary(late=1), x)
    places = torch.arange(9)[None].expand(2, -1)
    assert failure(reference.rotary(), Tables(), torch.randn(2, 9, 16), places) == ""
    assert "differs" in failure(reference.rotary(), Tables(True), torch.randn(2, 9, 16), places)


class Attention(nn.Module):
    """Of q, k, v (batch, heads, tokens, d)."""

    def __init__(self, fault: str = "", causal: bool = True) -> None:
        super().__init__()
        self.fault, self.causal = fault, causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        groups, many = q.shape[1] // k.shape[1], q.shape[-2]
        if self.fault == "heads in the wrong order":
            k, v = (x.repeat(1, groups, 1, 1) for x in (k, v))
        else:
            k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
        size = q.shape[-1] if self.fault == "scale" else math.sqrt(q.shape[-1])
        scores = q @ k.transpose(-1, -2) / size
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        if self.causal:
            ahead = 2 if self.fault == "mask" else 1
            future = torch.ones(many, many, dtype=torch.bool).triu(ahead)
            scores = scores.masked_fill(future, -torch.inf)
        return scores.softmax(-1) @ v


class SelfAttention(nn.Module):
    """Of hidden states, with projections and two query heads per key head."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.num_heads, self.inner = 4, Attention(fault)
        self.wq, self.wo = nn.Linear(32, 32), nn.Linear(32, 32)
        self.wk, self.wv = nn.Linear(32, 16), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, 8)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        made: Tensor = self.wo(self.inner(q, k, v).transpose(1, 2).flatten(2))
        return made


def test_attention() -> None:
    q, k = torch.randn(2, 4, 90, 8), torch.randn(2, 2, 90, 8)
    v = torch.randn(2, 2, 90, 8)
    check = reference.attention(causal=True)
    assert failure(check, Attention(), q, k, v) == ""
    for fault in ("heads in the wrong order", "scale", "mask"):
        assert "differs from the reference by" in failure(check, Attention(fault), q, k, v), fault
    assert "differs" in failure(check, Attention(causal=False), q, k, v)
    free = reference.attention(causal=False)
    mask = torch.rand(2, 1, 90, 90) > 0.3
    assert failure(free, Attention(causal=False), q, k, v) == ""
    assert failure(free, Attention(causal=False), q, k, v, mask) == ""
    assert "differs" in failure(free, Attention("scale", causal=False), q, k, v, mask)
    x = torch.randn(2, 20, 32)
    assert failure(check, SelfAttention(), x) == ""
    assert "differs" in failure(check, SelfAttention("heads in the wrong order"), x)


def test_initial_weights() -> None:
    torch.manual_seed(0)
    ids, x = torch.arange(4), torch.randn(2, 64)
    assert failure(reference.initialised(), nn.Linear(64, 256), x) == ""
    assert failure(reference.initialised(), nn.Embedding(100, 64, padding_idx=0), ids) == ""
    small = nn.Linear(64, 256)
    nn.init.normal_(small.weight, std=0.02)
    assert failure(reference.initialised(std=0.02), small, x) == ""
    words = failure(reference.initialised(), small, x)
    assert words.startswith("initial weight of Linear (256, 64) has deviation 0.0")
    assert "expected 0.07217 +- " in words
    assert "has deviation 1.0" in failure(
        reference.initialised(std=0.02), nn.Embedding(99, 64), ids
    )
    shifted = nn.Linear(64, 256)
    nn.init.normal_(shifted.weight, mean=0.05, std=0.02)
    assert "has mean 0.0" in failure(reference.initialised(std=0.02), shifted, x)


def test_a_module_is_looked_at_now_and_then() -> None:
    check, norm, other = reference.rms_norm(every=10), Norm(), Norm()
    assert [step for step in range(25) if check.due(norm, step)] == [0, 10, 20]
    assert check.due(other, 24)
    once = reference.initialised()
    assert [step for step in range(0, 10**6, 10**5) if once.due(norm, step)] == [0]


@pytest.mark.slow
def test_the_modules_of_transformers_are_right() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as llama

    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=96,
        attn_implementation="eager",
    )
    x, places = torch.randn(2, 12, 64), torch.arange(12)[None].expand(2, -1)
    assert failure(reference.rms_norm(), llama.LlamaRMSNorm(64), x) == ""
    assert failure(reference.swiglu(), llama.LlamaMLP(config), x) == ""
    tables = llama.LlamaRotaryEmbedding(config)
    assert failure(reference.rotary(), tables, x, places) == ""
    future = torch.full((12, 12), -torch.inf).triu(1).expand(2, 1, 12, 12)
    turn = tables(x, places)
    attention = llama.LlamaAttention(config, 0)
    for causal in (True, False):  # the mask says the same
        check = reference.attention(causal=causal)
        given = {"hidden_states": x, "position_embeddings": turn, "attention_mask": future}
        assert failure(check, attention, **given) == ""
    attention.scaling *= 2
    assert "differs" in failure(reference.attention(causal=True), attention, **given)


PROGRAM = """
    import torch
    import lanescope.collector as ls
    from lanescope.collector import reference
    from lanescope.collector.gradcheck import gradcheck
    from rightly import Right

    class Wrong(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8))
            self.eps = 1e-6
        def forward(self, x):
            return torch.nn.functional.layer_norm(x, (8,)) * self.weight

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(context, x, weight):
            context.save_for_backward(x, weight)
            return x * weight
        @staticmethod
        def backward(context, gradient):
            x, weight = context.saved_tensors
            return gradient * weight, 2 * (gradient * x).sum(0)

    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8))
            self.inner = torch.nn.Identity()
        def forward(self, x):
            return Doubled.apply(self.inner(x), self.weight)

    ls.validator(Wrong)(reference.rms_norm(every=2))
    ls.validator(Scale)(gradcheck())
    ls.validator(Right)(gradcheck())
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), Wrong(), Right(), Scale(), torch.nn.Linear(8, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    for step in range(5):
        model(torch.randn(16, 8) + 2).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""

PACKAGE = """
import torch
import lanescope.collector as ls
from lanescope.collector import reference

class Right(torch.nn.RMSNorm):
    def __init__(self):
        super().__init__(8)

def register():
    ls.validator(Right)(reference.rms_norm())
    ls.validator(torch.nn.Linear)(reference.initialised())
"""


@pytest.mark.slow
def test_recorded_and_registered_by_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "installed"
    files = {
        "rightly.py": PACKAGE,
        "rightly-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: rightly\nVersion: 1.0\n",
        "rightly-1.0.dist-info/entry_points.txt": (
            f"[{ENTRY_POINTS}]\nrightly = rightly:register\nbroken = no_such_package\n"
        ),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    recorded = record_program(tmp_path, PROGRAM)
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    by_name = {one.evidence["validator"]: one for one in recorded.findings("validator")}
    assert sorted(by_name) == ["broken", "gradcheck", "rms_norm"]
    assert by_name["gradcheck"].evidence["target"] == "Scale"
    assert by_name["gradcheck"].evidence["times"] == 1
    words = "the gradient of output 0 by weight that backward computes is not the one of finite"
    assert words in by_name["gradcheck"].title
    # What a validator runs is not recorded: neither its phases nor the modules it calls.
    phases = [row["name"] for row in recorded.rows("phase") if row["name"] == "backward"]
    assert len(phases) == 5
    assert {row["module"] for row in recorded.rows("op") if "3" in row["module"]} == {"3"}
    assert by_name["rms_norm"].evidence["target"] == "Wrong"
    assert by_name["rms_norm"].evidence["times"] == 3  # steps 0, 2 and 4
    assert "differs from the reference by" in by_name["rms_norm"].title
    assert "No module named 'no_such_package'" in by_name["broken"].title
