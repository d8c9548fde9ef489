"""Computes the FLOPs of an operator's call from its shapes.

The formulas are those of torch (torch/utils/flop_counter.py, `flop_registry`): a multiplication and
an addition are two FLOPs, biases and elementwise operators count nothing, and attention counts the
whole matrix, masked or not. A test compares each with the registry. They are here because a viewer
needs no torch. `_for_cpu` attention, which the registry does not have, counts as the others do.

A call's output is known from its shapes but for convolutions: there the outputs that were recorded
decide, or the arguments of an imported trace ("Concrete Inputs").
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

Shape = tuple[int, ...]


@dataclass(frozen=True)
class OperatorCall:
    """What is known of a call: shapes of its tensor inputs, elements of each tensor that it wrote
    (none: not recorded), and its arguments as text (none: not recorded)."""

    shapes: tuple[Shape, ...]
    written: tuple[int, ...] = ()
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Work:
    """FLOPs of a call and the elements of its outputs."""

    flops: int
    outputs: int


def work_of(name: str, call: OperatorCall) -> Work | None:
    """Returns the work of a call of an operator; None where it has no formula, or its shapes were
    not recorded."""
    formula = FORMULAS.get(name)
    if formula is None:
        return None
    try:
        return formula(call)
    except (ValueError, IndexError):  # fewer tensors or dimensions than the formula needs
        return None


def _mm(call: OperatorCall, first: int = 0) -> Work:
    (m, k), (_, n) = call.shapes[first : first + 2]
    return Work(2 * m * n * k, m * n)


def _bmm(call: OperatorCall, first: int = 0) -> Work:
    (b, m, k), (_, _, n) = call.shapes[first : first + 2]
    return Work(2 * b * m * n * k, b * m * n)


def _attention(call: OperatorCall) -> Work:
    (b, heads, queries, width), (_, _, keys, _), (_, _, _, values) = call.shapes[:3]
    rows = b * heads * queries
    return Work(2 * rows * keys * (width + values), rows * values)


def _attention_backward(call: OperatorCall) -> Work:
    _, query, key, value = call.shapes[:4]
    b, heads, queries, width = query
    keys, values = key[2], value[3]
    # Scores again, and the gradients of scores, values, queries and keys.
    flops = 2 * b * heads * queries * keys * (3 * width + 2 * values)
    return Work(flops, prod(query) + prod(key) + prod(value))


def _convolution(call: OperatorCall) -> Work:
    x, weight = call.shapes[:2]
    out = _output_shape(call, x, weight)
    if out is None:
        raise ValueError("the output is not known")
    spatial, transposed = out
    points = prod(x[2:]) if transposed else prod(spatial)
    channels = weight[1] * _groups(call) if transposed else weight[0]
    return Work(2 * x[0] * points * prod(weight), x[0] * channels * prod(spatial))


def _output_shape(call: OperatorCall, x: Shape, weight: Shape) -> tuple[Shape, bool] | None:
    """Returns the spatial lengths of a convolution's output and whether it is transposed.

    Without arguments: where the numbers of channels allow both, the one that makes more points
    than it reads is transposed.
    """
    if len(call.arguments) > 6:
        stride, padding, dilation = (json.loads(one) for one in call.arguments[3:6])
        transposed = call.arguments[6] == "True"
        more = json.loads(call.arguments[7]) if transposed else [0] * len(stride)
        sizes = zip(x[2:], weight[2:], stride, padding, dilation, more, strict=True)
        if transposed:
            return tuple(
                (n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, d, o in sizes
            ), True
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in sizes), False
    if not call.written:
        return None
    points = call.written[0] // (x[0] * weight[0])
    if x[1] == weight[0] and points > prod(x[2:]):
        return (call.written[0] // (x[0] * weight[1]),), True
    return (points,), False


def _groups(call: OperatorCall) -> int:
    return int(call.arguments[8]) if len(call.arguments) > 8 else 1


def _convolution_backward(call: OperatorCall) -> Work:
    grad, x, weight = call.shapes[:3]
    if len(call.arguments) > 10:
        transposed = call.arguments[7] == "True"
        mask = json.loads(call.arguments[10].lower())
    elif call.written:
        transposed = x[1] == weight[0] and (grad[1] != weight[0] or prod(grad[2:]) > prod(x[2:]))
        sizes = list(call.written)
        mask = [bool(sizes) and sizes[0] == prod(x)]
        mask.append(prod(weight) in sizes[mask[0] :])
    else:
        raise ValueError("the outputs are not known")
    points = prod(x[2:]) if transposed else prod(grad[2:])
    flops = 2 * x[0] * points * prod(weight) * mask[0]
    flops += 2 * x[0] * points * prod(weight[2:]) * x[1] * grad[1] * mask[1]
    return Work(flops, prod(x) * mask[0] + prod(weight) * mask[1])


_ATTENTION = (
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
_CONVOLUTION = (
    "convolution",
    "_convolution",
    "cudnn_convolution",
    "convolution_overrideable",
    "_slow_conv2d_forward",
)

FORMULAS: Mapping[str, Callable[[OperatorCall], Work]] = {
    "aten::mm": _mm,
    "aten::addmm": lambda call: _mm(call, 1),
    "aten::bmm": _bmm,
    "aten::baddbmm": lambda call: _bmm(call, 1),
    "aten::_scaled_mm": _mm,
    **{f"aten::{name}": _attention for name in _ATTENTION},
    **{f"aten::{name}_backward": _attention_backward for name in _ATTENTION},
    **{f"aten::{name}": _convolution for name in _CONVOLUTION},
    "aten::convolution_backward": _convolution_backward,
}
"""Operator -> the work of a call."""


def shapes_of(text: str) -> tuple[Shape, ...]:
    """Returns the shapes of `[4, 8] [8]`; raises ValueError for another text."""
    return (
        tuple(
            tuple(int(one) for one in part.split(",") if one.strip())
            for part in text.removeprefix("[").removesuffix("]").split("] [")
        )
        if text
        else ()
    )


def arguments_of(text: str | None) -> tuple[str, ...]:
    """Returns the arguments of a call from the event's arguments in an imported trace."""
    if not text:
        return ()
    try:
        found: Sequence[object] = json.loads(text).get("Concrete Inputs", ())
    except (ValueError, AttributeError):
        return ()
    return tuple(map(str, found))
