"""Callbacks for training frameworks, and `Training` for plain loops.

They put epochs, logged metrics, evaluation and checkpoints on the timeline. Steps, forward,
backward and optimizer phases are recorded without them.
"""

from lanescope.integrations.training import Training

__all__ = ["Training"]
