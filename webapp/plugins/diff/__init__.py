"""Compares runs: first difference, values, timing, repetitions."""
