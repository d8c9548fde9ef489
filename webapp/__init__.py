"""Reads a run and shows it."""
