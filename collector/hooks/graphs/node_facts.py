"""Yields facts about nodes of the autograd graph that only the nodes themselves know."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any, NamedTuple, TypeGuard

import torch

from ...format.loop_names import (
    ATTENTION_MASKED,
    COUNTED_PADDING,
    ENDS_LEFT_OUT,
    FLATTENED_APART,
    MEAN_LOSS,
    NEXT_TOKENS,
    PADDING_ALONE,
    PADDING_ROW,
    REORDERED_VIEW,
    SELF_PAIRS,
    SINGLE_NORM,
    TOKENS_AHEAD,
)
from ...format.names import SOFTMAX_DIM
from ..training_loop.padded_tokens import (
    counted_padding,
    leaves_out_ends,
    padding,
    sees_padding_alone,
)
from ..training_loop.reordered_inputs import mixes

_SOFTMAX = ("LogSoftmaxBackward0", "SoftmaxBackward0")
_WEIGHTS = ("SafeSoftmaxBackward0", "SoftmaxBackward0")
_VIEWS = ("ReshapeAliasBackward0", "UnsafeViewBackward0", "ViewBackward0")
_LENGTH = "LinalgVectorNormBackward0"
_NORMS: dict[str, Callable[[Any], int]] = {
    "NativeGroupNormBackward0": lambda node: node._saved_C * node._saved_HxW // node._saved_group,
    "NativeLayerNormBackward0": lambda node: prod(node._saved_normalized_shape),
}
"""Normalisations: how many numbers each of their means and variances is of."""

_ATTENTION = "ScaledDotProduct"
_MASKS = ("_raw_saved_attn_mask", "_raw_saved_attn_bias")
_BELOW_ZERO = 2**63
"""Autograd keeps a dimension as an unsigned number: from here on it counts from the last one."""

_MAX_TOKENS = 2**20
_SHIFTED_TWICE = 2
"""Positions that labels are ahead which the program shifts, and then the model."""

_MAX_WEIGHED = 4
"""Layers whose weights of attention are looked at: of a mask all layers get the same."""

_MIN_LATER = 0.1
"""Of the weights of a position: so much at least goes to later ones where no mask hides them."""

_MIN_PAIRS, _MAX_PAIRS = 4, 4096
"""Samples of a loss of pairs."""

_MEAN = 1
"""How autograd keeps reduction="mean"; 0 is "none", where a program may mask losses later."""

_HIDES = -1e3
"""Scores of attention from here down hide a position."""


class _Tokens(NamedTuple):
    """What the graph says of tokens."""

    read: list[torch.Tensor]
    targets: list[tuple[int, Any, torch.Tensor]]  # number and node of a loss
    masks: list[tuple[int, torch.Tensor]]  # number of a node, and what its attention sees

    def add(self, name: str, node: Any, number: int) -> None:
        """Adds what a node of a table or of a loss has kept."""
        if name == "EmbeddingBackward0":
            self.read.extend(_whole(saved_tensor(node, "_raw_saved_indices")))
        elif name in ("NllLossBackward0", "NllLoss2DBackward0"):
            own = _whole(saved_tensor(node, "_raw_saved_target"))
            self.targets.extend((number, node, one) for one in own)


def facts(nodes: Iterable[tuple[str, Any, int]]) -> Iterator[tuple[str, float]]:
    """Yields names and numbers of series, from names, nodes and their numbers."""
    tokens = _Tokens([], [], [])
    weighed: list[tuple[int, torch.Tensor]] = []  # as masks, but found after them
    loss = None  # the first node
    for name, node, number in nodes:
        if loss is None:
            loss = number
            if takes_mean(node) or name == "MeanBackward0":
                yield MEAN_LOSS, 1.0
        dim = getattr(node, "_saved_dim", None) if name in _SOFTMAX else None
        if dim is not None:
            over = float(dim - 2 * _BELOW_ZERO if dim >= _BELOW_ZERO else dim)
            yield f"{SOFTMAX_DIM}{number}", over
        if name in _WEIGHTS and len(weighed) < _MAX_WEIGHED:  # hidden positions have exactly 0
            weights = saved_tensor(node, "_raw_saved_result")
            weighed.extend((number, one) for one in _seen(weights, 0.0))
            yield from _later_positions(weights, number)
        elif name in _VIEWS:
            before, shape = _lengths(node)
            if mixes(before, shape):
                yield f"{REORDERED_VIEW}{number}/{before}/{shape}", 1.0
        elif name in _NORMS and _NORMS[name](node) == 1:
            yield f"{SINGLE_NORM}{number}", 1.0
        elif name == _LENGTH and len(node._saved_dim or ()) == 1:
            yield f"{SOFTMAX_DIM}{number}", float(_positive(node._saved_dim[0]))
        elif name == "EmbeddingBackward0":
            yield from _padding_row(node, number)
        elif name == "NllLossBackward0":
            yield from _flattened_apart(node, number)
        elif name.startswith(_ATTENTION):
            yield f"{ATTENTION_MASKED}{number}", float(_is_masked(node))
            for mask in _MASKS:
                tokens.masks.extend((number, one) for one in _seen(saved_tensor(node, mask)))
        elif name == "MaskedFillBackward0":
            hidden = saved_tensor(node, "_raw_saved_mask")
            tokens.masks.extend((number, ~one) for one in _seen(hidden))
        tokens.add(name, node, number)
    tokens.masks.extend(weighed)
    yield from _of_tokens(tokens)


def _of_tokens(tokens: _Tokens) -> Iterator[tuple[str, float]]:
    for read in tokens.read:
        ahead = {number: _ahead(target, read) for number, _, target in tokens.targets}
        if 1 in ahead.values():
            yield NEXT_TOKENS, float(read.shape[1])
            break
        if set(ahead.values()) == {_SHIFTED_TWICE}:
            yield f"{TOKENS_AHEAD}{min(ahead)}", float(_SHIFTED_TWICE)
            break
    for number, node, target in tokens.targets:
        share = _self_share(saved_tensor(node, "_raw_saved_self"), target)
        if share is not None:
            yield f"{SELF_PAIRS}{number}", share
    for padded in filter(None, map(padding, tokens.read)):
        for number, node, target in tokens.targets:
            if takes_mean(node) and _weighs_all(node):
                found = counted_padding(padded, target, ignored_class(node))
                if found is not None:
                    name = f"{COUNTED_PADDING}{number}/{padded.number}/{found.label}"
                    yield name, found.share
        for number, visible in tokens.masks:
            if sees_padding_alone(padded, visible):
                yield f"{PADDING_ALONE}{number}/{padded.number}", 1.0


def ends(nodes: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yields ENDS_LEFT_OUT of each loss of next tokens, from names and nodes of any graph."""
    tokens = _Tokens([], [], [])
    for number, (name, node) in enumerate(nodes):
        tokens.add(name, node, number)
    for number, node, target in tokens.targets:
        read = next((one for one in tokens.read if _ahead(target, one) == 1), None)
        if read is not None:
            left_out = leaves_out_ends(read, target, ignored_class(node))
            yield f"{ENDS_LEFT_OUT}{number}/{int(read[0, -1])}", float(left_out)


