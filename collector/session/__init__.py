"""Starts, joins and finishes a recording."""
