"""Puts a run into one file: see `bundle` for what it looks like.

The same run gives the same bytes: members are sorted, carry no time of the clock and begin at
multiples of 64 bytes, so that arrays can be mapped.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from lanescope.collector.compaction.catalogue import catalogue_of
from lanescope.collector.format import schema
from lanescope.collector.format.catalogue import WORTH_LISTING
from lanescope.webapp.bundles.redaction import Redactor
from lanescope.webapp.bundles.selection import Contents, manifest_of
from lanescope.webapp.runs import notes
from lanescope.webapp.runs.bundle import BUNDLE, BUNDLE_FORMAT, Bundle, bundle_members
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.manifest import MAX_MANIFEST
from lanescope.webapp.runs.run import Run, run_of
from lanescope.webapp.runs.run_warnings import ranks_text
from lanescope.webapp.runs.storage import ADDRESS, LocalBytes, store_of
from lanescope.webapp.timeline import index as indexes

ALIGNED = 64
_PADDING = 0xD935  # what Android's zipalign calls its own padding
_WHEN = (1980, 1, 1, 0, 0, 0)  # the first instant that a zip file can name
_LARGE = 1 << 30
_PIECE = 1 << 20


def pack(
    run: Run,
    target: str | os.PathLike[str],
    *,
    ranks: Sequence[int] | None = None,
    steps: tuple[int, int] | None = None,
    redact: bool = False,
    cache: Path | None = None,
) -> None:
    """Writes a bundle of the run to a path, or to an address of an object store.

    `ranks` are those to take (all by default), `steps` [first, after the last). `redact` leaves
    out what identifies its user and machine, see `redaction`. `cache` is where indexes are kept.

    Raises RunError where a rank or step is not there, where a file of the run is damaged and where
    the target cannot be written; then there is no new file.
    """
    chosen = run.ranks if ranks is None else tuple(sorted(set(ranks)))
    for rank in chosen:
        if rank not in run.ranks:
            raise RunError(
                f"rank {rank}: no such rank; this run has {ranks_text(run.ranks)} of "
                f"{run.world_size}"
            )
    redactor = Redactor.of(run) if redact else None
    contents = Contents(run, chosen, steps, redactor.rows if redactor else None)
    address = os.fspath(target)
    remote = ADDRESS.match(address) is not None
    folder = None if remote else Path(target).absolute().parent
    try:
        with tempfile.TemporaryDirectory(prefix=".lanescope-", dir=folder) as making:
            made = Path(making) / "made.lanes"
            _write(made, contents, redactor, cache)
            if remote:
                _upload(made, address)
            else:
                made.replace(target)
    except OSError as error:
        raise RunError(
            f"{address}: cannot be written ({error.strerror or error}); choose another place "
            "with -o"
        ) from None


def _write(path: Path, contents: Contents, redactor: Redactor | None, cache: Path | None) -> None:
    run = contents.run
    with _Archive(path, "w") as archive:
        files = contents.write(archive.add)
        archive.add_bytes(schema.MANIFEST, _manifest(contents, files, redactor))
        listed = archive.listed
    made = _opened(path, run.title)
    own = notes.Notes(run.files).read()[0]
    if redactor is not None:
        own = redactor.tree(own)
    with _Archive(path, "a", listed) as archive:
        for name, data in indexes.index_members(indexes.open_index(made, cache), made):
            archive.add_bytes(name, data)
        if len(files) >= WORTH_LISTING:
            archive.add_bytes(schema.PART_CATALOGUE, catalogue_of(made.files.open, made.manifest))
        kept = notes.moved(
            own, run.origin_ns - made.origin_ns, made.duration_ns, len(made.ranks) == len(run.ranks)
        )
        if kept["notes"] or kept["views"]:
            archive.add_bytes(notes.NOTES_FILE, notes.encoded(kept))
        said = {"format": BUNDLE_FORMAT, "members": archive.listed}
        archive.add_bytes(BUNDLE, json.dumps(said, indent=1).encode())


def _manifest(
    contents: Contents, files: dict[str, schema.File], redactor: Redactor | None
) -> bytes:
    """The manifest as it is, where nothing is different: the run is then known for the same."""
    run = contents.run
    manifest: Any = manifest_of(contents, files)
    if redactor is not None:
        manifest = redactor.manifest(manifest)
    if manifest == run.manifest:
        raw = run.files.read(schema.MANIFEST, MAX_MANIFEST)
        if json.loads(raw) == manifest:
            return raw
    return json.dumps(manifest, indent=1).encode()


def _opened(path: Path, title: str) -> Run:
    """The run in a bundle that is not finished yet."""
    data = LocalBytes(path)
    try:
        return run_of(Bundle(data, title, title, bundle_members(data)), title)
    except RunError as error:
        raise RunError(f"nothing to pack: {error}") from None


class _Archive:
    """A zip file with nothing compressed."""

    def __init__(self, path: Path, mode: Any, listed: dict[str, Any] | None = None) -> None:
        self._zip = zipfile.ZipFile(path, mode, zipfile.ZIP_STORED)
        self.listed: dict[str, Any] = dict(listed or {})

    def __enter__(self) -> _Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def add_bytes(self, name: str, data: bytes | memoryview) -> None:
        """A member from memory."""
        self.add(name, io.BytesIO(data), len(data))

    def add(self, name: str, data: BinaryIO, size: int) -> None:
        """A member of `size` bytes. RunError where there are not as many."""
        entry = zipfile.ZipInfo(name, _WHEN)
        entry.create_system, entry.external_attr = 3, 0o100644 << 16
        entry.file_size = size
        large = size > _LARGE
        begins = self._zip.start_dir + 30 + len(name) + (20 if large else 0)
        padding = -(begins + 4) % ALIGNED
        entry.extra = struct.pack("<HH", _PADDING, padding) + bytes(padding)
        digest = hashlib.sha256()
        count = 0
        with self._zip.open(entry, "w", force_zip64=large) as member:
            while piece := data.read(_PIECE):
                digest.update(piece)
                count += member.write(piece)
        if count != size:
            raise RunError(f"{name} changed while it was packed; pack again")
        self.listed[name] = {"bytes": size, "sha256": digest.hexdigest()}


def _upload(path: Path, address: str) -> None:
    store, target = store_of(address)
    with _as_os_error(), path.open("rb") as source, store.open_output_stream(target) as sink:
        shutil.copyfileobj(source, sink, _PIECE)


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise OSError(str(error).split("\n")[0]) from None
