"""Writes the journal: crash-safe records of each thread, strings, segments."""
