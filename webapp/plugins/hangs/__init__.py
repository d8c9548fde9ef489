"""Explains hangs and the end of processes."""
