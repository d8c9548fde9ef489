"""Reads what a run held at one moment, also while it is being recorded."""

from __future__ import annotations

from lanescope.collector.format import schema
from lanescope.webapp.runs.catalogue import read_catalogue
from lanescope.webapp.runs.files import Files
from lanescope.webapp.runs.journal_recovery import RecoveredJournals, leftovers, segments
from lanescope.webapp.runs.manifest import read_manifest
from lanescope.webapp.runs.parquet_parts import PartScan, survey

_READINGS = 4
"""Most times that a run is read until nothing moves meanwhile; then the last reading is taken."""


def read_moment(files: Files) -> tuple[schema.Manifest, bytes, PartScan, RecoveredJournals]:
    """Reads the manifest, parsed and as bytes, and what files and journals of that moment hold.

    While a run is recorded, rows move out of journals into files. Where that happened meanwhile,
    some would be missing in both, so all is read again.
    """
    for _ in range(_READINGS):
        before = segments(files)
        manifest, raw = read_manifest(files)
        found = survey(files, manifest, read_catalogue(files, len(manifest["files"])))
        left = leftovers(files, manifest, found.parts)
        if not before or (before <= segments(files) and raw == read_manifest(files)[1]):
            break
    return _with_journals(manifest, left), raw, found, left


def _with_journals(manifest: schema.Manifest, left: RecoveredJournals) -> schema.Manifest:
    """The manifest with the processes whose journals were read, in the place of older entries."""
    return {
        **manifest,
        "processes": left.processes,
        "groups": {**left.groups, **manifest["groups"]},
        "world_size": max(manifest["world_size"], left.world_size),
    }
