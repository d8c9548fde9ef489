"""Validators that compare modules with a reference computation in double precision.

    import lanescope.collector as ls
    from lanescope.collector import reference

    ls.validator(MyNorm)(reference.rms_norm())
    ls.validator(MyMLP)(reference.swiglu(gate="w1", up="w3", down="w2"))
    ls.validator(MyAttention)(reference.attention(causal=True))
    ls.validator(torch.nn.Linear)(reference.initialised(std=0.02))

A module is checked in its first call and then once in `every` steps, for some of its rows. It fails
if the norm of the difference exceeds a share of the reference's norm, which is several times the
rounding error of the coarsest dtype of the call. Calls without a reference (dropout in training, a
key-value cache, sharded weights, values that are not finite) are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .validation.reference_formulas import angles, attended, evenly_spaced, linear, rotated
from .validation.validators import Event, NowAndThen

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Allowed norm of the difference, as a share of the reference's norm. float32 may mean TF32."""

_MAX_ROWS = 256
"""Rows of a call that are computed again, evenly spaced."""

SIGMAS = 8.0
"""Allowed deviation of initial weights from the intended distribution, in sampling errors."""

Expected = Callable[[torch.nn.Module, Sequence[Any], dict[str, Any], Tensor], Any]
"""(module, inputs, keywords, output) -> (part of the output, its reference), or None: not
comparable."""


class Reference(NowAndThen):
    """A validator of modules, made by the functions of this file."""

    def __init__(
        self, name: str, expected: Expected, *, every: int = 100, tolerance: float | None = None
    ) -> None:
        super().__init__(every)
        self.__name__ = name
        self._expected = expected
        self._tolerance = tolerance

    def __call__(self, event: Event, inputs: Sequence[Any], outputs: Any) -> None:
        """Raises AssertionError with both values where they differ."""
        module = event.module
        if _drops(module) or is_sharded(module):
            return
        pair = self._expected(module, inputs, event.keywords, outputs)
        if pair is None:
            return
        found, wanted = pair
        if found.shape != wanted.shape:
            raise AssertionError(f"shape {tuple(found.shape)}, expected {tuple(wanted.shape)}")
        seen = [one for one in (*inputs, *event.keywords.values(), found) if _floating(one)]
        allowed = self._tolerance or max(TOLERANCE.get(one.dtype, 5e-2) for one in seen)
        _compare(found.double(), wanted, allowed)


def rms_norm(
    *, weight: str = "weight", eps: float | None = None, offset: float = 0.0, every: int = 100
) -> Reference:
    """Checks x / sqrt(mean(x^2) + eps) * (offset + weight), over the last dimension.

    `eps` defaults to the module's (`eps`, `variance_epsilon`); `offset` is 1 for weights that start
    at zero, as Gemma's.
    """

    def expected(module: Any, inputs: Any, keywords: Any, output: Any) -> Any:
        (x,), wide = _tensors(inputs, keywords)[:1], getattr(module, weight, None)
        small = eps if eps is not None else _first(module, "eps", "variance_epsilon")
        small = torch.finfo(x.dtype).eps if small is None else float(small)
        rows, found = _rows(x), _rows(output)
        made = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + small)
        return found, made if wide is None else made * (offset + wide.detach().double())

    return Reference("rms_norm", expected, every=every)


def swiglu(*, gate: str = "", up: str = "", down: str | None = None, every: int = 100) -> Reference:
    """Checks down(silu(gate(x)) * up(x)). Names default to those of Llama: gate_proj or w1, ...

    `down=""`: the module ends with the product. Raises TypeError, which becomes a finding, if one
    of the layers is not a torch.nn.Linear.
    """
    known = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))

    def expected(module: Any, inputs: Any, keywords: Any, output: Any) -> Any:
        names = (gate, up, "down_proj" if down is None else down)
        if not gate:
            names = next((n for n in known if hasattr(module, n[0])), known[0])
        x = _rows(_tensors(inputs, keywords)[0])
        made = F.silu(linear(module, names[0], x)) * linear(module, names[1], x)
        return _rows(output), linear(module, names[2], made) if names[2] else made

    return Reference("swiglu", expected, every=every)


def rotary(
    *, base: float = 10000.0, interleaved: bool = False, tokens: int = -2, every: int = 100
) -> Reference:
    """Checks the rotation of pairs of features by position * base^(-2i/d).

    For modules that rotate a tensor (positions along dimension `tokens`, or given as a tensor of
    integers), and for those that return the tables (cos, sin) of shape (batch, tokens, d).
    `interleaved`: pairs are neighbours, else i and i + d/2.
    """

    def expected(module: Any, inputs: Any, keywords: Any, output: Any) -> Any:
        given = [*inputs, *keywords.values()]
        x = _tensors(inputs, keywords)[0]
        places = next((p for p in given if torch.is_tensor(p) and not p.is_floating_point()), None)
        if isinstance(output, (tuple, list)) and places is not None:
            angle = angles(places.double(), output[0].shape[-1], base)
            wide = angle.repeat_interleave(2, -1) if interleaved else torch.cat([angle, angle], -1)
            return torch.stack([output[0], output[1]]), torch.stack([wide.cos(), wide.sin()])
        if not torch.is_tensor(output):
            return None
        if places is None:
            places = torch.arange(x.shape[tokens], device=x.device)
        if places.dim() != 1:
            return None
        angle = angles(places.double(), x.shape[-1], base)
        for _ in range(-1 - (tokens if tokens < 0 else tokens - x.dim()) - 1):
            angle = angle.unsqueeze(-2)  # dimensions between the tokens and the features
        return output, rotated(x.double(), angle.cos(), angle.sin(), interleaved)

    return Reference("rotary", expected, every=every)


