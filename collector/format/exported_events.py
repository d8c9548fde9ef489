"""Names of the metadata events by which a trace made by `lanescope export` carries its run."""

MANIFEST_EVENT = "lanescope_manifest"
TABLE_EVENT = "lanescope_table"
