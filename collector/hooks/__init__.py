"""Hooks torch and Python: one file per thing observed.

Each has `install(recorder)`, which returns how to undo it.
"""
