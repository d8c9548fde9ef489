"""Hooks process groups: collectives, ranks, clocks of hosts."""
