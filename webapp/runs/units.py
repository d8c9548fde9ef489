"""Numbers with their units, for people: 3-4 significant digits, unit chosen by size."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite, isnan

THIN = "\N{THIN SPACE}"

NO_VALUE = "–"
LEAST = 0.001
"""Of a column's unit; smaller values are not written out."""
WIDEST = 10_000
"""Of a column's unit: its values have four digits before the point at most."""

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
_WRITTEN_OUT = 6  # powers of ten that need no exponent
_SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_WORK = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"), (1.0, "FLOP"))
_UNITS = {
    "ns": _TIMES,
    "B": _SIZES,
    "B/s": tuple((factor, f"{unit}/s") for factor, unit in _SIZES),
    "FLOP": _WORK,
    "FLOP/s": tuple((factor, f"{unit}/s") for factor, unit in _WORK),
}


def duration(ns: float) -> str:
    """Returns `1.24 s` for 1_240_000_000 ns; the unit is the largest that leaves one digit in
    front."""
    return _scaled(ns, _TIMES)


def size(count: float) -> str:
    """Returns `14.9 MB` for 14_863_295 bytes; powers of ten, as storage is sold and Parquet
    reported."""
    return _scaled(count, _SIZES)


def stored(count: int) -> str:
    """Returns `192 kB` of Parquet, or that all of it still is in the journal."""
    return size(count) if count else "a journal, not compacted yet"


def in_one_unit(values: Iterable[float | None], base: str) -> tuple[str, list[str]]:
    """Returns `("ms", ["12.3", "0.0456", "–"])` for nanoseconds (`base` "ns"): a column in one
    unit, which fits its largest value; a dash for None and NaN. Other bases are "B", "B/s", "FLOP"
    and "FLOP/s".

    Where the least value is below LEAST of that unit, the next smaller unit serves, if the largest
    one stays below WIDEST. What is still below LEAST is written as `< 0.001`.
    """
    known = [None if value is None or isnan(value) else value for value in values]
    sizes = [abs(value) for value in known if value]
    largest, least = max(sizes, default=0.0), min(sizes, default=0.0)
    factor, unit = _unit(largest, _UNITS[base])
    for smaller in (one for one in _UNITS[base] if one[0] < factor):
        if least >= LEAST * factor or largest >= WIDEST * smaller[0]:
            break
        factor, unit = smaller
    say = number if factor == 1.0 else _padded
    return unit, [NO_VALUE if value is None else say(value / factor) for value in known]


def unit_for(largest: float, base: str) -> tuple[float, str]:
    """Returns `(1e6, "ms")` for 12_300_000 ns: the divisor and the unit of an axis; bases as in
    `in_one_unit`."""
    factor, unit = _unit(largest, _UNITS[base])
    return factor, unit.replace("us", "\N{MICRO SIGN}s")


def count(number: int) -> str:
    """Returns `2 000 000` with thin spaces between thousands."""
    return f"{number:,}".replace(",", THIN)


def counted(number: int, word: str) -> str:
    """Returns `1 step`, `2 steps`."""
    return f"{count(number)} {word}" + ("" if number == 1 else "s")


def sentence(text: str) -> str:
    """Returns the text with a capital first letter; the others stay as they are."""
    return text[:1].upper() + text[1:]


def share(rate: float | None) -> str:
    """Returns `4.2 %` for 0.042; a dash for what was not measured."""
    return "-" if rate is None else f"{number(rate * 100)} %"


def share_cell(rate: float | None) -> str:
    """Returns `4.2 %` for 0.0423, for a column of shares or a figure: one digit after the point;
    `< 0.1 %` for less, a dash for what was not measured."""
    if rate is None or isnan(rate):
        return NO_VALUE
    return "< 0.1 %" if 0 < rate < 0.0005 else f"{rate * 100:.1f} %"


def number(value: float, digits: int = 3) -> str:
    """Returns `0.0123`, `1330`, `1e-5`: so many significant digits, an exponent only for very small
    or very large values, and no zeros in it."""
    mantissa, _, exponent = f"{value:.{digits}g}".partition("e")
    if not exponent:
        return mantissa
    if 0 <= int(exponent) < _WRITTEN_OUT:
        return f"{float(f'{mantissa}e{exponent}'):.0f}"
    return f"{mantissa}e{int(exponent)}"


def aligned(value: float) -> str:
    """Returns `9.00`, with as many digits as 8.93 in the same column; `1 330` with a thin space."""
    text = number(value)
    if value == 0 or not isfinite(value) or "e" in text:
        return text
    return count(int(text)) if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")


def _padded(value: float) -> str:
    if 0 < abs(value) < LEAST:
        return f"{'> -' if value < 0 else '< '}{LEAST}"
    return aligned(value)


def printable(text: str) -> str:
    """Returns untrusted text on one line: control characters, which could steer a terminal, become
    dots."""
    return "".join(c if c.isprintable() else "\N{MIDDLE DOT}" for c in text)


def _unit(number: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    return next((one for one in units if abs(number) >= 0.9995 * one[0]), units[-1])


def _scaled(number: float, units: tuple[tuple[float, str], ...]) -> str:
    factor, unit = _unit(number, units)
    value = number / factor
    if factor == 1.0:
        return f"{value:.0f} {unit}"
    # %g drops trailing zeros and turns to exponents past its digits; three to four are kept here.
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f} {unit}"
