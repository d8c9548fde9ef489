"""A bundle: a run in one file, read in place.

A zip file without compression, so that a member is a stretch of the file: Parquet is read in place,
the index is mapped. Beside the files of a run it has

    bundle.json          {"format": 1, "members": {path: {"bytes": n, "sha256": text}}}
    index/...            level of detail of the timeline, see index.py

Whoever made it may be a stranger, so the list of members is read by rules of our own that know no
exceptions (`bundle_members`), and all that is odd about it is refused in one sentence before
anything is taken for granted or any memory is asked for.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from lanescope.webapp.runs.errors import RunError, shown
from lanescope.webapp.runs.storage import Bytes

BUNDLE_FORMAT = 1
BUNDLE = "bundle.json"

MAX_MEMBERS = 250_000
"""A job of 4096 ranks with 10 threads and 6 tables each."""
MAX_NAME = 200
MAX_JSON = 32 << 20
"""Bytes of bundle.json: what it becomes in memory may be twenty times as much."""

_END = struct.Struct("<4sHHHHIIH")  # of the list of members
_LOCATOR = struct.Struct("<4sIQI")  # of the end in large files
_LARGE_END = struct.Struct("<4sQHHIIQQQQ")
_ENTRY = struct.Struct("<4s4xHHHH12xHHHHHII")
_LOCAL = struct.Struct("<4s2xHHHH12xHH")
_SIZES = struct.Struct("<II")
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_LINK, _KINDS = 0o120000, 0o170000
_ENCRYPTED = 1
_UTF8 = 1 << 11
_PRINTED = re.compile(rb"[!-~]+")
_NOWHERE = {"", ".", ".."}
_MADE_BY = "expected a bundle, as written by `lanescope pack`"
_COPY = "copy or pack it again"


class Damaged(RunError):
    """A bundle of ours that is no longer whole."""


@dataclass(frozen=True, slots=True)
class _Member:
    """One file of a bundle: `size` bytes whose header begins at `header`."""

    name: str
    header: int
    size: int
    limit: int  # where whatever comes after it begins


class Bundle:
    """The files of a run in a bundle."""

    folder: Path | None = None

    def __init__(self, data: Bytes, where: str, place: str, members: Mapping[str, _Member]) -> None:
        self._data, self._members = data, members
        self.where, self.place = where, place
        self.listed: Mapping[str, tuple[int, str]] = {}
        """Path -> bytes and sha256, of all but bundle.json itself."""

    def named(self, name: str) -> str:
        """Returns the bundle and the member."""
        return f"{self.where}: {name}"

    @property
    def names(self) -> set[str]:
        """All members."""
        return set(self._members)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def size(self, name: str) -> int:
        """Returns the size that the list of members states."""
        return self._member(name).size

    def stamp(self, name: str) -> tuple[int, int | None]:
        """Returns the size alone: the list of members has no times."""
        return self.size(name), None

    def buffer(self, name: str) -> pa.Buffer:
        """Returns all of a member, mapped where the bundle is. Raises OSError."""
        return self._data.at(*self._place(name))

    def open(self, name: str) -> pa.NativeFile:
        """Returns a member, for reading at any place of it. Raises OSError."""
        return self._data.file(*self._place(name))

    def read(self, name: str, most: int) -> bytes:
        """Returns all of a member. OSError; RunError where it is longer than `most`."""
        if self.size(name) > most:
            raise RunError(
                f"{self.named(name)} has {self.size(name)} bytes, expected at most {most}"
            )
        return bytes(self.buffer(name))

    def _member(self, name: str) -> _Member:
        member = self._members.get(name)
        if member is None:
            raise FileNotFoundError(2, "no such member", name)
        return member

    def _place(self, name: str) -> tuple[int, int]:
        """Where a member's bytes are: its own header has to agree with the list of members."""
        member = self._member(name)
        head = self._data.at(member.header, _LOCAL.size + len(name)).to_pybytes()
        if len(head) == _LOCAL.size + len(name):
            magic, flags, method, _, _, name_size, extra_size = _LOCAL.unpack_from(head)
            start = member.header + _LOCAL.size + name_size + extra_size
            same = head[_LOCAL.size :] == name.encode() and name_size == len(name)
            plain = magic == b"PK\3\4" and not method and not flags & ~_UTF8
            if plain and same and start + member.size <= member.limit:
                return start, member.size
        raise OSError(5, "its place in the bundle is damaged", name)


