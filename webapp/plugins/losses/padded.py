"""Finds padding that is taken for data: targets at padded positions that a loss counts, and masks
that hide the tokens and show the padding. And data that are taken for padding: ends of rows that a
loss leaves out, and rows of a table that padding_idx keeps from training.

Read from the tokens, targets and masks that the graph keeps, of the first backward or, for the
ends, of several.
"""

from __future__ import annotations

from lanescope.collector.format.loop_names import (
    COUNTED_PADDING,
    ENDS_LEFT_OUT,
    PADDING_ALONE,
    PADDING_ROW,
)
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.plugins.losses.loss_graph import (
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


@each_rank_of_graphs
def padding_in_losses(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    rows = logged(run, rank, prefix=COUNTED_PADDING)
    rows = rows[rows["value"] >= _MIN_SHARE]
    graph = None if rows.empty else loss_graph(run, rank)
    if graph is None:
        return None
    first = rows.iloc[0]
    number, token, label = str(first["name"]).split("/")
    loss = graph.nodes.get(int(number))
    if loss is None:
        return None
    at = f" at {loss.where}" if loss.where else ""
    return graph_finding(
        run,
        rank,
        graph,
        title=f"{first['value']:.0%} of the targets of the loss{at} are of padded positions: token "
        f"{token} fills up the rows, and the target there is always {label}, as at no other "
        "position. The model is trained to predict padding, and the loss looks better than it is. "
        f"Pass ignore_index={label} to the loss, or fill targets up with -100.",
        where=loss.where,
        evidence={"cause": "padding", "share": float(first["value"]), "class": int(label)},
    )


@each_rank_of_graphs
def inverted_masks(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `mixed_samples`, at most one per rank. Raises NotApplicable."""
    rows = logged(run, rank, prefix=PADDING_ALONE)
    graph = None if rows.empty else loss_graph(run, rank)
    if graph is None:
        return None
    number, token = str(rows["name"].iloc[0]).split("/")
    node = graph.nodes.get(int(number))
    if node is None:
        return None
    at = f" at {node.where}" if node.where else ""
    return graph_finding(
        run,
        rank,
        graph,
        kind="mixed_samples",
        title=f"The mask of the attention{at} is inverted: it hides all tokens and shows the "
        f"padding alone (token {token}, which fills up the rows). True in key_padding_mask and in "
        "masked_fill() hides a position; in the attn_mask of scaled_dot_product_attention() it "
        "shows one. Use its inverse, ~mask.",
        where=node.where,
        evidence={"cause": "inverted_mask", "token": int(token)},
    )


@each_rank_of_graphs
def ends_left_out(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    rows = logged(run, rank, prefix=ENDS_LEFT_OUT)
    if len(rows) < _MIN_GRAPHS or not (rows["value"] == 1).all():
        return None
    graph = loss_graph(run, rank)
    number, token = str(rows["name"].iloc[0]).split("/")
    node = None if graph is None else graph.nodes.get(int(number))
    if graph is None or node is None:
        return None
    at = f" at {node.where}" if node.where else ""
    return graph_finding(
        run,
        rank,
        graph,
        title=f"The loss{at} leaves out the end of each text: token {token} ends the rows, fills "
        "up the shorter ones as well, and no target has it, not even at the end of the longest "
        "row. The model never learns to stop. Fill up with a token of its own (pad_token "
        "other than eos_token), or set labels to -100 by the attention mask of the tokenizer, "
        f"not where they are {token}.",
        where=node.where,
        evidence={"cause": "ends_left_out", "token": int(token), "graphs": len(rows)},
    )


@each_rank_of_graphs
def padding_rows(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `dead_parameter`, at most one per rank. Raises NotApplicable."""
    rows = logged(run, rank, prefix=PADDING_ROW)
    rows = rows[rows["value"] >= _MIN_TOKENS]
    graph = None if rows.empty else loss_graph(run, rank)
    if graph is None:
        return None
    number, row, token = str(rows["name"].iloc[0]).split("/")
    table = graph.nodes.get(int(number))
    if table is None:
        return None
    at = f" at {table.where}" if table.where else ""
    return graph_finding(
        run,
        rank,
        graph,
        kind="dead_parameter",
        title=f"The table {table.module} that is read{at} has padding_idx={row}, and token {row} "
        f"is a word, not padding: the first batch has it {int(rows['value'].iloc[0])} times within "
        f"its rows, and token {token} fills them up. The vector of token {row} is never trained. "
        f"Pass padding_idx={token}.",
        where=table.where,
        evidence={"cause": "padding_row", "row": int(row), "token": int(token)},
    )