def _later_positions(weights: torch.Tensor | None, number: int) -> Iterator[tuple[str, float]]:
    """Yields ATTENTION_MASKED of weights from each position to all of them: 0 where they hide none,
    and much of them goes to later ones, whatever is added to the scores."""
    if not on_host(weights) or weights.dim() < 3 or weights.numel() > _MAX_TOKENS:
        return
    if weights.shape[-1] == weights.shape[-2] > 1:
        later = float(weights.detach().triu(1).sum(-1, dtype=torch.float64).mean())
        masked = bool((weights.detach() == 0).any()) or later < _MIN_LATER
        yield f"{ATTENTION_MASKED}{number}", float(masked)


def _padding_row(node: Any, number: int) -> Iterator[tuple[str, float]]:
    """Yields PADDING_ROW where the row of a table that is not trained belongs to tokens within
    rows, while another token fills them up."""
    row = _positive(getattr(node, "_saved_padding_idx", -1))
    for read in _whole(saved_tensor(node, "_raw_saved_indices")):
        padded = padding(read) if row >= 0 else None
        if padded is not None and padded.number != row:
            within = int((read == row).sum())
            if within:
                yield f"{PADDING_ROW}{number}/{row}/{padded.number}", float(within)


def _flattened_apart(node: Any, number: int) -> Iterator[tuple[str, float]]:
    """Yields FLATTENED_APART where positions come first in the scores of a loss, and samples in its
    targets, and both were flattened: score and target of a row are of different places."""
    made = node.next_functions[0][0]
    while short_name(made) in (*_SOFTMAX, "ToCopyBackward0"):
        made = made.next_functions[0][0]
    before, after = _lengths(made) if short_name(made) in _VIEWS else ([], [])
    target = saved_tensor(node, "_raw_saved_target")
    of = None if target is None else target._base
    if of is None or of.dim() != 2 or len(before) != 3 or after != [of.numel(), before[2]]:
        return
    length, rows = before[:2]
    if length != rows and [*of.shape] == [rows, length] and of.is_contiguous():
        yield f"{FLATTENED_APART}{number}/{length}/{rows}", 1.0


def _positive(index: int) -> int:
    """Returns an index that autograd keeps as an unsigned number."""
    return index - 2 * _BELOW_ZERO if index >= _BELOW_ZERO else index


def takes_mean(node: Any) -> bool:
    """Returns whether a loss has reduction="mean"."""
    return getattr(node, "_saved_reduction", 0) == _MEAN


