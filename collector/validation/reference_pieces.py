"""What references are made of: some of the rows, a linear layer, pairs of features turned."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def spread(many: int, most: int) -> Tensor:
    """Up to `most` of 0..many-1, the first and the last among them."""
    return torch.linspace(0, many - 1, min(many, most)).round().long()


def linear(module: torch.nn.Module, name: str, x: Tensor) -> Tensor:
    """What the module's linear layer of this name makes of x in double precision."""
    layer = getattr(module, name, None)
    if type(layer) is not torch.nn.Linear:
        raise TypeError(f"{name!r} is {type(layer).__name__}, expected torch.nn.Linear; name it")
    bias = None if layer.bias is None else layer.bias.detach().double()
    return F.linear(x, layer.weight.detach().double(), bias)


def angles(places: Tensor, features: int, base: float) -> Tensor:
    """(..., features / 2) of positions (...)."""
    even = torch.arange(0, features, 2, device=places.device, dtype=torch.float64)
    return places.unsqueeze(-1) * base ** (-even / features)


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Pairs of the last dimension of x (..., d) turned; cos and sin are (..., d/2)."""
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
