"""Ranges whose names carry a number of their own: all instances of ``ProfilerStep#7``, ``#8``, ... as one name.

Folded is what tells one instance from another: counters of steps and the like, ids, addresses, hashes. Numbers that
tell parts of a program apart, such as those of layers, buckets, ranks and sizes, stay.
"""

from __future__ import annotations

import re

import numpy as np

from distprof.traces.reduce.range_contents import RangeNames

FOLDED = "*"
LONGEST_FOLDED = 1_000
"""Characters of a name that are looked at; longer ones are data, and stay as they are."""
_COUNTER = re.compile(
    r"(?P<word>(?:steps?|iter(?:ation)?s?|epochs?|batch(?:es)?)"
    r"|(?<![a-z])(?:u?id|seq(?:uence)?|req(?:uest)?|nonce))"
    r"(?P<gap>[ _]?[#:=][ ]?|[ _.-]?)\d+(?![a-z0-9])",
    re.IGNORECASE,
)
"""A word that counts instances, and the number right behind it."""
_MARK = re.compile(
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"  # a UUID
    r"|\b0x[0-9a-f]+\b"
    r"|(?<![a-z0-9])(?=[a-f]*\d)[0-9a-f]{16,}(?![a-z0-9])"  # a hash
    r"|(?<![a-z0-9.])\d{10,}(?![a-z0-9.])",  # a time of day, or a number that was drawn
    re.IGNORECASE,
)


def fold_name(name: str) -> str:
    """The name without what tells its instances apart: ``layer_17 id=123`` is ``layer_17 id=*``."""
    if len(name) > LONGEST_FOLDED:
        return name
    return _COUNTER.sub(rf"\g<word>\g<gap>{FOLDED}", _MARK.sub(FOLDED, name))


def fold_names(names: RangeNames) -> RangeNames:
    """The same ranges by folded names."""
    found: dict[tuple[str, str], int] = {}
    codes = [found.setdefault((domain, fold_name(name)), len(found)) for domain, name in names.labels]
    return RangeNames(labels=tuple(found), code=np.array(codes, dtype=np.int64)[names.code])
