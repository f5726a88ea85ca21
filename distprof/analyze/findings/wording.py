"""Numbers and names as the sentences of findings have them."""

from __future__ import annotations

import re

NAME_LIMIT = 80
"""Characters of a name from data in a finding."""
_TIMES = ((1.0, "ns", 0), (1e3, "us", 1), (1e6, "ms", 1), (1e9, "s", 3))
_NOISE = re.compile(r"\(anonymous namespace\)::|<unnamed>::|at::native::|\(int\)|(?<![\w:])void ")
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def say_share(ratio: float) -> str:
    """``41.3 %``"""
    return f"{ratio * 100:.1f} %"


def say_time(time_ns: float) -> str:
    """``412.3 ms``"""
    for scale_ns, unit, digits in _TIMES:
        number = round(time_ns / scale_ns, digits)
        if abs(number) < 1000 or unit == "s":
            break
    return f"{number:,.{digits}f} {unit}"


def say_size(size_bytes: float) -> str:
    """``26.2 MiB``"""
    number, unit = size_bytes, _SIZES[0]
    for unit in _SIZES:
        if abs(round(number, 1)) < 1024 or unit == _SIZES[-1]:
            break
        number /= 1024
    return f"{number:,.1f} {unit}" if unit != "B" else f"{number:,.0f} B"


def say_count(count: float) -> str:
    """``1,544``, and means with one decimal."""
    return f"{count:,.0f}" if float(count).is_integer() or count >= 1000 else f"{count:,.1f}"


def say_factor(factor: float) -> str:
    """``2.9 times``"""
    return f"{factor:,.1f} times" if factor >= 1 else f"{factor:.2f} times"


def strip_kernel_name(name: str) -> str:
    """A kernel's name without the words that nearly all of them have."""
    return _NOISE.sub("", name[:4_000]).strip()


def say_name(name: str, domain: str = "") -> str:
    """A name of a kernel or a range, cut to a length that a sentence bears; with the domain of a range."""
    whole = f"{domain[:NAME_LIMIT]}:{name[: 2 * NAME_LIMIT]}" if domain else name[: 2 * NAME_LIMIT]
    plain = " ".join(whole.split()) or "(no name)"
    return plain if len(plain) <= NAME_LIMIT else f"{plain[: NAME_LIMIT - 3]}..."
