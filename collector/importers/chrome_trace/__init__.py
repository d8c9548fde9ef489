"""Reads the Chrome trace format: complete, begin and end, flow and other events."""
