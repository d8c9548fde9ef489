"""The bytes of a file in blocks, unpacked where it is compressed, within limits."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .errors import Refused

BLOCK = 1 << 20
"""Bytes given at a time: what is decoded of them stays in the processor's cache, and the work per
block does not count yet."""

MOST_EXPANSION = 400
"""Times its size that a compressed file may become: traces come to 10-40, deflate's own limit is
1032, which only a file made for it reaches."""

FREE = 256 << 20
"""Unpacked bytes below which the ratio is not looked at."""

_GZIP = b"\x1f\x8b"


class Blocks:
    """The contents of a file, unpacked. `truncated` says, at the end, that a part is missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truncated = False
        self.packed = 0  # bytes read from the file
        self.given = 0  # bytes given

    def __iter__(self) -> Iterator[bytes]:
        """Blocks of at most BLOCK bytes. Raises Refused."""
        try:
            with self.path.open("rb") as file:
                head = file.read(2)
                file.seek(0)
                yield from self._unpacked(file) if head == _GZIP else self._plain(file)
        except OSError as error:
            raise Refused(f"{self.path}: cannot be read ({error.strerror})") from None

    def _plain(self, file: BinaryIO) -> Iterator[bytes]:
        while block := file.read(BLOCK):
            self.packed += len(block)
            self.given += len(block)
            yield block

    def _unpacked(self, file: BinaryIO) -> Iterator[bytes]:
        unpacker = zlib.decompressobj(wbits=31)
        packed = b""
        while True:
            if unpacker.eof:  # files of several members are one after the other
                packed = unpacker.unused_data or file.read(BLOCK >> 3)
                if not packed.startswith(_GZIP[: len(packed)]) or not packed:
                    return
                unpacker = zlib.decompressobj(wbits=31)
            elif not packed:
                packed = file.read(BLOCK >> 3)
                self.packed += len(packed)
            if not packed:
                self.truncated = True
                return
            try:
                block = unpacker.decompress(packed, BLOCK)
            except zlib.error as error:
                if not self.given:
                    raise Refused(
                        f"{self.path}: is not the gzip file it begins like ({error}); the file "
                        "is damaged"
                    ) from None
                self.truncated = True
                return
            packed = unpacker.unconsumed_tail
            self.given += len(block)
            if self.given > max(FREE, MOST_EXPANSION * self.packed):
                raise Refused(
                    f"{self.path}: unpacks to more than {MOST_EXPANSION} times its size, expected "
                    "a trace; unpack it yourself if you trust it"
                )
            if block:
                yield block
