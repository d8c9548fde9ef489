"""Packs, verifies, redacts and merges runs."""
