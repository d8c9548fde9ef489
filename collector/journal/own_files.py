"""Opens the recorder's files in a process whose program may close any descriptor.

The program may close a descriptor of the recorder and get its number for the next file. So
long-lived files are mapped, which needs no descriptor, and other descriptors are checked before
use. `observer/base/own_file.cpp` does the same for the native engine.
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
_MAX_DESCRIPTOR = 1024
"""Higher numbers enlarge the kernel's table of descriptors, and `select` does not accept them."""

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
    """Returns True if the call may succeed later: the program's limit of open files is reached."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


class Descriptor:
    """An open file, identified by device and inode as well as by number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.identity = _identity(number)

    @classmethod
    def lasting(cls, number: int) -> Descriptor:
        """Returns the same file under a high number, which the program is unlikely to use.

        Closes `number` in any case. Raises OSError if no number is free.
        """
        low = cls(number)
        try:
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            most = min(most, _MAX_DESCRIPTOR) if most > 0 else _MAX_DESCRIPTOR
            return cls(fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, most * 15 // 16))
        finally:
            low.close()

    def is_ours(self) -> bool:
        """Returns True if the number still belongs to the same file."""
        try:
            return _identity(self.number) == self.identity
        except OSError:
            return False

    def close(self) -> None:
        """Closes the file, unless the program did."""
        if self.is_ours():
            os.close(self.number)


@contextlib.contextmanager
def _opened(path: _Path, flags: int) -> Iterator[Descriptor]:
    """Opens a file for the length of the block. Raises OSError."""
    file = Descriptor(os.open(path, flags | os.O_CLOEXEC, 0o644))
    try:
        yield file
    finally:
        file.close()


def read(path: _Path) -> bytes:
    """Returns the contents of a file. Raises OSError."""
    data = b""
    file = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))  # `_opened` takes longer
    try:
        while more := os.pread(file.number, _READ_BYTES, len(data)):
            data += more
    finally:
        file.close()
    return data


def write(path: _Path, data: bytes, flags: int = os.O_TRUNC) -> None:
    """Writes a file, or appends with `flags` O_APPEND. Raises OSError."""
    with _opened(path, os.O_WRONLY | os.O_CREAT | flags) as file, no_size_signal():
        while data:
            if not file.is_ours():
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), path)
            data = data[os.write(file.number, data) :]


@contextlib.contextmanager
def no_size_signal() -> Iterator[None]:
    """Blocks SIGXFSZ: growing a file past RLIMIT_FSIZE raises OSError, without the signal."""
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
    """Maps the first bytes of a file, shared. Unlike `mmap.mmap` it holds no descriptor."""

    __slots__ = ("_address", "_size", "identity", "view")

    def __init__(self, path: _Path, size: int, flags: int) -> None:
        """Maps `size` bytes and reserves their blocks. Raises OSError.

        Writing into a hole on a full disk would raise SIGBUS in the observed program.
        """
        with _opened(path, os.O_RDWR | flags) as file:
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
        """All bytes. Copy slices: one that is in use would keep the mapping from closing."""

    # No __del__: what a signal handler of the program raised in it would be lost.
    def close(self) -> None:
        """Unmaps the file. Later uses of the view raise ValueError."""
        size, self._size = self._size, 0
        if size:
            self.view.release()
            _libc.munmap(self._address, size)


def _reserve(number: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(number, 0, size)
    else:  # macOS: write zeros, which reserves as well
        missing = size - os.fstat(number).st_size
        os.pwrite(number, bytes(missing), size - missing)


def _identity(number: int) -> tuple[int, int]:
    found = os.fstat(number)
    return found.st_dev, found.st_ino
