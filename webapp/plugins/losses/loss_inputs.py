"""Finds losses that take a softmax or a logarithm of results that have one already, or of none, or
of scores that dropout went over.

Read from the graph of the first backward: which node made the numbers that a loss gets. Views,
indexing and casts between the two do not count. Where torch.compile compiled the model or the loss,
read from the graphs that it captured. A logarithm of negative numbers makes the loss NaN and leaves
gradients finite.

kl_div consists of operators: one of them multiplies its arguments. Where that reads what a softmax
or a sigmoid with a gradient made, the first argument holds probabilities: targets have no gradient.
Seen in the bytes that operators of any backward read, so the graph of the first one need not hold
the loss.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lanescope.collector.format.names import NAN_LOSS
from lanescope.webapp.analysis.arrow_columns import having, ops_named, stack_of, texts_of
from lanescope.webapp.analysis.cluster import found_per_rank
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.forward_ops import DROPOUT, dropout_ops
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.parameter_history import logged, rank_gradient_rows
from lanescope.webapp.analysis.stack_frames import own_place, short_place
from lanescope.webapp.plugins.autograd_graph.fx_graph import fx_graphs, fx_nodes
from lanescope.webapp.plugins.losses.loss_graph import (
    LossGraph,
    LossNode,
    graph_finding,
    loss_graph,
    need_graphs,
)
from lanescope.webapp.plugins.losses.tensor_reads import (
    OPERATOR_KEY,
    READ_COLUMNS,
    Tensor,
    TensorReads,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_LAYERS = ("Addmm", "Addbmm", "Bmm", "Convolution", "Linear", "MkldnnConvolution", "Mm")
"""Nodes of layers, whose numbers have no bounds."""

_LOGITS = "Give it the logits: leave that {function} out in training"
_LOG_INPUT = "Its first argument is the result of log_softmax, its second the target"
_LOGARITHMS = "Give it the result of log_softmax, or use cross_entropy"

_WRONG = {
    ("cross_entropy", "Softmax"): ("probabilities, and takes a softmax of them again", _LOGITS),
    ("cross_entropy", "Sigmoid"): ("probabilities, and takes a softmax of them", _LOGITS),
    ("binary_cross_entropy_with_logits", "Sigmoid"): (
        "probabilities, and takes a sigmoid of them again",
        _LOGITS,
    ),
    ("binary_cross_entropy_with_logits", "Softmax"): (
        "probabilities, and takes a sigmoid of them",
        _LOGITS,
    ),
    ("nll_loss", "Sigmoid"): ("probabilities in place of their logarithms", _LOGARITHMS),
    ("nll_loss", "Softmax"): (
        "probabilities in place of their logarithms, which is not a cross-entropy",
        _LOGARITHMS,
    ),
    ("kl_div", "Sigmoid"): ("probabilities in place of their logarithms", _LOG_INPUT),
    ("kl_div", "Softmax"): ("probabilities in place of their logarithms", _LOG_INPUT),
    **{
        (loss, "Dropout"): (
            "scores that dropout set to 0 or scaled, so the model cannot be certain in training",
            "Put {function} before the last layer",
        )
        for loss in ("cross_entropy", "binary_cross_entropy_with_logits")
    },
    **{
        ("kl_div", layer): (
            "the output of a layer in place of logarithms of probabilities",
            _LOG_INPUT,
        )
        for layer in _LAYERS
    },
    **{
        ("nll_loss", layer): (
            "the output of a layer in place of logarithms of probabilities, so its value has no "
            "lower bound",
            _LOGARITHMS,
        )
        for layer in _LAYERS
    },
}
"""(loss, node that made its input) -> what the loss gets, and what to do."""

_FUNCTIONS = {
    "NllLoss": "nll_loss",
    "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
}
"""Nodes of losses -> their functions; cross_entropy is a log_softmax before an nll_loss."""

_KL_DIV = "aten::kl_div"
_LOG, _MIN_STEPS = re.compile("Log(10|1P|2)?"), 3
_COMPILED = "CompiledFunction"
_COMPARES = ("cross_entropy", *_FUNCTIONS.values())


_SAME_NUMBERS = re.compile(
    r"(clone|contiguous|expand|flatten|float|getitem|permute|reshape|select|squeeze|t|to|transpose"
    r"|type|unsqueeze|view)"
)
_CALLED_LAYERS = re.compile(r"(addmm|b?mm|conv\w*|embedding|linear|matmul)")

NODES = {
    "softmax": "Softmax",
    "sigmoid": "Sigmoid",
    "log_softmax": "LogSoftmax",
    "linear": "Linear",
}
"""Name of a function in fx -> of its node in autograd."""


@dataclass(frozen=True)
class _Loss:
    """A loss, and what made its input."""

    where: str | None
    function: str
    made: str  # name of the node
    made_at: str | None


@found_per_rank(need_graphs)
def loss_inputs(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    graph = loss_graph(run, rank)
    if graph is None:
        return None
    losses = (
        *_losses(run, rank, graph),
        *_divergences(run, rank, graph),
        *_compiled_losses(run, rank),
        *_later_divergences(run, rank),
    )
    wrong = next((loss for loss in losses if (loss.function, loss.made) in _WRONG), None)
    if wrong is None:
        return _negative_logarithm(run, rank, graph)
    gets, advice = _WRONG[wrong.function, wrong.made]
    made = wrong.made.lower()
    at = at_place(wrong.where)
    by = f" ({made} at {wrong.made_at})" if wrong.made_at else f" ({made})"
    return graph_finding(
        run,
        rank,
        graph,
        title=f"{wrong.function}{at} gets {gets}{by}. {advice.format(function=made)}.",
        where=wrong.where or wrong.made_at,
        evidence={
            "cause": "input",
            "loss": wrong.function,
            "input": made,
            "made_at": wrong.made_at,
        },
    )


def _negative_logarithm(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """A logarithm before losses that are NaN while all gradients are finite: its own is 1 / x."""
    made = next((one for one in graph.nodes.values() if _LOG.fullmatch(one.name)), None)
    steps = logged(run, rank, NAN_LOSS)["step"].drop_duplicates()
    rows = rank_gradient_rows(run, rank)
    norms = rows.loc[rows["step"].isin(steps) & ~rows["missing"], "norm"]
    if made is None or len(steps) < _MIN_STEPS or norms.empty or not np.isfinite(norms).all():
        return None
    return graph_finding(
        run,
        rank,
        graph,
        title=f"The loss is NaN in {units.counted(len(steps), 'step')} while all gradients are "
        f"finite: a logarithm{made.at} gets negative numbers, as those of a layer. Give it "
        "probabilities (softmax or sigmoid before it), or use log_softmax or a loss of logits.",
        where=made.where,
        evidence={"cause": "negative_logarithm", "steps": len(steps)},
    )


def _losses(run: Run, rank: int, graph: LossGraph) -> Iterator[_Loss]:
    for node in graph.nodes.values():
        function = _FUNCTIONS.get("NllLoss" if node.name.startswith("NllLoss") else node.name)
        source = graph.source(node) if function else None
        if function == "nll_loss" and source is not None and source.name == "LogSoftmax":
            function, source = "cross_entropy", graph.source(source)
        if function is None or source is None:
            continue
        made, made_at = source.name, source.where
        if _is_dropout(run, rank, source):
            made = "Dropout"
        if made == _COMPILED:
            ends = [one.output() for one in captured_graphs(run, rank)] or [None]
            if ends[0] is None or len({one.name if one else "" for one in ends}) > 1:
                continue  # which graph made the input is not known
            made, made_at = NODES.get(ends[0].name, ""), ends[0].where
        yield _Loss(node.where, function, made, made_at)


def _is_dropout(run: Run, rank: int, node: LossNode) -> bool:
    """Whether dropout made a node, which on the host is a product with one gradient."""
    if node.name != "Mul" or len(node.next) != 1 or node.start_ns is None:
        return node.name == "NativeDropout"
    calls = dropout_ops(run, rank, ["name", "start_ns", "duration_ns"])
    calls = calls[calls["name"].isin(DROPOUT)]
    ends = calls["start_ns"] + calls["duration_ns"].fillna(0)
    return bool(((calls["start_ns"] <= node.start_ns) & (node.start_ns <= ends)).any())


def _divergences(run: Run, rank: int, graph: LossGraph) -> Iterator[_Loss]:
    """Calls of kl_div, which consists of operators: where only its first argument has a gradient,
    that is the factor of a product within it."""
    columns = ["start_ns", "duration_ns", "name", "stack"]
    table = run.events("op", rank, columns=columns, window=(0, graph.time_ns))
    for call in table.filter(having(table["name"], _KL_DIV.__eq__)).to_pylist():
        end = call["start_ns"] + (call["duration_ns"] or 0)
        inside = [
            node
            for node in graph.nodes.values()
            if node.start_ns is not None and call["start_ns"] <= node.start_ns <= end
        ]
        product = [node for node in inside if node.name == "Mul"]
        if len(product) != 1 or len(product[0].next) != 1 or any(map(_of_target, inside)):
            continue
        source = graph.source(product[0])
        if source is not None:
            where = own_place(run, rank, call["stack"]) or product[0].where
            yield _Loss(where, "kl_div", source.name, source.where)


def _of_target(node: LossNode) -> bool:
    """Whether the target of kl_div has a gradient, or holds logarithms."""
    return node.name in ("Exp", "Xlogy")


def _compiled_losses(run: Run, rank: int) -> Iterator[_Loss]:
    for graph in captured_graphs(run, rank):
        for call in graph.calls.values():
            source = graph.compared(call) if call.name in _COMPARES else None
            if source is not None:
                yield _Loss(call.where, call.name, NODES.get(source.name, ""), source.where)


_PROBABILITIES = {"aten::_softmax": "Softmax", "aten::sigmoid": "Sigmoid"}
_ON_TARGETS = ("aten::exp", "aten::xlogy")
"""Operators of kl_div on its target."""
_IN_DIVERGENCES = re.compile(r"aten::(kl_div|_softmax|sigmoid|mul|exp|xlogy|log_)")
_MOST_CALLS = 4


def _later_divergences(run: Run, rank: int) -> Iterator[_Loss]:
    """Yields what is wrong with the first calls of kl_div of each thread."""
    if _KL_DIV not in texts_of(run, "op", "name", rank) or not run.counts_of(rank)["access"]:
        return
    columns = [*OPERATOR_KEY, "duration_ns", "name", "stack", "sequence"]
    for thread in run.threads_of(rank):
        ops = ops_named(run, rank, thread.thread, columns, _IN_DIVERGENCES.fullmatch)
        calls = ops[(ops["name"] == _KL_DIV)].head(_MOST_CALLS)
        if calls.empty or (ops["name"] == "aten::log_").any():  # of probabilities, in place
            continue
        ends = calls["start_ns"] + calls["duration_ns"].fillna(0)
        window = int(ops["start_ns"].min()), int(ends.max()) + 1
        memory = TensorReads(run.events("access", rank, thread.thread, READ_COLUMNS, window))
        made = _made(ops[ops["start_ns"] < window[1]], memory)
        for start, end, stack in zip(calls["start_ns"], ends, calls["stack"], strict=True):
            own = ops[(ops["start_ns"] > start) & (ops["start_ns"] < end)]
            own = own[own["sequence"].notna()]
            products = own[own["name"] == "aten::mul"]
            if len(products) != 1 or own["name"].isin(_ON_TARGETS).any():
                continue
            key = int(products["start_ns"].iloc[0]), int(products["depth"].iloc[0])
            for tensor in memory.read_by(memory.at(*key)):
                if tensor in made:
                    op = made[tensor]
                    where = own_place(run, rank, None if pd.isna(stack) else int(stack))
                    made_at = own_place(run, rank, stack_of(op))
                    yield _Loss(where, "kl_div", _PROBABILITIES[str(op["name"])], made_at)


def _made(ops: pd.DataFrame, memory: TensorReads) -> dict[Tensor, pd.Series]:
    """Tensors that a softmax or a sigmoid with a gradient made, and the operator."""
    found = {}
    for _, op in ops[ops["name"].isin(_PROBABILITIES) & ops["sequence"].notna()].iterrows():
        accesses = memory.at(int(op["start_ns"]), int(op["depth"]))
        end = int(op["start_ns"] + op["duration_ns"])
        for at in accesses[memory.write[accesses]]:
            found[memory.tensor(int(memory.storage[at]), end)] = op
    return found


@dataclass(frozen=True)
class FxCall:
    """A call in a captured graph."""

    number: int
    name: str  # of the function, without its module
    where: str | None  # file.py:12


@dataclass(frozen=True)
class CapturedGraph:
    """A graph that torch.compile captured: what a loss in it gets, and what it puts out.

    An fx node does not say which argument is the first. So a loss counts where one input comes from
    a layer of the graph and the other ones from no layer, as targets do; and not where gradients
    are switched off in the graph, as for a teacher's targets.
    """

    calls: dict[int, FxCall]
    before: dict[int, list[int]]  # node -> nodes whose result it uses

    def source(self, number: int) -> FxCall | None:
        """Returns what made the numbers of a node's result."""
        call = self.calls.get(number)
        for _ in self.calls:
            if call is None or not _SAME_NUMBERS.fullmatch(call.name):
                return call
            before = self.before.get(call.number, [])
            call = self.calls.get(before[0]) if before else None
        return None

    def compared(self, loss: FxCall) -> FxCall | None:
        """Returns what made the input of a loss; None where that is not certain."""
        if any(call.name == "_set_grad_enabled" for call in self.calls.values()):
            return None
        learned = [one for one in self.before.get(loss.number, []) if self._learned(one)]
        return self.source(learned[0]) if len(learned) == 1 else None

    def output(self) -> FxCall | None:
        """Returns what made the only result of the graph; None: it has several."""
        ends = [call for call in self.calls.values() if call.name == "output"]
        before = self.before.get(ends[0].number, []) if len(ends) == 1 else []
        return self.source(before[0]) if len(before) == 1 else None

    def _learned(self, number: int) -> bool:
        """Whether a layer of the graph comes before a node."""
        pending, seen = [number], {number}
        while pending:
            one = pending.pop()
            if one in self.calls and _CALLED_LAYERS.fullmatch(self.calls[one].name):
                return True
            for before in self.before.get(one, []):
                if before not in seen:
                    seen.add(before)
                    pending.append(before)
        return False


def captured_graphs(run: Run, rank: int) -> Iterator[CapturedGraph]:
    """Yields the graphs that torch.compile captured on a rank, the first one first."""
    for name in fx_graphs(run, rank):
        if not name.endswith("(compiled)"):
            continue
        calls: dict[int, FxCall] = {}
        before: dict[int, list[int]] = {}
        for row in fx_nodes(run, rank, name).itertuples():
            target = str(row.target) if str(row.op).startswith("call_") else str(row.op)
            where = short_place(str(row.where)) or None
            function = target.rpartition(".")[2]
            calls[int(row.node)] = FxCall(int(row.node), function, where)
            for user in str(row.next).split():
                before.setdefault(int(user), []).append(int(row.node))
        yield CapturedGraph(calls, before)
