"""Files of the recorder in a process whose program may close any descriptor.

The number of a descriptor that the program closed belongs to the next file that it opens. So what
is written to for long is mapped, which takes no descriptor; whatever else is open is made sure of
before it is used or closed. `observer/base/own_file.cpp` does the same for the native engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
from collections.abc import Callable, Iterator

_Path = str | os.PathLike[str]
_READ_BYTES = 1 << 20
_HIGHEST = 1024
"""Numbers from here on make the kernel's table of descriptors large, and `select` refuses them."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value
_WRITABLE = 0x200  # PyBUF_WRITE
_view: Callable[..., memoryview] = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
)(("PyMemoryView_FromMemory", ctypes.pythonapi))


def may_pass(error: OSError) -> bool:
    """Whether what failed may succeed later: the program has as many files open as it may."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


class Descriptor:
    """An open file, known by what it is and not by its number alone."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.identity = _identity(number)

    @classmethod
    def lasting(cls, number: int) -> Descriptor:
        """The same file under a high number, which the program does not come upon.

        Closes `number` in any case. Raises OSError where there is no such number.
        """
        low = cls(number)
        try:
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            most = min(most, _HIGHEST) if most > 0 else _HIGHEST
            return cls(fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, most * 15 // 16))
        finally:
            low.close()

    def is_ours(self) -> bool:
        """Whether the number is that of the same file still."""
        try:
            return _identity(self.number) == self.identity
        except OSError:
            return False

    def close(self) -> None:
        """Close it, unless the program did."""
        if self.is_ours():
            os.close(self.number)


@contextlib.contextmanager
def opened(path: _Path, flags: int) -> Iterator[Descriptor]:
    """A file for a moment. Raises OSError."""
    file = Descriptor(os.open(path, flags | os.O_CLOEXEC, 0o644))
    try:
        yield file
    finally:
        file.close()


def read(path: _Path) -> bytes:
    """What a file holds. Raises OSError."""
    data = b""
    with opened(path, os.O_RDONLY) as file:
        while more := os.pread(file.number, _READ_BYTES, len(data)):
            data += more
    return data


def write(path: _Path, data: bytes, flags: int = os.O_TRUNC) -> None:
    """Make a file of these bytes; with O_APPEND they go behind what it holds. Raises OSError."""
    with opened(path, os.O_WRONLY | os.O_CREAT | flags) as file, no_size_signal():
        while data:
            if not file.is_ours():
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), path)
            data = data[os.write(file.number, data) :]


@contextlib.contextmanager
def no_size_signal() -> Iterator[None]:
    """Inside, a file that would grow past RLIMIT_FSIZE is an error of the call alone: the signal
    that comes with it is not the program's."""
    number = {signal.SIGXFSZ}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    theirs = number & signal.sigpending()
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, number)
        yield
    finally:
        if not theirs and hasattr(signal, "sigtimedwait"):
            signal.sigtimedwait(number, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Mapping:
    """A file's first bytes in memory, shared. Unlike `mmap.mmap` it holds no descriptor."""

    __slots__ = ("_address", "_size", "identity", "view")
    _size: int

    def __init__(self, path: _Path, size: int, flags: int) -> None:
        """Their blocks are reserved: writing into a hole of a full disk would raise SIGBUS in the
        program that is observed. Raises OSError."""
        self._size = 0
        with opened(path, os.O_RDWR | flags) as file:
            self.identity = file.identity
            with no_size_signal():
                _reserve(file.number, size)
            address = _libc.mmap(
                None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file.number, 0
            )
        if address == _FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._address, self._size = address, size
        self.view = _view(address, size, _WRITABLE)
        """Of all bytes. Part of it may be in use when the mapping is closed, so copy what you
        take of it."""

    def close(self) -> None:
        """Unmap. Who uses the view afterwards gets a ValueError."""
        size, self._size = self._size, 0
        if size:
            self.view.release()
            _libc.munmap(self._address, size)

    __del__ = close  # of a parent's, in a forked child


def _reserve(number: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(number, 0, size)
    else:  # macOS: write zeros, which reserves as well
        missing = size - os.fstat(number).st_size
        os.pwrite(number, bytes(missing), size - missing)


def _identity(number: int) -> tuple[int, int]:
    found = os.fstat(number)
    return found.st_dev, found.st_ino
