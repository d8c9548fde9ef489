"""Answers SQL queries in a locked process."""
