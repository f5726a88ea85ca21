"""Folds names that contain an instance number: ``ProfilerStep#7``, ``#8``, ... become one name.

Only what tells instances apart is folded: counters of steps and the like, ids, addresses, hashes. Numbers that tell
parts of a program apart, such as those of layers, buckets, ranks and sizes, stay.
"""

from __future__ import annotations

import re

import numpy as np

from distprof.traces.reduce.range_contents import RangeNames

FOLDED = "*"
LONGEST_FOLDED = 1_000
"""Characters of a name to look at; longer names are data, and stay unchanged."""
_COUNTER = re.compile(
    r"(?P<word>(?:steps?|iter(?:ation)?s?|epochs?|batch(?:es)?)"
    r"|(?<![a-z])(?:u?id|seq(?:uence)?|req(?:uest)?|nonce))"
    r"(?P<gap>[ _]?[#:=][ ]?|[ _.-]?)\d+(?![a-z0-9])",
    re.IGNORECASE,
)
"""A word for something that is counted, and the number right after it."""
_MARK = re.compile(
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"  # a UUID
    r"|\b0x[0-9a-f]+\b"
    r"|(?<![a-z0-9])(?=[a-f]*\d)[0-9a-f]{16,}(?![a-z0-9])"  # a hash
    r"|(?<![a-z0-9.])\d{10,}(?![a-z0-9.])",  # a timestamp, or a random number
    re.IGNORECASE,
)


def fold_name(name: str) -> str:
    """The name without what tells its instances apart: ``layer_17 id=123`` becomes ``layer_17 id=*``."""
    if len(name) > LONGEST_FOLDED:
        return name
    return _COUNTER.sub(rf"\g<word>\g<gap>{FOLDED}", _MARK.sub(FOLDED, name))


def fold_names(names: RangeNames) -> RangeNames:
    """The same ranges with folded names."""
    found: dict[tuple[str, str], int] = {}
    codes = [found.setdefault((domain, fold_name(name)), len(found)) for domain, name in names.labels]
    return RangeNames(labels=tuple(found), code=np.array(codes, dtype=np.int64)[names.code])
