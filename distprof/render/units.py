"""Numbers and names as people read them. The only place where ns become ms and ratios become percent.

``None`` and anything not finite are shown as `NOT_MEASURED`; 0 is a measurement and shown as 0.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence

NOT_MEASURED = "n/a"
NAME_LIMIT = 60
"""Characters shown of a name from data."""

DANGEROUS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters of cells that a spreadsheet would run; the last four are full-width forms of the others."""

_DECIMAL = ("", "k", "M", "G", "T", "P", "E", "Z")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_TIME = ((1.0, "ns", 0), (1e3, "us", 1), (1e6, "ms", 1), (1e9, "s", 3))
_AGE = ((172_800.0, 86_400.0, "days"), (7_200.0, 3_600.0, "h"), (120.0, 60.0, "min"), (0.0, 1.0, "s"))
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # a control sequence: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # a control string: titles, links
    r"|\x1b[ -/]*[0-~]"
)


def format_time(value_ns: float | None) -> str:
    """A duration in a unit that suits its size: ``412.3 ms``, ``1.204 s``."""
    if value_ns is None or not math.isfinite(value_ns):
        return NOT_MEASURED
    if value_ns == 0:
        return "0 ms"
    for scale_ns, unit, digits in _TIME:
        number = round(value_ns / scale_ns, digits)
        if abs(number) < 1000 or unit == "s":
            break
    return f"{number:,.{digits}f} {unit}"


def format_age(seconds: float) -> str:
    """A time that people wait, roughly: ``31 s``, ``5 min``."""
    scale, unit = next((scale, unit) for least, scale, unit in _AGE if seconds >= least)
    return f"{seconds / scale:,.0f} {unit}"


def format_excess(value_ns: float | None) -> str:
    """A difference of durations with a sign: ``+200.1 ms``."""
    text = format_time(value_ns)
    return f"+{text}" if value_ns is not None and 0 < value_ns < math.inf else text


def format_milliseconds(value_ns: float | None) -> str:
    """A duration in ms without the unit, for columns whose head names it."""
    if value_ns is None or not math.isfinite(value_ns):
        return NOT_MEASURED
    value_ms = value_ns / 1e6
    if value_ms == 0:
        return "0"
    if 0 < abs(value_ms) < 0.005:
        return "<0.01" if value_ms > 0 else "0.00"
    return f"{value_ms:,.1f}" if round(abs(value_ms), 1) >= 100 else f"{value_ms:.2f}"


def format_bytes(value_bytes: float | None) -> str:
    """A size in powers of 1,024: ``474.7 MiB``."""
    if value_bytes is None or not math.isfinite(value_bytes):
        return NOT_MEASURED
    number, unit = value_bytes, _BINARY[0]
    for unit in _BINARY:
        if abs(round(number, 1)) < 1024 or unit == _BINARY[-1]:
            break
        number /= 1024
    return f"{number:,.1f} {unit}" if unit != "B" else f"{number:,.0f} B"


def format_flops(value_flops: float | None) -> str:
    """A number of floating-point operations: ``1.84 TFLOP``."""
    return _format_decimal(value_flops, "FLOP")


def format_macs(value_flops: float | None) -> str:
    """The multiply-adds of so many floating-point operations: ``54.5 M``."""
    return _format_decimal(None if value_flops is None else value_flops / 2, "").rstrip()


def format_flops_per_s(value_flops_per_s: float | None) -> str:
    """Floating-point operations per second: ``312.4 TFLOP/s``."""
    return _format_decimal(value_flops_per_s, "FLOP/s")


def format_bandwidth(value_bytes_per_s: float | None) -> str:
    """Bytes per second in powers of 1,000, as networks are rated: ``46.12 GB/s``."""
    return _format_decimal(value_bytes_per_s, "B/s")


