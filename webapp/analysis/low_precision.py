"""Moved to `plugins.gradients.low_precision`; this name is kept for one release."""

from lanescope.webapp.plugins.gradients.low_precision import low_precision

__all__ = ["low_precision"]
