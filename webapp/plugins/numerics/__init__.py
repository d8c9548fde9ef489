"""Finds NaN and unrecorded writes in recorded values."""
