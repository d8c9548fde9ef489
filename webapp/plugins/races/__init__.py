"""Finds data races between threads and between streams."""
