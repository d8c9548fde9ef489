"""Takes a JSON document apart while it is read: its members, and its events piece by piece.

A trace is `{"member": value, ..., "traceEvents": [event, ...], ...}` or just `[event, ...]`, with
the events making up gigabytes. A piece ends where one event ends and the next begins. To find such
places a byte at a time would cost more than to decode them, so one is guessed, `}, {"key"`, and
the decoder proves it: a text that decodes as whole elements from a place between two elements ends
between two elements, because what the rest is does not depend on what comes after. Where guesses
fail, brackets and strings are followed one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from .errors import Refused
from .limits import LONGEST_EVENT, LONGEST_KEPT

LONGEST = LONGEST_KEPT
"""Bytes of one member that is kept, and of a text: more is passed over, or refused."""

DEEPEST = 10_000
"""Brackets that may be open at once."""

EVENTS = "traceEvents"

_GUESSES = 4
"""Places tried in a block before its brackets are followed."""

_TAIL = 16 << 10
"""Bytes at the end of a block in which places are looked for first."""

_SPACE = re.compile(rb"[ \t\r\n]*")
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]|"', re.DOTALL)
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}\[{\"]+")
_BETWEEN = re.compile(rb'\}\s*,\s*\{\s*"')

T = TypeVar("T")


@dataclass(frozen=True)
class Member:
    """One member of the document that is not its events; `value` is None: too long to keep."""

    name: str
    value: bytes | None


@dataclass(frozen=True)
class Piece(Generic[T]):
    """Events: decoded together, or the bytes of one that must be looked at alone."""

    decoded: T | None
    single: bytes = b""


class _End(Exception):
    """The bytes end where more were expected."""


class Document(Generic[T]):
    """A JSON document in blocks of bytes.

    `decode` turns `[event, ...]` into what is wanted of it; it raises ValueError where it cannot,
    TypeError where the elements are of another kind than it can take.
    """

    def __init__(self, path: Path, blocks: Iterable[bytes], decode: Callable[[bytes], T]) -> None:
        self._path = path
        self._blocks = iter(blocks)
        self._decode = decode
        self._buffer = b""
        self._at = 0
        self._before = 0  # bytes before the buffer
        self.truncated = False
        self.found_events = False

    def parts(self) -> Iterator[Member | Piece[T]]:
        """All of the document, in its order. Raises Refused where it is no such document."""
        try:
            first = self._peek()
        except _End:
            raise Refused(f"{self._path}: is empty, expected a trace") from None
        if first not in b"[{":
            raise Refused(
                f"{self._path}: begins with {self._buffer[self._at : self._at + 12]!r}, expected "
                "JSON ({ or [)"
            )
        try:
            if first == b"[":
                self.found_events = True
                yield from self._events()
            else:
                yield from self._members()
        except _End:
            self.truncated = True

    def _members(self) -> Iterator[Member | Piece[T]]:
        self._at += 1
        while (found := self._peek()) != b"}":
            if found == b",":
                self._at += 1
                continue
            if found != b'"':
                raise self._malformed("a name")
            name = (self._value(LONGEST) or b"")[1:-1].decode("utf-8", "replace")
            if self._peek() != b":":
                raise self._malformed("a colon")
            self._at += 1
            if name == EVENTS and self._peek() == b"[":
                self.found_events = True
                yield from self._events()
            else:
                yield Member(name, self._value(LONGEST))

    def _events(self) -> Iterator[Piece[T]]:
        self._at += 1
        follow_to = 0  # up to where guessing is of no use
        while (found := self._peek()) != b"]":
            if found == b",":
                self._at += 1
                continue
            if found == b"{" and self._before + self._at >= follow_to:
                piece, hopeless = self._guessed()
                if piece is not None:
                    yield piece
                    continue
                if hopeless:
                    follow_to = self._before + len(self._buffer)
            yield self._followed()
        self._at += 1

    def _guessed(self) -> tuple[Piece[T] | None, bool]:
        """As many events as the buffer holds, by a guess that proved right.

        And whether guessing again within the buffer would be of no use.
        """
        tail = max(self._at, len(self._buffer) - _TAIL)
        found = list(_BETWEEN.finditer(self._buffer, tail))
        found = found or list(_BETWEEN.finditer(self._buffer, self._at))
        whole = memoryview(self._buffer)
        for place in found[: -_GUESSES - 1 : -1]:
            end = place.start() + 1
            try:
                decoded = self._decode(b"".join((b"[", whole[self._at : end], b"]")))
            except TypeError:
                break
            except (ValueError, RecursionError):
                continue
            self._at = end
            return Piece(decoded), False
        return None, bool(found)

    def _followed(self) -> Piece[T]:
        """The next event, by its brackets."""
        value = self._value(LONGEST_EVENT)
        if value is None:
            raise Refused(
                f"{self._path}: holds an event of more than {LONGEST_EVENT >> 20} MB, expected a "
                "trace"
            )
        try:
            return Piece(self._decode(b"[%b]" % value))
        except (TypeError, ValueError, RecursionError):
            return Piece(None, value)

    def _value(self, longest: int) -> bytes | None:
        """The bytes of the value that is next; None where they are more than `longest`."""
        found = self._peek()
        if found == b'"':
            while (text := _TEXT.match(self._buffer, self._at)) is None:
                if len(self._buffer) - self._at > longest:
                    raise Refused(
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
        """From a bracket to the one that closes it."""
        depth, at, kept = 0, self._at, True
        while True:
            for token in _TOKEN.finditer(self._buffer, at):
                kind = token[0]
                if kind in (b"{", b"["):
                    depth += 1
                    if depth > DEEPEST:
                        raise Refused(
                            f"{self._path}: nests deeper than {DEEPEST} brackets, expected a trace"
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
                raise Refused(
                    f"{self._path}: holds a text of more than {longest >> 20} MB, expected a trace"
                )
            shift = self._at
            self._more()
            at -= shift

    def _peek(self) -> bytes:
        """The byte of the next token. Raises _End."""
        while True:
            space = _SPACE.match(self._buffer, self._at)
            assert space is not None  # it matches nothing, too
            self._at = space.end()
            if self._at < len(self._buffer):
                return self._buffer[self._at : self._at + 1]
            self._more()

    def _more(self) -> None:
        rest = self._buffer[self._at :]
        parts, read = [rest], 0
        while read <= len(rest):  # what does not end is looked at again from its beginning
            block = next(self._blocks, None)
            if block is None:
                break
            parts.append(block)
            read += len(block)
        if not read:
            raise _End
        self._before += self._at
        self._buffer, self._at = b"".join(parts), 0

    def _malformed(self, expected: str) -> Refused:
        found = self._buffer[self._at : self._at + 12]
        return Refused(
            f"{self._path}: is not JSON: found {found!r}, expected {expected}; the file is damaged"
        )
