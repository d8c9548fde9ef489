"""Ids of the page's components: callbacks, scripts and tests name the same ones."""

COLLECTIVE_GROUP = "collective-group"
COLLECTIVE_HEAT = "collective-heat"
COLLECTIVE_NOTE = "collective-note"
COLLECTIVE_LATENCY = "collective-latency"
COLLECTIVE_BANDWIDTH = "collective-bandwidth"
COLLECTIVE_TABLE = "collective-table"
DEVICE_TIMES = "device-times"
