"""Checks a run: findings, limits, environment, operator table."""
