"""Holds the state of a recording: one recorder per process."""
