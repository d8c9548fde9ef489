"""Engines: what turns dispatched operators into journal records."""
