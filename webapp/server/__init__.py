"""Serves a run: application, HTTP, access, live state."""