def open_bundle(data: Bytes, where: str, place: str) -> Bundle:
    """Reads the list of members. RunError, with one sentence, where it cannot be believed."""
    try:
        bundle = Bundle(data, where, place, bundle_members(data))
    except _Wrong as wrong:
        raise wrong.error(where) from None
    except OSError as error:
        raise RunError(f"{where}: cannot be read ({error})") from None
    if BUNDLE not in bundle:
        raise RunError(f"{where}: is a zip file without {BUNDLE}; {_MADE_BY}")
    try:
        said = json.loads(bundle.read(BUNDLE, MAX_JSON))
    except OSError as error:
        raise Damaged(
            f"{bundle.named(BUNDLE)} cannot be read ({error.strerror}); {_COPY}"
        ) from None
    except RunError:
        raise
    except (ValueError, RecursionError):
        raise Damaged(f"{bundle.named(BUNDLE)} is not valid JSON; {_COPY}") from None
    bundle.listed = _checked_list(said, bundle)
    return bundle


def _checked_list(said: Any, bundle: Bundle) -> dict[str, tuple[int, str]]:
    where = bundle.named(BUNDLE)
    if not isinstance(said, dict) or type(said.get("format")) is not int:
        raise RunError(f"{where} holds no format version; {_MADE_BY}")
    if said["format"] != BUNDLE_FORMAT:
        raise RunError(
            f"{bundle.where}: the bundle has format {shown(said['format'])}, this version reads "
            f"{BUNDLE_FORMAT}; upgrade with `pip install --upgrade lanescope`"
        )
    members = said.get("members")
    if not isinstance(members, dict):
        raise Damaged(f"{where} lists no members; {_COPY}")
    found: dict[str, tuple[int, str]] = {}
    for name, entry in members.items():
        match entry:
            case {"bytes": int(size), "sha256": str(digest)}:
                found[name] = size, digest
            case _:
                raise Damaged(f"{where}: the entry of {shown(name)} is not one; {_COPY}")
        if name not in bundle:
            raise Damaged(f"{bundle.where}: the member {shown(name)} is missing; {_COPY}")
        if bundle.size(name) != size:
            raise Damaged(
                f"{bundle.where}: the member {shown(name)} has {bundle.size(name)} bytes, "
                f"expected {shown(size)}; {_COPY}"
            )
    extra = bundle.names - set(found) - {BUNDLE}
    if extra:
        raise RunError(
            f"{bundle.where}: holds {shown(min(extra))}, which {BUNDLE} does not list; {_MADE_BY}"
        )
    return found


class _Wrong(Exception):
    """What is wrong with the list of members, as the end of a sentence."""

    def __init__(self, words: str, kind: type[RunError] = RunError, advice: str = _MADE_BY) -> None:
        super().__init__(words)
        self._kind, self._advice = kind, advice

    def error(self, where: str) -> RunError:
        return self._kind(f"{where}: {self}; {self._advice}")


def bundle_members(data: Bytes) -> dict[str, _Member]:
    """Returns the members by name, without reading any. Raises `_Wrong` and OSError.

    Refuses members that are compressed, encrypted, a link or a folder; names that lead out of the
    run, are not plain text or occur twice; members that overlap or reach past the file; more of
    them, or longer names, than a run has.
    """
    count, offset, size, end = _end_of(data)
    if count > MAX_MEMBERS:
        raise _Wrong(f"has {count} members, expected at most {MAX_MEMBERS}")
    if size > count * (_ENTRY.size + MAX_NAME + 64) or offset + size != end:
        raise _Wrong("the list of its members is not where it should be", Damaged, _COPY)
    listing = data.at(offset, size).to_pybytes()
    found: list[tuple[str, int, int]] = []
    at = 0
    for _ in range(count):
        name, header, length, at = _entry(listing, at)
        found.append((name, header, length))
    if at != len(listing):
        raise _Wrong("the list of its members is longer than it says", Damaged, _COPY)
    return _placed(found, offset)


def _placed(found: list[tuple[str, int, int]], end: int) -> dict[str, _Member]:
    members: dict[str, _Member] = {}
    limit = end
    for name, header, length in sorted(found, key=lambda one: one[1], reverse=True):
        if header + _LOCAL.size + len(name) + length > limit:
            raise _Wrong(f"the member {shown(name)} reaches into what comes after it")
        if name in members:
            raise _Wrong(f"has two members named {shown(name)}")
        members[name] = _Member(name, header, length, limit)
        limit = header
    return members


