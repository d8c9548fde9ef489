"""What a format is to the importer.

To add a format, write a module with a subclass of `Importer` whose `read` fills a `Trace`, and list
an instance in `formats.IMPORTERS`. A tool that writes the Chrome trace format needs only a
`Dialect` in `chrome_trace/importer.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..format.record_kinds import ThreadKind
from .spill import Trace


class Importer(ABC):
    """Reads the files of one format."""

    name: str

    @abstractmethod
    def sniff(self, first_block: bytes) -> bool:
        """Returns True if a file may be of this format; `first_block` is its first MB, unpacked."""

    @abstractmethod
    def read(self, path: Path, folder: Path) -> Trace | None:
        """Returns the contents of a file, with rows in files below `folder`.

        None: the file is of another format, the next importer is asked. Raises ImportRejected for a
        file that is damaged or exceeds a limit, OSError where `folder` cannot be written.
        """


@dataclass(frozen=True)
class Dialect:
    """A tool that writes the Chrome trace format."""

    name: str  # becomes the engine of the imported processes
    wrote: Callable[[dict[str, Any]], bool]  # by the members of the document
    thread_kind: ThreadKind = ThreadKind.native  # of threads other than the main one
