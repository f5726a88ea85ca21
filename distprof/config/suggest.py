"""Which known name somebody who typed an unknown one may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LEAST_LIKENESS = 0.6
BEGINNING, WORD = 0.9, 0.8
"""The likeness of a name to its beginning, and to one of its words."""
ELSEWHERE, IN_OTHER_GROUP = 0.99, 0.85
"""What is left of it in some group if none was given, and in another one than was given."""


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: ``; did you mean 'warmup_steps'?``. Empty: no known name is like it.

    Args:
        name: The unknown one; dots separate the groups that it is in.
        known: The known ones, of which the first of equally likely ones is taken.
    """
    found = max(known, key=lambda other: _compare(name, other), default=None)
    return f"; did you mean '{found}'?" if found is not None and _compare(name, found) >= LEAST_LIKENESS else ""


def _compare(name: str, known: str) -> float:
    name, known = (each.lower().replace("-", "_") for each in (name, known))
    group, _, own = name.rpartition(".")
    known_group, _, known_own = known.rpartition(".")
    likeness = difflib.SequenceMatcher(None, own, known_own).ratio()
    if known_own.startswith(own) or own.startswith(known_own):
        likeness = max(likeness, BEGINNING)
    elif own in known_own.split("_"):
        likeness = max(likeness, WORD)
    likeness *= 1.0 if group == known_group else IN_OTHER_GROUP if group else ELSEWHERE
    return max(likeness, difflib.SequenceMatcher(None, name, known).ratio())