def _end_of(data: Bytes) -> tuple[int, int, int, int]:
    """(members, offset and bytes of their list, where that has to end)."""
    if not data.size:
        raise _Wrong("is empty")
    begins = data.at(0, 4).to_pybytes()
    tail_size = min(data.size, _END.size + _LOCATOR.size + _LARGE_END.size)
    tail = data.at(data.size - tail_size, tail_size).to_pybytes()
    last = tail[-_END.size :]
    if len(last) < _END.size or last[:4] != b"PK\5\6" or last[-2:] != b"\0\0":
        if begins == b"PK\3\4":
            raise _Wrong("does not end as a bundle does: it is truncated", Damaged, _COPY)
        raise _Wrong("is a file, and not a bundle")
    _, disk, _, _, count, size, offset, _ = _END.unpack(last)
    end = data.size - _END.size
    if _FULL16 in (disk, count) or _FULL32 in (size, offset):
        large = tail[: -_END.size]
        if len(large) < _LOCATOR.size + _LARGE_END.size:
            raise _Wrong("its end is damaged", Damaged, _COPY)
        magic, _, place, _ = _LOCATOR.unpack(large[-_LOCATOR.size :])
        end -= _LOCATOR.size + _LARGE_END.size
        record = _LARGE_END.unpack(large[: _LARGE_END.size])
        if magic != b"PK\6\7" or record[0] != b"PK\6\6" or place != end:
            raise _Wrong("its end is damaged", Damaged, _COPY)
        count, size, offset = record[7:10]
    return count, offset, size, end


def _entry(listing: bytes, at: int) -> tuple[str, int, int, int]:
    """(name, where its header is, bytes, where the next entry begins)."""
    if at + _ENTRY.size > len(listing) or listing[at : at + 4] != b"PK\1\2":
        raise _Wrong("the list of its members is damaged", Damaged, _COPY)
    _, flags, method, _, _, *lengths, disk, _, attributes, header = _ENTRY.unpack_from(listing, at)
    packed, size = _SIZES.unpack_from(listing, at + 20)
    name_size, extra_size, comment_size = lengths
    at += _ENTRY.size
    after = at + name_size + extra_size + comment_size
    if after > len(listing):
        raise _Wrong("the list of its members is damaged", Damaged, _COPY)
    name = _name(listing[at : at + name_size])
    extra = listing[at + name_size : at + name_size + extra_size]
    if flags & _ENCRYPTED:
        raise _Wrong(f"the member {shown(name)} is encrypted")
    if attributes >> 16 & _KINDS == _LINK:
        raise _Wrong(f"the member {shown(name)} is a link")
    size, packed, header = _large(extra, size, packed, header)
    if method or size != packed:
        raise _Wrong(
            f"the member {shown(name)} is compressed ({packed} bytes for {size}), which would "
            "not be read in place"
        )
    if flags & ~_UTF8 or disk:
        raise _Wrong(f"the member {shown(name)} is stored in a way that no bundle has")
    return name, header, size, after


def _large(extra: bytes, size: int, packed: int, header: int) -> tuple[int, int, int]:
    """Sizes and place of a member that is too large, or too far, for 32 bits."""
    values = [size, packed, header]
    missing = [k for k, value in enumerate(values) if value == _FULL32]
    at = 0
    while missing and at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1 and length >= 8 * len(missing) and at + 4 + length <= len(extra):
            for position, k in enumerate(missing):
                (values[k],) = struct.unpack_from("<Q", extra, at + 4 + 8 * position)
            missing = []
        at += 4 + length
    if missing:
        raise _Wrong("the list of its members is damaged", Damaged, _COPY)
    return values[0], values[1], values[2]


def _name(raw: bytes) -> str:
    """A path that stays inside the run."""
    if not 0 < len(raw) <= MAX_NAME or not _PRINTED.fullmatch(raw):
        raise _Wrong(f"has a member named {shown(raw)}, which no file of a run is")
    name = raw.decode("ascii")
    if not _NOWHERE.isdisjoint(name.split("/")) or "\\" in name or ":" in name:
        raise _Wrong(f"has a member named {shown(name)}, expected paths that stay inside the run")
    return name
