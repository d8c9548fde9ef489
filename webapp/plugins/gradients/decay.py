"""Is weight decay stronger than the gradient?

Where decay is part of the gradient (SGD, Adam): weight_decay * |parameter| > STRONGER * |g|.
Where it is not (AdamW and its like): the decay of a step, lr * weight_decay, makes up MOSTLY or
more of its update ratio.
"""

from __future__ import annotations

import pandas as pd

STRONGER = 10.0  # times the gradient; at a minimum of the regularised loss both are equal
MOSTLY = 0.9  # of the update

DECOUPLED = ("AdamW", "Lion", "Lamb", "LAMB", "Muon", "Sophia")
"""Classes of optimizers (or what their names begin with) that decay apart from the gradient."""


def decays(rows: pd.DataFrame) -> pd.Series:
    """Which rows of the parameter table show decay stronger than the gradient."""
    decay = rows["weight_decay"].fillna(0.0)
    apart = rows["rule"].str.startswith(DECOUPLED)
    within = decay * rows["norm"] > STRONGER * rows["grad_norm"]
    share = decay * rows["lr"].fillna(0.0) >= MOSTLY * rows["update_ratio"]
    changes = rows["update_ratio"] > 0
    return (decay > 0) & changes & (share.where(apart, within))
