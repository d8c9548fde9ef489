"""Faults that raise nothing, and leave a loss that falls."""