def format_energy(value_j: float | None) -> str:
    """An energy in a unit that suits its size: ``412.30 J``, ``3.10 mJ``."""
    small = value_j is not None and 0 < abs(value_j) < 1
    return _format_decimal(None if value_j is None else value_j * 1e3, "mJ") if small else _format_decimal(value_j, "J")


def format_power(value_w: float | None) -> str:
    """A power in watts: ``612 W``."""
    return NOT_MEASURED if value_w is None or not math.isfinite(value_w) else f"{value_w:,.0f} W"


def _format_decimal(value: float | None, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    number, prefix = value, _DECIMAL[0]
    for prefix in _DECIMAL:
        if abs(round(number, 2)) < 1000 or prefix == _DECIMAL[-1]:
            break
        number /= 1000
    digits = 0 if number == 0 else 1 if round(abs(number), 2) >= 100 else 2
    return f"{number:,.{digits}f} {prefix}{unit}"


def format_steps(number: int) -> str:
    """``1 step``, ``1,024 steps``."""
    return f"{number:,} step{'s' if number != 1 else ''}"


def make_ordinal(number: int) -> str:
    """``10th``, ``22nd``."""
    teens = number % 100 in (11, 12, 13)
    return f"{number:,}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def format_count(value: float | None) -> str:
    """A count: whole numbers in full, means with one decimal."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def format_ratio(value_ratio: float | None) -> str:
    """A ratio as percent: ``41.3 %``."""
    if value_ratio is None or not math.isfinite(value_ratio):
        return NOT_MEASURED
    percent = value_ratio * 100
    if percent == 0:
        return "0 %"
    if abs(percent) < 0.1:
        return f"{percent:.2f} %" if abs(percent) >= 0.01 else "<0.01 %" if percent > 0 else "0.00 %"
    return f"{percent:.1f} %"


def format_factor(value_factor: float | None) -> str:
    """How many times as much: ``2.9 times``."""
    if value_factor is None or not math.isfinite(value_factor):
        return NOT_MEASURED
    if 0 < value_factor < 0.01:
        return "<0.01 times"
    return f"{value_factor:,.1f} times" if value_factor >= 1 else f"{value_factor:.2f} times"


def format_number(value: float | None) -> str:
    """A plain number, to about four digits."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e15 or size < 1e-3:
        return f"{value:.2e}"
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3
    return f"{value:,.{digits}f}"


def format_range(values: Sequence[float | None], show: Callable[[float | None], str]) -> str:
    """One number where all are shown alike, else the smallest to the largest."""
    known = [value for value in values if value is not None]
    low, high = show(min(known, default=None)), show(max(known, default=None))
    return low if low == high else f"{low} to {high}"


def clean_text(text: object, limit: int = NAME_LIMIT) -> str:
    """Text from data, made safe to show: one line, no escape sequences, no invisible or direction-changing characters.

    Args:
        text: Anything; ``None`` is shown as not measured.
        limit: Characters shown at most, at least 4; a longer text ends in ``...``.
    """
    if text is None:
        return NOT_MEASURED
    kept = (
        " " if character.isspace() else character
        for character in _ESCAPE.sub("", str(text))
        if character.isspace() or unicodedata.category(character)[0] != "C"
    )
    shown = " ".join("".join(kept).split())
    return shown if len(shown) <= limit else f"{shown[: limit - 3].rstrip()}..."


def strip_controls(text: str) -> str:
    """Text from data for a file that other programs read: whole, but without anything that a terminal or editor obeys.

    Line ends stay; tabs and carriage returns become spaces; lone surrogates are left to the encoder.
    """
    return "".join(
        " " if character in "\t\r" else character
        for character in _ESCAPE.sub("", text)
        if character in "\t\r\n" or unicodedata.category(character) not in ("Cc", "Cf")
    )


def clean_cell(text: str) -> str:
    """A text for CSV that no program takes for a formula, without control characters."""
    kept = strip_controls(text)
    return f"'{kept}" if kept.lstrip().startswith(DANGEROUS) else kept
