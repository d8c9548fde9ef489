"""Formulas of references in double precision: linear layers, rotary embedding, attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

MAX_QUERIES = 64
"""Queries of a sample that are computed again, each with all keys of all heads."""

PROJECTION_NAMES = (("q_proj", "k_proj", "v_proj", "o_proj"), ("wq", "wk", "wv", "wo"))

Heads = tuple[Tensor, Tensor, Tensor]
"""q (heads, queries, d), k and v (key heads, tokens, d) of one sample."""


def evenly_spaced(many: int, most: int) -> Tensor:
    """Returns up to `most` of 0..many-1, evenly spaced, with the first and the last."""
    return torch.linspace(0, many - 1, min(many, most)).round().long()


def linear(module: torch.nn.Module, name: str, x: Tensor) -> Tensor:
    """Applies the module's linear layer of this name to x in double precision."""
    layer = getattr(module, name, None)
    if type(layer) is not torch.nn.Linear:
        raise TypeError(f"{name!r} is {type(layer).__name__}, expected torch.nn.Linear; name it")
    bias = None if layer.bias is None else layer.bias.detach().double()
    return F.linear(x, layer.weight.detach().double(), bias)


def angles(places: Tensor, features: int, base: float) -> Tensor:
    """Returns rotary angles (..., features / 2) of positions (...)."""
    even = torch.arange(0, features, 2, device=places.device, dtype=torch.float64)
    return places.unsqueeze(-1) * base ** (-even / features)


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Rotates pairs of the last dimension of x (..., d); cos and sin are (..., d/2)."""
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attended(
    module: Any,
    inputs: Sequence[Any],
    keywords: dict[str, Any],
    output: Any,
    causal: bool,
    scale: float | None,
    heads: int | None,
    projections: Sequence[str],
) -> tuple[Tensor, Tensor] | None:
    """Returns (output, reference) of some queries of the last sample; None: not comparable."""
    if any(keywords.get(name) is not None for name in ("past_key_values", "past_key_value")):
        return None  # it uses keys of earlier calls
    given = [x for x in (*inputs, *keywords.values()) if torch.is_tensor(x)]
    out = output[0] if isinstance(output, (tuple, list)) else output
    names = tuple(projections) or next((n for n in PROJECTION_NAMES if hasattr(module, n[0])), ())
    if names:
        x = given[0][-1].double()  # the last sample, because it shows wrong broadcasts
        q, k, v = _projected(module, names, x, heads)
        turn = keywords.get("position_embeddings")
        if turn is not None:
            cos, sin = (one.double()[-1, :, : q.shape[-1] // 2] for one in turn)
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        masks = given[1:]
    elif len(given) >= 3:
        q, k, v = (one[-1].double() for one in given[:3])
        masks = given[3:]
    else:
        raise TypeError(f"called with {len(given)} tensors, expected q, k and v or projections")
    chosen = evenly_spaced(q.shape[1], MAX_QUERIES).to(q.device)
    mask = next((m for m in masks if m.dim() >= 2 and m.shape[-1] == k.shape[1]), None)
    made = _attended((q, k, v), chosen, causal, scale, mask)
    if names:
        merged = made.transpose(0, 1).flatten(1)
        return out[-1][chosen], linear(module, names[3], merged) if names[3] else merged
    mine = out[-1]
    if mine.dim() == 2:  # (tokens, heads * d)
        return mine[chosen], made.transpose(0, 1).flatten(1)
    if mine.shape[0] != q.shape[0] and mine.shape[1] == q.shape[0]:  # (tokens, heads, d)
        return mine[chosen], made.transpose(0, 1)
    return mine[:, chosen], made


def _projected(module: Any, names: Sequence[str], x: Tensor, heads: int | None) -> Heads:
    made = [linear(module, name, x) for name in names[:3]]
    many = heads or getattr(module, "num_heads", None)
    each = getattr(module, "head_dim", None)
    if isinstance(many, int):
        each = made[0].shape[-1] // many
    if not isinstance(each, int):
        raise TypeError("the module has neither num_heads nor head_dim; give heads")
    q, k, v = (one.reshape(len(one), -1, each).transpose(0, 1) for one in made)
    return q, k, v


def _attended(
    tensors: Heads, chosen: Tensor, causal: bool, scale: float | None, mask: Tensor | None
) -> Tensor:
    """Returns attention of the chosen queries: (heads, queries, d)."""
    q, k, v = tensors
    groups = q.shape[0] // k.shape[0]
    k, v = (one.repeat_interleave(groups, 0) for one in (k, v))
    scores = q[:, chosen] @ k.transpose(-1, -2)
    scores = scores * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if mask is not None:
        mine = mask if mask.dim() < 4 else mask[-1]  # (heads or 1, queries, keys)
        mine = mine[..., chosen, :] if mine.shape[-2] > 1 else mine
        if mine.dtype == torch.bool:
            scores = scores.masked_fill(~mine, -torch.inf)
        else:
            scores = scores + mine.double()
    if causal:
        keys = torch.arange(k.shape[1], device=k.device)
        scores = scores.masked_fill(keys > chosen[:, None], -torch.inf)
    return scores.softmax(-1) @ v
