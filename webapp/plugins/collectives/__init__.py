"""Analyses collectives: skew, stragglers, bandwidth, mismatches."""
