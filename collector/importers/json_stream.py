"""Splits a JSON document while reading it: members, and events in pieces.

A trace is `{"member": value, ..., "traceEvents": [event, ...], ...}` or just `[event, ...]`, with
gigabytes of events. A piece ends between two events. Finding that position byte by byte would cost
more than decoding, so it is guessed (`}, {"key"`) and verified by the decoder: text that starts
between two elements and decodes as whole elements also ends between two. Where guesses fail,
brackets and strings are matched one by one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from .events import max_values
from .import_limits import MAX_EVENT_BYTES, MAX_METADATA_BYTES, MAX_METADATA_VALUES, ImportRejected

MAX_MEMBER_BYTES = MAX_METADATA_BYTES
"""Size of a member or text; a longer member is skipped, a longer text is rejected."""

MAX_BRACKETS = 10_000
"""Brackets open at once."""

EVENTS = "traceEvents"

_MAX_GUESSES = 4
"""Positions tried in a block before its brackets are matched."""

_TAIL_BYTES = 16 << 10
"""End of a block that is searched for positions first."""

_SPACE = re.compile(rb"[ \t\r\n]*")
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]|"', re.DOTALL)
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}\[{\"]+")
BETWEEN = re.compile(rb'\}\s*,\s*\{\s*"')

_T = TypeVar("_T")


@dataclass(frozen=True)
class Member:
    """A member of the document other than its events; `value` None: longer than the limit."""

    name: str
    value: bytes | None


@dataclass(frozen=True)
class _Piece(Generic[_T]):
    """Events decoded together, or the bytes of one that does not decode with others."""

    decoded: _T | None
    single: bytes = b""


class Metadata(dict[str, Any]):
    """Members of a document with the given names, decoded, up to the limits of an import."""

    def __init__(self, names: frozenset[str], counts: Counter[str]) -> None:
        super().__init__()
        self._names, self._counts = names, counts
        self._bytes = self._values = 0

    def add(self, member: Member) -> None:
        """Decodes a member; counts it in `unread_members` where that is not possible."""
        if member.name not in self._names and member.value is not None:
            self._counts["unused_members"] += 1
            return
        value = member.value or b""
        self._bytes += len(value)
        self._values += max_values(value)
        fits = self._bytes <= MAX_METADATA_BYTES and self._values <= MAX_METADATA_VALUES
        try:
            self[member.name] = msgspec.json.decode(value if fits else b"")
        except (ValueError, RecursionError):
            self._counts["unread_members"] += 1


class _End(Exception):
    """The bytes end where more were expected."""


class Document(Generic[_T]):
    """A JSON document in blocks of bytes.

    `decode` decodes `[event, ...]`. It raises ValueError for invalid JSON and TypeError for
    elements of another type. `inside`: the first byte of a document of whose events the blocks
    begin with some, behind one of them.
    """

    def __init__(
        self,
        path: Path,
        blocks: Iterable[bytes],
        decode: Callable[[bytes], _T],
        inside: bytes = b"",
    ) -> None:
        self._path = path
        self._blocks = iter(blocks)
        self._decode = decode
        self._buffer = b""
        self._at = 0
        self._before = 0  # bytes before the buffer
        self._inside = inside
        self.truncated = False
        self.found_events = False
        self.between = False  # the bytes ended between two events

    def parts(self) -> Iterator[Member | _Piece[_T]]:
        """Yields the document in order. Raises ImportRejected for another kind of document."""
        first = self._inside or self._first()
        try:
            if first == b"[" or self._inside:
                yield from self._events()
            if first == b"{":
                yield from self._members()
        except _End:
            self.truncated = True

    def _first(self) -> bytes:
        """Takes the bracket that the document begins with."""
        try:
            first = self._peek()
        except _End:
            raise ImportRejected(f"{self._path}: is empty, expected a trace") from None
        if first not in b"[{":
            raise ImportRejected(
                f"{self._path}: begins with {self._buffer[self._at : self._at + 12]!r}, expected "
                "JSON ({ or [)"
            )
        self._at += 1
        return first

    def _members(self) -> Iterator[Member | _Piece[_T]]:
        while (found := self._peek()) != b"}":
            if found == b",":
                self._at += 1
                continue
            if found != b'"':
                raise self._malformed("a name")
            name = (self._value(MAX_MEMBER_BYTES) or b"")[1:-1].decode("utf-8", "replace")
            if self._peek() != b":":
                raise self._malformed("a colon")
            self._at += 1
            if name == EVENTS and self._peek() == b"[":
                self._at += 1
                yield from self._events()
            else:
                yield Member(name, self._value(MAX_MEMBER_BYTES))

    def _events(self) -> Iterator[_Piece[_T]]:
        self.found_events = True
        match_until = 0  # position up to which guessing failed
        while (found := self._next_event()) != b"]":
            if found == b",":
                self._at += 1
                continue
            if found == b"{" and self._before + self._at >= match_until:
                piece, failed = self._guess()
                if piece is not None:
                    yield piece
                    continue
                if failed:
                    match_until = self._before + len(self._buffer)
            yield self._match()
        self._at += 1

    def _next_event(self) -> bytes:
        self.between = True
        found = self._peek()
        self.between = False
        return found

    def _guess(self) -> tuple[_Piece[_T] | None, bool]:
        """Returns as many events as the buffer holds, and True if all guesses in it failed."""
        tail = max(self._at, len(self._buffer) - _TAIL_BYTES)
        found = list(BETWEEN.finditer(self._buffer, tail))
        found = found or list(BETWEEN.finditer(self._buffer, self._at))
        whole = memoryview(self._buffer)
        for place in found[: -_MAX_GUESSES - 1 : -1]:
            end = place.start() + 1
            try:
                decoded = self._decode(b"".join((b"[", whole[self._at : end], b"]")))
            except TypeError:
                break
            except (ValueError, RecursionError):
                continue
            self._at = end
            return _Piece(decoded), False
        return None, bool(found)

    def _match(self) -> _Piece[_T]:
        """Returns the next event, found by matching brackets."""
        value = self._value(MAX_EVENT_BYTES)
        if value is None:
            raise ImportRejected(
                f"{self._path}: holds an event of more than {MAX_EVENT_BYTES >> 20} MB, expected a "
                "trace"
            )
        try:
            return _Piece(self._decode(b"[%b]" % value))
        except (TypeError, ValueError, RecursionError):
            return _Piece(None, value)

    def _value(self, longest: int) -> bytes | None:
        """Returns the bytes of the next value; None: more than `longest`."""
        found = self._peek()
        if found == b'"':
            while (text := _TEXT.match(self._buffer, self._at)) is None:
                if len(self._buffer) - self._at > longest:
                    raise ImportRejected(
                        f"{self._path}: holds a text of more than {longest >> 20} MB, expected a "
                        "trace"
                    )
                self._more()
            self._at, start = text.end(), self._at
            return self._buffer[start : self._at]
        if found in b"{[":
            return self._brackets(longest)
        while True:
            scalar = _SCALAR.match(self._buffer, self._at)
            if scalar is None:
                raise self._malformed("a value")
            if scalar.end() < len(self._buffer):
                self._at = scalar.end()
                return scalar[0]
            if len(scalar[0]) > longest:
                raise self._malformed("a value")
            self._more()

    def _brackets(self, longest: int) -> bytes | None:
        """Returns the bytes from a bracket to the matching one; None: more than `longest`."""
        depth, at, kept = 0, self._at, True
        while True:
            for token in _TOKEN.finditer(self._buffer, at):
                kind = token[0]
                if kind in (b"{", b"["):
                    depth += 1
                    if depth > MAX_BRACKETS:
                        raise ImportRejected(
                            f"{self._path}: nests deeper than {MAX_BRACKETS} brackets, expected a "
                            "trace"
                        )
                elif kind in (b"}", b"]"):
                    depth -= 1
                    if not depth:
                        start, self._at = self._at, token.end()
                        return self._buffer[start : self._at] if kept else None
                elif kind == b'"':  # a text that goes on in the next block
                    at = token.start()
                    break
                at = token.end()
            else:
                at = len(self._buffer)
            if at - self._at > longest:
                kept, self._at = False, at
            elif len(self._buffer) - at > longest:
                raise ImportRejected(
                    f"{self._path}: holds a text of more than {longest >> 20} MB, expected a trace"
                )
            shift = self._at
            self._more()
            at -= shift

    def _peek(self) -> bytes:
        """Returns the first byte of the next token. Raises _End."""
        while True:
            space = _SPACE.match(self._buffer, self._at)
            assert space is not None  # the pattern matches the empty string
            self._at = space.end()
            if self._at < len(self._buffer):
                return self._buffer[self._at : self._at + 1]
            self._more()

    def _more(self) -> None:
        rest = self._buffer[self._at :]
        parts, read = [rest], 0
        while read <= len(rest):  # an unfinished value is scanned again from its start
            block = next(self._blocks, None)
            if block is None:
                break
            parts.append(block)
            read += len(block)
        if not read:
            raise _End
        self._before += self._at
        self._buffer, self._at = b"".join(parts), 0

    def _malformed(self, expected: str) -> ImportRejected:
        found = self._buffer[self._at : self._at + 12]
        return ImportRejected(
            f"{self._path}: is not JSON: found {found!r}, expected {expected}; the file is damaged"
        )
