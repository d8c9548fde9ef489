"""Finds what of one run belongs to what of another."""