def ignored_class(node: Any) -> int:
    """Returns the class that a loss leaves out."""
    return _positive(getattr(node, "_saved_ignore_index", 0))


def _weighs_all(node: Any) -> bool:
    """Returns whether a loss gives all classes the same weight."""
    weight = getattr(node, "_raw_saved_weight", None)
    return getattr(weight, "unpack_hook", True) is None and getattr(weight, "data", 0) is None


def _seen(mask: torch.Tensor | None, hides: float = _HIDES) -> list[torch.Tensor]:
    """Returns what a mask of attention lets through: true there, or numbers above `hides`."""
    if not on_host(mask) or mask.numel() > _MAX_TOKENS:
        return []
    return [mask if mask.dtype == torch.bool else mask > hides]


def _self_share(scores: torch.Tensor | None, targets: torch.Tensor) -> float | None:
    """Returns how much of a loss of pairs goes to the pairs of a sample with itself: the mean
    probability on the diagonal of logarithms of probabilities [N, N], with a minus sign if all
    targets are there; None if some are, or if it is not above 1 / N."""
    if not on_host(scores) or targets.dim() != 1:  # of a single sample, or of positions
        return None
    count = len(targets)
    if scores.shape != (count, count) or not _MIN_PAIRS <= count <= _MAX_PAIRS:
        return None
    own = int((targets == torch.arange(count, device="cpu")).sum())
    share = float(scores.diagonal().detach().double().exp().mean())
    return {0: share, count: -share}.get(own) if share * count > 1 else None


def on_host(tensor: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    """Returns whether a tensor can be read without waiting for a device; false of a subclass."""
    return type(tensor) is torch.Tensor and tensor.device.type == "cpu" and _is_dense(tensor)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor has a number at each place: is not sparse, not of tensors."""
    return tensor.layout is torch.strided and not tensor.is_nested


def nodes_below(root: Any) -> Iterator[Any]:
    """Yields a node of a graph and those below it, the nearest first."""
    waiting = deque([root])
    seen = {None, root}
    while waiting:
        node = waiting.popleft()
        yield node
        following = [one for one, _ in node.next_functions if one not in seen]
        seen.update(following)
        waiting.extend(dict.fromkeys(following))


def short_name(node: Any) -> str:
    """Returns the node's name without its namespace; empty for None."""
    return "" if node is None else str(node.name().rpartition("::")[2])


def saved_tensor(node: Any, name: str) -> torch.Tensor | None:
    """Returns a dense tensor that autograd has saved; None without it.

    Runs no hook of the program by which a saved tensor is unpacked.
    """
    saved = getattr(node, name, None)
    if getattr(saved, "unpack_hook", True) is not None:
        return None
    tensor = getattr(saved, "data", None)
    return tensor if isinstance(tensor, torch.Tensor) and _is_dense(tensor) else None


def _is_masked(node: Any) -> bool:
    """Returns whether attention is causal or a mask hides a position; true where that is not
    known."""
    masks = [getattr(node, mask) for mask in _MASKS if hasattr(node, mask)]
    hidden = any(getattr(mask, "unpack_hook", True) is not None for mask in masks)
    given = [mask.data for mask in masks if not hidden and mask.data is not None]
    hides = any(not (seen := _seen(mask)) or not bool(seen[0].all()) for mask in given)
    return hidden or hides or bool(getattr(node, "_saved_is_causal", True))


def _lengths(node: Any) -> tuple[list[int], list[int]]:
    """Returns the shapes before a view and after it; empty where they are not known."""
    made = getattr(node, "_input_metadata", None)
    before = getattr(node, "_saved_self_sym_sizes", ())
    shape = made[0].shape if made else ()
    known = all(type(one) is int for one in (*before, *shape))
    return ([*before], [*shape]) if known else ([], [])


def _whole(tensor: torch.Tensor | None) -> list[torch.Tensor]:
    """Returns whole numbers that can be read without waiting for a device."""
    if not on_host(tensor) or tensor.dtype != torch.int64 or tensor.numel() > _MAX_TOKENS:
        return []
    return [tensor]


def _ahead(targets: torch.Tensor, read: torch.Tensor) -> int | None:
    """Returns how many positions after those that are read the targets are, row by row: 1 or 2."""
    if read.dim() != 2 or read.shape[1] <= _SHIFTED_TWICE:
        return None
    rows, length = read.shape
    if targets.numel() not in (rows * length, rows * (length - 1)):
        return None
    own = targets.reshape(rows, -1)
    return next((by for by in range(_SHIFTED_TWICE + 1) if _are_later(own, read, by)), 0) or None


def _are_later(own: torch.Tensor, read: torch.Tensor, by: int) -> bool:
    """Returns whether all targets that count are the tokens `by` positions later."""
    known = read[:, by : by + own.shape[1]]
    targets = own[:, : known.shape[1]]
    counted = targets >= 0
    return bool(counted.any() and (targets == known)[counted].all())
