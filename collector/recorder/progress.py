"""Shows on a terminal how far long work is."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

AFTER_S = 1.0
"""Work that takes less shows nothing."""

Advance = Callable[[int, int], None]
"""Called with the amount done, and the whole, in any unit."""


@contextmanager
def working(title: str) -> Iterator[Advance]:
    """Shows a bar on standard error while the block runs, from its second `AFTER_S` on.

    Elsewhere than on a terminal it shows nothing. Yields the function that moves the bar; until
    it is called, the bar shows that the work goes on, and for how long.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(title, total=None)

    def advance(done: int, of: int) -> None:
        bar.update(task, completed=done, total=of)

    timer = threading.Timer(AFTER_S, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def _ignore(done: int, of: int) -> None:
    """Does nothing."""
