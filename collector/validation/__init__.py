"""Checks modules and gradients: validators, assertions, references."""
