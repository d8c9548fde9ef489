"""Defines the fingerprint of a tensor's values, and computes it in numpy."""
