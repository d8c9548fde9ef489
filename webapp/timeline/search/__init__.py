"""Finds slices: by place, by name, by module."""
