"""What commands print for people: a console, and tables that any width of terminal can show."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDE = 240
"""Characters of a line that goes into a file or through a pipe: names are not broken there."""

_PADDING = 2
"""Characters between two columns."""

_MAX_WORD = 16
"""Characters of a word that are to stay together; longer ones may be folded."""


def output_console() -> Console:
    """Returns the console of standard output. Long lines are the terminal's to wrap."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _WIDE
    return console


def print_table(console: Console, table: Table) -> None:
    """Prints a table; where there is no room for its words and numbers, a block for each row."""
    if _least_width(table) <= console.width:
        console.print(table)
        return
    if table.title:
        console.print(table.title)
    heads, *others = ([str(cell) for cell in column.cells] for column in table.columns)
    names = [str(column.header) for column in table.columns[1:]]
    wide = max(map(len, names), default=0)
    for position, head in enumerate(heads):
        console.print(Text(f"{table.columns[0].header} {head}" if head.isdigit() else head))
        for title, cells in zip(names, others, strict=True):
            if cells[position]:
                console.print(Text(f"  {title.ljust(wide)}  {cells[position]}"))


def _least_width(table: Table) -> int:
    """Width without which words would be broken, or cells of columns that do not wrap cut."""
    found = 0
    for column in table.columns:
        texts = [str(cell) for cell in (column.header, *column.cells)]
        words = (min(len(word), _MAX_WORD) for text in texts for word in text.split())
        found += max(map(len, texts) if column.no_wrap else words, default=0) + _PADDING
    return found
