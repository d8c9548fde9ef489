"""Moved to `plugins.gradients.not_finite`; this name is kept for one release."""

from lanescope.webapp.plugins.gradients.not_finite import low_precision

__all__ = ["low_precision"]
