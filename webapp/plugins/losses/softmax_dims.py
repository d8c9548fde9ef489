"""Finds a softmax over another dimension than that over which its result is summed.

- nll_loss of its logarithms: the classes are dimension 1. A square [N, N] is left out: there it may
  be meant (contrastive losses);
- a matrix product of weights of attention with values: the weights of a row add up to 1 only where
  the softmax is over the dimension that the product sums over. A layer that shares out positions
  between clusters (DiffPool, NetVLAD) means another one: it has logits in place of products of
  queries with keys. No layer means the batch.

And a softmax of the only output of a layer, in all calls, which is 1 whatever the layer returns; so
is a normalisation of a single number, which returns its bias.

Samples are mixed as well by a softmax over the first dimension whose weights are summed over the
second one or picked there, a class for each row, and by F.normalize(x, dim=0) where a matrix
product sums over the second one.

Read from the graph of the first backward, where nothing but dropout or a mask stands
between the two.
"""

from __future__ import annotations

import re

from lanescope.collector.format.loop_names import SINGLE_NORM
from lanescope.collector.format.names import SOFTMAX_DIM
from lanescope.webapp.analysis.arrow_columns import ops_named
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.op_inputs import tensor_shapes
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
    of_class_losses,
    of_nodes,
)
from lanescope.webapp.runs.run import Run

_CLASSES = 1
_PRODUCTS = frozenset({"Baddbmm", "Bmm"})

_IN_ORDER = re.compile(r"(Clone|Expand|NativeDropout|ReshapeAlias|ToCopy|UnsafeView|View)")
"""Nodes that leave the numbers in their order, and which of them are in a row."""

_VIEWS = re.compile(rf"({_IN_ORDER.pattern}|Select|Slice|Unsqueeze)")
_TURNS = ("T", "Transpose")
_NORM, _SOFTMAXES = "LinalgVectorNorm", ("LogSoftmax", "Softmax")

_SCORED = re.compile(r"(Add|Clamp|Div|MaskedFill|Mul|NativeDropout|Sub|Tanh|Where)")
"""Nodes between the product of queries with keys and the softmax, beside SAME_NUMBERS."""


def _dims(run: Run, rank: int, graph: LossGraph, *names: str) -> dict[int, int]:
    """Number of a node of one of these names -> its dimension, as the program gave it."""
    rows = logged(run, rank, prefix=SOFTMAX_DIM)
    found = {int(name): int(dim) for name, dim in zip(rows["name"], rows["value"], strict=True)}
    known = graph.nodes
    return {node: dim for node, dim in found.items() if node in known and known[node].name in names}


