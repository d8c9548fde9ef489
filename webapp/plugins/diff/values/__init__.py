"""Compares what the operators of two runs compute."""
