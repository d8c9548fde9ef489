"""The one error a reader of runs raises for what it cannot read or answer."""

from __future__ import annotations


class RunError(ValueError):
    """A run that cannot be read, or a question it cannot answer.

    The message is one clear sentence: what was found, what was expected, what to do. Commands
    print it on standard error and exit with status 2, the page shows it unchanged.
    """


def shown(value: object, limit: int = 60) -> str:
    """Returns `repr` of an untrusted value, on one line and short enough for a sentence."""
    if isinstance(value, (dict, list)):
        kind = "an object" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**20:
        # repr of a huge integer is slow, and refused past 4300 digits.
        return f"a number of about {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
