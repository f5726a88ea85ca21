"""What somebody may have meant who typed a name that is not known, or that was known once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LEAST_LIKENESS = 0.6
BEGINNING, WORD = 0.9, 0.8
"""The likeness of a name to its beginning, and to one of its words."""
ELSEWHERE, IN_OTHER_GROUP = 0.99, 0.85
"""What is left of it in some group if none was given, and in another one than was given."""
_BY_COMMAND = "`distprof window RUN` asks for a kernel window, also from an alert on the metric distprof_step_seconds"
REMOVED = {
    "signal": "a file record.stop in the run folder turns recording off while it is there",
    "window_on": _BY_COMMAND, "max_windows": _BY_COMMAND,
}  # fmt: skip
"""Keys of ``profile`` that there are no more, and what does the same."""
REMOVED_LOGGERS = {"jsonl": "every step is in ranks/*.jsonl of the run folder"}
"""Likewise for values of ``profile.loggers``."""


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: ``; did you mean 'warmup_steps'?``, or what does the same as a name that was
    removed. Empty: no known name is like it.

    Args:
        name: The unknown one; dots separate the groups that it is in.
        known: The known ones, of which the first of equally likely ones is taken.
    """
    group, _, own = name.rpartition(".")
    if own in REMOVED and group in ("", "profile"):
        return f"; it was removed: {REMOVED[own]}"
    found = max(known, key=lambda other: _compare(name, other), default=None)
    return f"; did you mean '{found}'?" if found is not None and _compare(name, found) >= LEAST_LIKENESS else ""


def explain_removed(key: str, value: object) -> str:
    """The end of an error message about the value of a key: what does the same as a logger that was removed."""
    if key.rpartition(".")[2] != "loggers":
        return ""
    named = map(str, value if isinstance(value, list | tuple) else [value])
    return "".join(f"; {name} was removed: {REMOVED_LOGGERS[name]}" for name in named if name in REMOVED_LOGGERS)


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
