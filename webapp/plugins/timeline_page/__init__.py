"""Lays out the page around the timeline."""
