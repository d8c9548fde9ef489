"""Reads a file in blocks, unpacked where it is compressed, within limits."""

from __future__ import annotations

import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .import_limits import ImportRejected

BLOCK_BYTES = 1 << 20
"""Size of a block: its decoded contents stay in the processor's cache, and the overhead per block
does not matter."""

MAX_EXPANSION = 400
"""Largest ratio of unpacked to packed bytes. Traces reach 10 to 40; deflate's limit of 1032 is
reached only by files made to exhaust memory."""

MIN_CHECKED_BYTES = 256 << 20
"""The ratio is checked above this many unpacked bytes."""

_GZIP = b"\x1f\x8b"


class Blocks:
    """Iterates the unpacked contents of a file; afterwards `truncated` says that a part is missing.

    A byte order mark is removed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truncated = False
        self.packed = 0  # bytes read from the file
        self.unpacked = 0  # bytes returned

    def __iter__(self) -> Iterator[bytes]:
        """Yields blocks of at most BLOCK_BYTES. Raises ImportRejected."""
        try:
            with self.path.open("rb") as file:
                head = file.read(2)
                file.seek(0)
                blocks = self._read_gzip(file) if head == _GZIP else self._read_plain(file)
                yield next(blocks, b"").removeprefix(BOM_UTF8)
                yield from blocks
        except OSError as error:
            raise ImportRejected(f"{self.path}: cannot be read ({error.strerror})") from None

    def _read_plain(self, file: BinaryIO) -> Iterator[bytes]:
        while block := file.read(BLOCK_BYTES):
            self.packed += len(block)
            self.unpacked += len(block)
            yield block

    def _read_gzip(self, file: BinaryIO) -> Iterator[bytes]:
        unpacker = zlib.decompressobj(wbits=31)
        packed = b""
        while True:
            if unpacker.eof:  # a gzip file may have several members in sequence
                packed = unpacker.unused_data or file.read(BLOCK_BYTES >> 3)
                if not packed.startswith(_GZIP[: len(packed)]) or not packed:
                    return
                unpacker = zlib.decompressobj(wbits=31)
            elif not packed:
                packed = file.read(BLOCK_BYTES >> 3)
                self.packed += len(packed)
            if not packed:
                self.truncated = True
                return
            try:
                block = unpacker.decompress(packed, BLOCK_BYTES)
            except zlib.error as error:
                if not self.unpacked:
                    raise ImportRejected(
                        f"{self.path}: is not the gzip file it begins like ({error}); the file "
                        "is damaged"
                    ) from None
                self.truncated = True
                return
            packed = unpacker.unconsumed_tail
            self.unpacked += len(block)
            if self.unpacked > max(MIN_CHECKED_BYTES, MAX_EXPANSION * self.packed):
                raise ImportRejected(
                    f"{self.path}: unpacks to more than {MAX_EXPANSION} times its size, expected "
                    "a trace; unpack it yourself if you trust it"
                )
            if block:
                yield block
