"""Moved to `plugins.gradients.backward_threads`; this name is kept for one release."""

from lanescope.webapp.plugins.gradients.backward_threads import added_by_layer, backward_threads

__all__ = ["added_by_layer", "backward_threads"]
