"""Hooks threads and what synchronises them: locks, queues, futures."""
