"""Reads the graphs that torch.compile captured: what a loss in them gets, and what they put out.

An fx node does not say which argument is the first. So a loss counts where one input comes from a
layer of the graph and the other ones from no layer, as targets do; and not where gradients are
switched off in the graph, as for a teacher's targets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lanescope.webapp.analysis.stack_frames import short_place
from lanescope.webapp.plugins.autograd_graph.fx_graph import fx_graphs, fx_nodes
from lanescope.webapp.runs.run import Run

_SAME_NUMBERS = re.compile(
    r"(clone|contiguous|expand|flatten|float|getitem|permute|reshape|select|squeeze|t|to|transpose"
    r"|type|unsqueeze|view)"
)
_LAYERS = re.compile(r"(addmm|b?mm|conv\w*|embedding|linear|matmul)")

NODES = {
    "softmax": "Softmax",
    "sigmoid": "Sigmoid",
    "log_softmax": "LogSoftmax",
    "linear": "Linear",
}
"""Name of a function in fx -> of its node in autograd."""


@dataclass(frozen=True)
class FxCall:
    """A call in a captured graph."""

    number: int
    name: str  # of the function, without its module
    where: str | None  # file.py:12


@dataclass(frozen=True)
class CapturedGraph:
    """A graph that torch.compile captured."""

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
            if one in self.calls and _LAYERS.fullmatch(self.calls[one].name):
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