def attention(
    *,
    causal: bool,
    scale: float | None = None,
    heads: int | None = None,
    projections: Sequence[str] = (),
    every: int = 100,
) -> Reference:
    """Checks softmax(q k^T scale + mask) v; the shapes give the query heads per key head.

    For modules called with q, k, v of shape (batch, heads, tokens, d), and for those called with
    hidden states (batch, tokens, features) that hold q, k, v and output projections (`q_proj`,
    ..., or `wq`, ..., or as named). `heads` defaults to `num_heads`, or features over `head_dim`;
    `position_embeddings=(cos, sin)` rotates q and k as in transformers. `scale` defaults to
    1/sqrt(d). A mask is a tensor of numbers to add, or of booleans, true where a query attends.
    """

    def follow(module: Any, inputs: Any, keywords: Any, output: Any) -> Any:
        return attended(module, inputs, keywords, output, causal, scale, heads, projections)

    return Reference("attention", follow, every=every)


def initialised(*, std: float | None = None, mean: float = 0.0, name: str = "weight") -> Reference:
    """Checks mean and standard deviation of the weight in the module's first call.

    `std` defaults to torch's: 1 for an Embedding, 1/sqrt(3 fan_in) for a Linear. For runs that
    start from fresh weights; an embedding's padding row is left out.
    """

    def expected(module: Any, inputs: Any, keywords: Any, output: Any) -> Any:
        weight = getattr(module, name).detach().double()
        padding = getattr(module, "padding_idx", None)
        if padding is not None:
            rows = torch.arange(len(weight), device=weight.device) != padding
            weight = weight[rows]
        many = weight.numel()
        wanted = std
        if wanted is None:
            own = isinstance(module, torch.nn.Embedding)
            wanted = 1.0 if own else 1 / math.sqrt(3 * weight.shape[-1])
        if many < 64:
            return None
        found = (float(weight.std()), float(weight.mean()))
        # Standard errors of deviation and mean for a normal distribution, the widest common one.
        errors = (wanted / math.sqrt(2 * many), wanted / math.sqrt(many))
        kind = type(module).__name__
        for word, value, meant, error in zip(
            ("deviation", "mean"), found, (wanted, mean), errors, strict=True
        ):
            allowed = SIGMAS * error + 0.01 * wanted
            if not abs(value - meant) <= allowed:
                raise AssertionError(
                    f"initial {name} of {kind} {tuple(weight.shape)} has {word} {value:.4g}, "
                    f"expected {meant:.4g} +- {allowed:.2g}"
                )
        return None

    return Reference("initialised", expected, every=1 << 62)


def _compare(found: Tensor, wanted: Tensor, allowed: float) -> None:
    if not bool(wanted.isfinite().all()):
        return
    difference = found - wanted
    norm = float(wanted.norm())
    share = float(difference.norm()) / norm if norm else float(difference.norm())
    if share <= allowed:
        return
    worst = int(difference.abs().nan_to_num(torch.inf).argmax())
    there, meant = float(found.flatten()[worst]), float(wanted.flatten()[worst])
    raise AssertionError(
        f"differs from the reference by {share:.2g} of its norm, expected at most {allowed:g}; "
        f"farthest {there:.4g}, expected {meant:.4g}"
    )


def _drops(module: torch.nn.Module) -> bool:
    """Returns True if the module applies dropout now."""
    if not module.training:
        return False
    inner = any(
        isinstance(m, torch.nn.modules.dropout._DropoutNd) and m.p for m in module.modules()
    )
    return inner or bool(_first(module, "attention_dropout", "dropout_p", "attn_dropout"))


def is_sharded(module: torch.nn.Module) -> bool:
    """Returns True if this rank has only a part of the module's weights, or none yet."""
    weights = list(module.parameters())
    return any(hasattr(w, "full_tensor") or w.is_meta for w in weights)


def _first(module: torch.nn.Module, *names: str) -> Any:
    found = (getattr(module, name, None) for name in names)
    return next((one for one in found if isinstance(one, (int, float))), None)


def _floating(value: Any) -> bool:
    return torch.is_tensor(value) and value.is_floating_point()


def _tensors(inputs: Sequence[Any], keywords: dict[str, Any]) -> list[Tensor]:
    found = [one for one in (*inputs, *keywords.values()) if _floating(one)]
    if not found:
        raise TypeError("the module was called without a tensor of floating point")
    return found


def _rows(x: Tensor) -> Tensor:
    """Returns some rows of x, (n, features), in double precision."""
    rows = x.reshape(-1, x.shape[-1])
    return rows[evenly_spaced(len(rows), _MAX_ROWS).to(rows.device)].double()
