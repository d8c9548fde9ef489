"""Finds models that see what they are to predict, and views that put numbers into another order.

- unmasked: a loss of the next tokens, and attention from each position to all of them, also where
  numbers added to the scores hide none;
- shifted twice: a loss of the tokens after the next ones;
- exchanged: a view() within the model, or before the loss, that was to be a transpose();
- channels: `view(-1, classes)` of what a convolution made, whose classes are the second dimension.

Read from the graph of the first backward.
"""

from __future__ import annotations

import re

from lanescope.collector.format.loop_names import (
    ATTENTION_MASKED,
    NEXT_TOKENS,
    REORDERED_VIEW,
    TOKENS_AHEAD,
)
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.plugins.losses.loss_graph import (
    SAME_NUMBERS,
    LossGraph,
    LossNode,
    each_graph,
    each_rank_of_graphs,
    graph_finding,
    input_shapes,
    loss_facts,
    loss_graph,
    of_attention,
    of_class_losses,
)
from lanescope.webapp.runs.run import Run

_FUSED = "ScaledDotProduct"
_SOFTMAX = ("SafeSoftmax", "Softmax")
_SCALES = ("Div", "Mul")
_PRODUCTS = ("Baddbmm", "Bmm")

_VIEW = re.compile(r"(Clone|ReshapeAlias|UnsafeView|View)")
_KEEPS_CHANNELS = re.compile(r"(Upsample\w+[23]D|Upsample\w+[23]d|NativeBatchNorm)")
_FLAT = 2  # dimensions of what has no positions


