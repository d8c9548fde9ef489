"""Answers questions about runs: one folder per question."""
