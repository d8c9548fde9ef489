"""Turns a run into spans, lanes, levels of detail and tiles."""
