"""Analyses threads: overlap, deadlocks, contexts, concurrent backward."""
