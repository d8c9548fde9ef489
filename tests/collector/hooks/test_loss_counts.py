"""Over how many elements a loss is a mean is recorded of losses alone."""

from __future__ import annotations

from pathlib import Path

from lanescope.collector.format.loop_names import LOSS_COUNT
from tests.support.recording import record_program

LOSSES = """
    import torch
    from torch.nn import functional as F
    from torch.utils.checkpoint import checkpoint

    model = torch.nn.Linear(4, 3)
    x, y = torch.ones(16, 4), torch.zeros(16, dtype=torch.long)
    segment = checkpoint(lambda x: model(x).tanh(), x.requires_grad_(), use_reentrant=True)
    for loss in (
        F.cross_entropy(model(x), y),
        -F.log_softmax(model(x), 1)[:, 0].sum() / torch.tensor(5.0),
        F.cross_entropy(model(x), y, reduction="sum"),
        F.cross_entropy(model(x), y) + model.weight.square().sum(),  # several losses
        F.cross_entropy(model(x), y, label_smoothing=0.1),
        segment.square().mean(),  # its backward runs another, of [16, 3] numbers
    ):
        loss.backward()
"""


def test_sums_of_losses_and_parts_have_none(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, LOSSES)
    counts = [row["value"] for row in recorded.rows("value") if row["name"] == LOSS_COUNT]
    assert counts == [16.0, 5.0, 1.0, 48.0]
