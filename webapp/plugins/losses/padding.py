"""Finds padding that is taken for data: targets at padded positions that a loss counts, and masks
that hide the tokens and show the padding. And data that are taken for padding: ends of rows that a
loss leaves out, a class that it leaves out, and rows of a table that padding_idx keeps from
training.

Read from the tokens, targets and masks that the graph keeps, of the first backward or, for the
ends and classes, of several.
"""

from __future__ import annotations

from lanescope.collector.format.loop_names import (
    COUNTED_PADDING,
    ENDS_LEFT_OUT,
    IGNORED_CLASS,
    PADDING_ALONE,
    PADDING_ROW,
)
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.plugins.losses.loss_graph import (
    each_rank_of_graphs,
    loss_facts,
    of_class_losses,
    of_nodes,
)
from lanescope.webapp.runs.run import Run

_MIN_SHARE = 0.1
"""Of the targets."""

_MIN_GRAPHS = 3
"""In which the longest row ends with one token that may be padding: by chance one batch does."""

_AS_OFTEN = 4.0
"""Times at most that a class is more or less frequent than the others are in the mean: otherwise it
may be that of samples without a label."""

_MIN_TOKENS = 4
"""Of the padding_idx of a table, within rows that another token fills up."""


@of_class_losses
@each_rank_of_graphs
def padding_in_losses(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    for fact in loss_facts(run, rank, COUNTED_PADDING):
        (token, label), share = fact.rest, float(fact.values.max())
        if share >= _MIN_SHARE:
            return fact.finding(
                run,
                rank,
                title=f"{share:.0%} of the targets of the loss{fact.node.at} are of padded "
                f"positions: token {token} fills up the rows, and the target there is always "
                f"{label}, as at no other position. The model is trained to predict padding, and "
                f"the loss looks better than it is. Pass ignore_index={label} to the loss, or "
                "fill targets up with -100.",
                evidence={"cause": "padding", "share": share, "class": int(label)},
            )
    return None


@each_rank_of_graphs
def inverted_masks(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `mixed_samples`, at most one per rank. Raises NotApplicable."""
    for fact in loss_facts(run, rank, PADDING_ALONE):
        (token,) = fact.rest
        return fact.finding(
            run,
            rank,
            kind="mixed_samples",
            title=f"The mask of the attention{fact.node.at} is inverted: it hides all tokens and "
            f"shows the padding alone (token {token}, which fills up the rows). True in "
            "key_padding_mask and in masked_fill() hides a position; in the attn_mask of "
            "scaled_dot_product_attention() it shows one. Use its inverse, ~mask.",
            evidence={"cause": "inverted_mask", "token": int(token)},
        )
    return None


@of_class_losses
@each_rank_of_graphs
def ends_left_out(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    for fact in loss_facts(run, rank, ENDS_LEFT_OUT):
        (token,), graphs = fact.rest, len(fact.values)
        if graphs >= _MIN_GRAPHS and (fact.values == 1).all():
            return fact.finding(
                run,
                rank,
                title=f"The loss{fact.node.at} leaves out the end of each text: token {token} ends "
                "the rows, fills up the shorter ones as well, and no target has it, not even at "
                "the end of the longest row. The model never learns to stop. Fill up with a token "
                "of its own (pad_token other than eos_token), or set labels to -100 by the "
                f"attention mask of the tokenizer, not where they are {token}.",
                evidence={"cause": "ends_left_out", "token": int(token), "graphs": graphs},
            )
    return None


@of_class_losses
@each_rank_of_graphs
def ignored_classes(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    for fact in loss_facts(run, rank, IGNORED_CLASS):
        left_out, share = fact.rest[0], float(fact.values.mean())
        others = (1 - share) / (int(fact.rest[1]) - 1)
        as_often = others / _AS_OFTEN <= share <= others * _AS_OFTEN
        if len(fact.values) >= _MIN_GRAPHS and as_often:
            return fact.finding(
                run,
                rank,
                title=f"The loss{fact.node.at} leaves out class {left_out}: it has "
                f"ignore_index={left_out}, and {share:.0%} of the samples are of that class, which "
                "the model has an output for. It never learns to predict it. Leave ignore_index "
                "out; it is for padding, or for samples without a label.",
                evidence={"cause": "ignored_class", "class": int(left_out), "share": share},
            )
    return None


@of_nodes("Embedding", "embedding")
@each_rank_of_graphs
def padding_rows(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `dead_parameter`, at most one per rank. Raises NotApplicable."""
    for fact in loss_facts(run, rank, PADDING_ROW):
        (row, token), often = fact.rest, int(fact.values.max())
        if often >= _MIN_TOKENS:
            return fact.finding(
                run,
                rank,
                kind="dead_parameter",
                title=f"The table {fact.node.module} that is read{fact.node.at} has "
                f"padding_idx={row}, and token {row} is a word, not padding: a batch has it "
                f"{often} times within its rows, and token {token} fills them up. The vector of "
                f"token {row} is never trained. Pass padding_idx={token}.",
                evidence={"cause": "padding_row", "row": int(row), "token": int(token)},
            )
    return None