@of_nodes(f"(^|Safe)Softmax|{_NORM}", "softmax of weights, or norm")
@each_graph
def batch_dims(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `mixed_samples`, at most one per rank. Raises NotApplicable."""
    for number, dim in _dims(run, rank, graph, _NORM, "Softmax").items():
        node = graph.nodes[number]
        shape = next(iter(input_shapes(node)), [])
        if len(shape) != 2 or dim % 2 or min(shape) < 2:
            continue
        norm = node.name == _NORM
        use = _product_of_units(graph, node, shape) if norm else _over_columns(graph, node, shape)
        if use is not None:
            what = "norm that divides vectors" if norm else "softmax"
            lacks = "have the length 1" if norm else "add up to 1"
            return graph_finding(
                run,
                rank,
                graph,
                kind="mixed_samples",
                title=f"The {what}{node.at} is over dimension 0 of {shape}, the samples of the "
                f"batch, which it mixes, and {use.op.removeprefix('aten::')}{use.at} goes over "
                f"dimension 1, where they do not {lacks}: pass dim=-1.",
                where=node.where or use.where,
                evidence={"cause": "batch", "dimension": 0, "shape": shape, "used_at": use.where},
            )
    return None


def _users(graph: LossGraph, node: LossNode) -> list[LossNode]:
    """The nodes that get the numbers of a node, also by another shape in the same order."""
    found, ahead = list[LossNode](), [node.number]
    for number in ahead:
        users = [one for one in graph.nodes.values() if number in one.next]
        viewed = [one for one in users if _VIEWS.fullmatch(one.name)]
        ahead += [one.number for one in viewed if one.number not in ahead]
        found += [one for one in users if one not in viewed]
    return found


def _over_columns(graph: LossGraph, node: LossNode, shape: list[int]) -> LossNode | None:
    """What sums weights [rows, columns] over the columns, or picks one of each row."""
    for user in _users(graph, node):
        later = _users(graph, user) if user.name in ("Log", "Mul") else []
        for one in [user, *later]:
            shapes = input_shapes(one)
            if one.name == "Gather" and shapes == [shape, [shape[0], 1]]:
                return one
            of = shapes[0] if one.name == "Sum" and shapes else []
            if of[:1] == shape[:1] and shape[1] in of[1:] and _keeps_rows(graph, one, of):
                return one
    return None


def _keeps_rows(graph: LossGraph, total: LossNode, shape: list[int]) -> bool:
    """Whether a sum keeps the first dimension, and not all others."""
    for user in (one for one in graph.nodes.values() if total.number in one.next):
        place = user.next.index(total.number)
        made = (input_shapes(user) or [[]])[min(place, len(input_shapes(user)) - 1)]
        return made[:1] == shape[:1] and made != shape
    return False


def _product_of_units(graph: LossGraph, node: LossNode, shape: list[int]) -> LossNode | None:
    """The matrix product over the columns of vectors that a norm over the rows divides."""
    for product in graph.nodes.values():
        for place, number in enumerate(product.next if product.name == "Mm" else ()):
            operand, turned = graph.nodes[number], 0
            for _ in graph.nodes:  # a damaged file may hold a circle
                scaled = operand.name in ("Div", "Mul") and [] in input_shapes(operand)
                if not operand.next or not (scaled or operand.name in _TURNS):
                    break
                of = input_shapes(operand).index([]) == 0 if scaled else False
                turned += not scaled
                operand = graph.nodes[operand.next[-1 if of else 0]]
            ratio = operand.name == "Div" and len(operand.next) == 2
            below = graph.nodes[operand.next[1]] if ratio else None
            if below is None or turned % 2 != place:
                continue
            if graph.down(below, lambda one: one.name in ("ClampMin", "Expand")) is node:
                return product
    return None


@of_nodes("(^|Safe)Softmax", "softmax of weights")
@each_graph
def attention_dims(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `mixed_samples`, at most one per rank. Raises NotApplicable."""
    dims = _dims(run, rank, graph, *_SOFTMAXES)
    for product in graph.nodes.values():
        operands = input_shapes(product) if product.name == "Bmm" else []
        for place, number in enumerate(product.next if len(operands) == len(product.next) else ()):
            softmax = _handed_on(graph, graph.nodes[number])
            shapes = input_shapes(softmax)[:1] if softmax.number in dims else []
            if not shapes or len(shapes[0]) < len(operands[place]):
                continue
            shape, summed = shapes[0], -1 - place  # of the first operand the last dimension
            dim = dims[softmax.number] % len(shape)
            wrong = shape[-2:] == operands[place][-2:] and dim != len(shape) + summed
            if wrong and (dim == 0 or _of_queries(graph, softmax)):
                return _mixing(run, rank, graph, product, softmax, dim, shape, summed)
    return None


def _of_queries(graph: LossGraph, softmax: LossNode) -> bool:
    """Whether a softmax gets products of queries with keys, scaled or masked."""
    scored = graph.below(
        *softmax.next,
        passes=lambda one: SAME_NUMBERS.fullmatch(one.name) or _SCORED.fullmatch(one.name),
    )
    return any(node.name in _PRODUCTS for node in scored)


def _handed_on(graph: LossGraph, node: LossNode) -> LossNode:
    """The node whose numbers, in their order, a matrix product gets."""
    return graph.down(node, lambda one: _is_masked(one) or _IN_ORDER.fullmatch(one.name))


def _is_masked(node: LossNode) -> bool:
    return node.name == "Mul" and len(node.next) == 1  # dropout is one, on the host


def _mixing(
    run: Run,
    rank: int,
    graph: LossGraph,
    product: LossNode,
    softmax: LossNode,
    dim: int,
    shape: list[int],
    summed: int,
) -> Finding:
    what = ", the samples of the batch, which it mixes" if dim == 0 else ""
    return graph_finding(
        run,
        rank,
        graph,
        kind="mixed_samples",
        title=f"The softmax{softmax.at} is over dimension {dim} of {shape}{what}. The matrix "
        f"product{product.at} takes its result as weights and sums over dimension "
        f"{len(shape) + summed}, where they do not add up to 1: pass dim={summed} to the softmax.",
        where=softmax.where or product.where,
        evidence={"cause": "weights", "dimension": dim, "shape": shape, "used_at": product.where},
    )


@of_class_losses
@each_graph
def softmax_dims(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    dims = _dims(run, rank, graph, *_SOFTMAXES)
    for loss in graph.nodes.values():
        softmax = _softmax_of(graph, loss) if loss.name.startswith("NllLoss") else None
        shape = next(iter(input_shapes(softmax)), []) if softmax else []
        if softmax is None or softmax.number not in dims or len(shape) < 2:
            continue
        dim = dims[softmax.number] % len(shape)
        if dim != _CLASSES and shape[dim] != shape[_CLASSES]:
            return _finding(run, rank, graph, loss, softmax, dim, shape)
    return None


@of_nodes("Softmax", "softmax")
@each_graph
def single_outputs(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    for number, dim in _dims(run, rank, graph, *_SOFTMAXES).items():
        softmax = graph.nodes[number]
        shape = next(iter(input_shapes(softmax)), [])
        layer = graph.source(softmax)
        if len(shape) < 2 or shape[dim % len(shape)] != 1:
            continue
        if layer is None or layer.name != "Addmm" or input_shapes(layer)[-1:][0][-1:] != [1]:
            continue
        if not _always_single(run, rank, graph, softmax, dim):
            continue
        logarithm = softmax.name == "LogSoftmax"
        return graph_finding(
            run,
            rank,
            graph,
            confidence="certain",
            title=f"The softmax{softmax.at} is of a single output{layer.at}: it is 1, and its "
            f"logarithm 0, whatever the layer returns"
            + (", so the cross-entropy is always 0" if logarithm else "")
            + ". Nothing before it gets a gradient. For two classes use one output with "
            "BCEWithLogitsLoss, or two outputs with CrossEntropyLoss.",
            where=softmax.where or layer.where,
            evidence={"cause": "single_output", "made_at": layer.where},
        )
    return None


@of_nodes("Native(Layer|Group)Norm", "layer_norm or group_norm")
@each_rank_of_graphs
def single_norms(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `dead_parameter`, at most one per rank. Raises NotApplicable."""
    for fact in loss_facts(run, rank, SINGLE_NORM):
        layer = "layer_norm" if fact.node.name == "NativeLayerNorm" else "group_norm"
        return fact.finding(
            run,
            rank,
            kind="dead_parameter",
            confidence="certain",
            title=f"{layer}{fact.node.at} normalises single numbers: each is its own mean, so the "
            "result is the bias, whatever the layers before it return, and they do not learn. "
            "Normalise over more: the last dimension has 1 element, or each channel is a group.",
            evidence={"cause": "single_norm"},
        )
    return None


def _always_single(run: Run, rank: int, graph: LossGraph, softmax: LossNode, dim: int) -> bool:
    """Whether each call of a softmax is of one number; of a bag of samples the first may be."""
    columns = ["start_ns", "name", "stack", "shapes"]
    calls = ops_named(run, rank, graph.thread, columns, softmax.op.__eq__)
    calls = calls[calls["stack"] == softmax.stack]
    shapes = (tensor_shapes(str(one)) for one in calls["shapes"].unique())
    return all(one[0][dim % len(one[0])] == 1 for one in shapes if one and one[0])


def _softmax_of(graph: LossGraph, loss: LossNode) -> LossNode | None:
    """The softmax or log_softmax whose result, or its logarithm, a loss gets as it is."""
    node = graph.nodes[loss.next[0]] if loss.next else None
    if node is not None and node.name == "Log" and node.next:
        node = graph.nodes[node.next[0]]
        return node if node.name == "Softmax" else None
    return node if node is not None and node.name == "LogSoftmax" else None


def _finding(
    run: Run,
    rank: int,
    graph: LossGraph,
    loss: LossNode,
    softmax: LossNode,
    dim: int,
    shape: list[int],
) -> Finding:
    what = " (over the samples of the batch)" if dim == 0 else ""
    return graph_finding(
        run,
        rank,
        graph,
        confidence="certain",
        title=f"nll_loss{loss.at} gets a softmax{softmax.at} over dimension {dim} of "
        f"{shape}{what}. The {shape[_CLASSES]} classes are dimension {_CLASSES}, and their "
        "probabilities do not add up to 1: pass dim=1 to the softmax, or use cross_entropy on the "
        "logits.",
        where=softmax.where or loss.where,
        evidence={"cause": "dimension", "dimension": dim, "shape": shape, "loss_at": loss.where},
    )
