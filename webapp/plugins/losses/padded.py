"""Finds padding that is taken for data: targets at padded positions that a loss counts, and masks
that hide the tokens and show the padding. And data that are taken for padding: ends of rows that a
loss leaves out, a class that it leaves out, and rows of a table that padding_idx keeps from
training.

Read from the tokens, targets and masks that the graph keeps, of the first backward or, for the
ends and classes, of several.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from lanescope.collector.format.loop_names import (
    COUNTED_PADDING,
    ENDS_LEFT_OUT,
    IGNORED_CLASS,
    PADDING_ALONE,
    PADDING_ROW,
)
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.plugins.losses.loss_graph import (
    LossGraph,
    LossNode,
    each_rank_of_graphs,
    graph_finding,
    loss_graph,
)
from lanescope.webapp.runs.run import Run

_MIN_SHARE = 0.1
"""Of the targets."""

_MIN_GRAPHS = 3
"""In which the longest row ends with one token that may be padding: by chance one batch does."""

_MIN_TOKENS = 4
"""Of the padding_idx of a table, within rows that another token fills up."""


_AS_OFTEN = 4.0
"""Times at most that a class is more or less frequent than the others are in the mean: otherwise it
may be that of samples without a label."""


class _Fact(NamedTuple):
    """The first of the facts that the recorder wrote."""

    graph: LossGraph
    node: LossNode  # that it is about
    rest: list[str]  # what follows the node in its name
    value: float

    @property
    def at(self) -> str:
        return at_place(self.node.where)


def _first_fact(run: Run, rank: int, rows: pd.DataFrame) -> _Fact | None:
    """Returns the first of some rows of `logged`; None: there are none, or no node for it."""
    graph = None if rows.empty else loss_graph(run, rank)
    if graph is None:
        return None
    number, *rest = str(rows["name"].iloc[0]).split("/")
    node = graph.nodes.get(int(number))
    return None if node is None else _Fact(graph, node, rest, float(rows["value"].iloc[0]))


@each_rank_of_graphs
def padding_in_losses(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    rows = logged(run, rank, prefix=COUNTED_PADDING)
    found = _first_fact(run, rank, rows[rows["value"] >= _MIN_SHARE])
    if found is None:
        return None
    token, label = found.rest
    return graph_finding(
        run,
        rank,
        found.graph,
        title=f"{found.value:.0%} of the targets of the loss{found.at} are of padded positions: "
        f"token {token} fills up the rows, and the target there is always {label}, as at no other "
        "position. The model is trained to predict padding, and the loss looks better than it is. "
        f"Pass ignore_index={label} to the loss, or fill targets up with -100.",
        where=found.node.where,
        evidence={"cause": "padding", "share": found.value, "class": int(label)},
    )


@each_rank_of_graphs
def inverted_masks(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `mixed_samples`, at most one per rank. Raises NotApplicable."""
    found = _first_fact(run, rank, logged(run, rank, prefix=PADDING_ALONE))
    if found is None:
        return None
    (token,) = found.rest
    return graph_finding(
        run,
        rank,
        found.graph,
        kind="mixed_samples",
        title=f"The mask of the attention{found.at} is inverted: it hides all tokens and shows the "
        f"padding alone (token {token}, which fills up the rows). True in key_padding_mask and in "
        "masked_fill() hides a position; in the attn_mask of scaled_dot_product_attention() it "
        "shows one. Use its inverse, ~mask.",
        where=found.node.where,
        evidence={"cause": "inverted_mask", "token": int(token)},
    )


@each_rank_of_graphs
def ends_left_out(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    rows = logged(run, rank, prefix=ENDS_LEFT_OUT)
    if len(rows) < _MIN_GRAPHS or not (rows["value"] == 1).all():
        return None
    found = _first_fact(run, rank, rows)
    if found is None:
        return None
    (token,) = found.rest
    return graph_finding(
        run,
        rank,
        found.graph,
        title=f"The loss{found.at} leaves out the end of each text: token {token} ends the rows, "
        "fills up the shorter ones as well, and no target has it, not even at the end of the "
        "longest row. The model never learns to stop. Fill up with a token of its own (pad_token "
        "other than eos_token), or set labels to -100 by the attention mask of the tokenizer, "
        f"not where they are {token}.",
        where=found.node.where,
        evidence={"cause": "ends_left_out", "token": int(token), "graphs": len(rows)},
    )


@each_rank_of_graphs
def ignored_classes(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    rows = logged(run, rank, prefix=IGNORED_CLASS)
    found = _first_fact(run, rank, rows)
    if found is None:
        return None
    parts = rows["name"].astype("str").str.rsplit("/", n=1, expand=True)
    own = parts[0] == parts[0].iloc[0]
    left_out, share = found.rest[0], float(rows["value"][own].mean())
    others = float(parts[1][own].astype("float64").mean())
    if own.sum() < _MIN_GRAPHS or not others / _AS_OFTEN <= share <= others * _AS_OFTEN:
        return None
    return graph_finding(
        run,
        rank,
        found.graph,
        title=f"The loss{found.at} leaves out class {left_out}: it has ignore_index={left_out}, "
        f"and {share:.0%} of the samples are of that class, which the model has an output for. It "
        "never learns to predict it. Leave ignore_index out; it is for padding, or for samples "
        "without a label.",
        where=found.node.where,
        evidence={"cause": "ignored_class", "class": int(left_out), "share": share},
    )


@each_rank_of_graphs
def padding_rows(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `dead_parameter`, at most one per rank. Raises NotApplicable."""
    rows = logged(run, rank, prefix=PADDING_ROW)
    found = _first_fact(run, rank, rows[rows["value"] >= _MIN_TOKENS])
    if found is None:
        return None
    row, token = found.rest
    return graph_finding(
        run,
        rank,
        found.graph,
        kind="dead_parameter",
        title=f"The table {found.node.module} that is read{found.at} has padding_idx={row}, and "
        f"token {row} is a word, not padding: the first batch has it {int(found.value)} times "
        f"within its rows, and token {token} fills them up. The vector of token {row} is never "
        f"trained. Pass padding_idx={token}.",
        where=found.node.where,
        evidence={"cause": "padding_row", "row": int(row), "token": int(token)},
    )