@of_attention
@each_rank_of_graphs
def unmasked_attention(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    tokens = logged(run, rank, NEXT_TOKENS)
    graph = None if tokens.empty else loss_graph(run, rank)
    if graph is None:
        return None
    length = int(tokens["value"].iloc[0])
    marks = logged(run, rank, prefix=ATTENTION_MASKED)
    masked = {int(one) for one in marks["name"][marks["value"] > 0]}
    layers = [one for one in graph.nodes.values() if _is_square(graph, one, length)]
    seen = {int(one) for one in marks["name"]}  # layers without a mask
    if (
        not layers
        or masked
        or not all(one.number in seen or _is_open(graph, one) for one in layers)
    ):
        return None
    where = next((one.where for one in layers if one.where), None)
    at = at_place(where)
    has = "has no mask that hides a position"
    if not any(_is_open(graph, one) for one in layers):
        has = "hides no position, as the numbers added to its scores are not far below zero"
    return graph_finding(
        run,
        rank,
        graph,
        title=f"Attention{at} {has}, and the targets of the loss are the next tokens: each "
        f"of the {length} positions sees the token that it is to predict, so the loss falls and "
        "nothing is learned. Pass is_causal=True, or a mask that hides later positions.",
        where=where,
        evidence={"cause": "unmasked", "layers": len(layers), "tokens": length},
    )


@of_class_losses
@each_rank_of_graphs
def shifted_twice(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    for fact in loss_facts(run, rank, TOKENS_AHEAD):
        return fact.finding(
            run,
            rank,
            title=f"The targets of the loss{fact.node.at} are the tokens after the next ones: they "
            "are shifted twice, so the model learns to leave out each second token. Models of "
            "transformers shift labels themselves: pass labels=input_ids. Elsewhere shift in one "
            "place alone.",
            evidence={"cause": "shifted_twice", "ahead": int(fact.values.iloc[0])},
        )
    return None


def _is_square(graph: LossGraph, node: LossNode, length: int) -> bool:
    """Whether a node weighs all positions of a row for each of them."""
    if node.name.startswith(_FUSED):
        sizes = [one[-2] for one in input_shapes(node)[:2] if len(one) > 1]
        return sizes == [length, length]
    if node.name not in _SOFTMAX:
        return False
    scores = _scores(graph, node)
    parts = [one[-2:] for one in input_shapes(scores)[:2]] if scores.name in _PRODUCTS else []
    if len(parts) == 2:
        return (parts[0][0], parts[1][1]) == (length, length)
    return any(one[-2:] == [length, length] for one in input_shapes(node)[:1])


def _is_open(graph: LossGraph, node: LossNode) -> bool:
    """Whether nothing stands between the product of queries and keys and its softmax."""
    return node.name.startswith(_FUSED) or _scores(graph, node).name == "Bmm"


def _scores(graph: LossGraph, node: LossNode) -> LossNode:
    """The node that made the scores of a softmax, but for a factor."""
    first = graph.nodes[node.next[0]] if node.next else node
    return graph.down(first, lambda one: _is_scaled(one) or SAME_NUMBERS.fullmatch(one.name))


def _is_scaled(node: LossNode) -> bool:
    return node.name in _SCALES and len(node.next) == 1


@each_graph
def exchanged_views(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `mixed_samples`, at most one per rank. Raises NotApplicable."""
    views = logged(run, rank, prefix=REORDERED_VIEW)
    channels = _viewed_channels(run, rank, graph)
    if channels is not None or views.empty:
        return channels
    named = (str(one).split("/") for one in views["name"])
    own = [one for one in named if _is_proven(graph, int(one[0]), *one[1:])]
    if not own:
        return None
    number, before, shape = own[0]
    where = _used_at(graph, int(number))
    used = f", which {where} uses" if where else ""
    split = len(shape.split(",")) > len(before.split(","))
    instead = (
        "split the last dimension first, and exchange two dimensions then: view(batch, length, "
        "heads, -1).transpose(1, 2)"
        if split
        else "use transpose() or permute() to exchange dimensions"
    )
    return graph_finding(
        run,
        rank,
        graph,
        kind="mixed_samples",
        title=f"view() or reshape() makes {shape} of {before}{used}: the numbers stay in their old "
        f"order, so each row holds parts of others. Here {instead}.",
        where=where,
        evidence={"cause": "exchanged", "shape": shape, "before": before},
    )


def _viewed_channels(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    for loss in graph.nodes.values():
        shape = next(iter(input_shapes(loss)), []) if loss.name == "LogSoftmax" else []
        if len(shape) != len(("rows", "classes")):
            continue
        node, views = loss, 0
        for _ in graph.nodes:  # a damaged file may hold a circle
            if not node.next or not (node is loss or _VIEW.fullmatch(node.name)):
                break
            views += node.name != "Clone" and node is not loss
            node = graph.nodes[node.next[0]]
        rows, classes = shape
        batch, channels = _channels(node)
        if views and channels == classes and batch and rows > batch and rows % batch == 0:
            return graph_finding(
                run,
                rank,
                graph,
                kind="mixed_samples",
                title=f"view() or reshape() makes {shape} of what "
                f"{node.op.removeprefix('aten::')}(){node.at} returns, where the {classes} classes "
                f"are dimension 1 of {batch} samples: each row that the loss gets holds scores of "
                "one class at several positions. Give the loss the tensor as it is, or "
                "permute(0, 2, 3, 1) it before.",
                where=loss.where,
                evidence={"cause": "channels", "shape": shape, "made_at": node.where},
            )
    return None


def _channels(node: LossNode) -> tuple[int, int]:
    """Samples and channels of the result of a convolution or what keeps them; 0: another node."""
    shapes = [one for one in input_shapes(node) if len(one) > _FLAT]
    if node.name == "Convolution" and len(shapes) > 1:
        (batch, taken, *_), (made, of, *_) = shapes[:2]
        return (batch, made) if taken == of and len(shapes[0]) == len(shapes[1]) else (0, 0)
    if _KEEPS_CHANNELS.fullmatch(node.name) and shapes:
        return shapes[0][0], shapes[0][1]
    return 0, 0


def _is_proven(graph: LossGraph, number: int, before: str, shape: str) -> bool:
    """Whether no other view is meant, which splits a length and makes another one longer: lengths
    do not divide each other, or a loss takes what it gets for classes."""
    users = {one.name for one in graph.nodes.values() if number in one.next}
    old, new = (one.strip("[]").split(", ") for one in (before, shape))
    moved = {int(one) for one, other in zip(old, new, strict=False) if one != other}
    alike = any(one % other == 0 for one in moved for other in moved if one > other)
    return not alike or len(old) != len(new) or "LogSoftmax" in users


def _used_at(graph: LossGraph, number: int) -> str | None:
    """The line of the first recorded operator that gets the numbers of a node."""
    for _ in graph.nodes:
        users = [one for one in graph.nodes.values() if number in one.next]
        if not users or users[0].where:
            return users[0].where if users else None
        number = users[0].number
    return None
