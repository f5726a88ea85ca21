"""What a check found, and whether that is what was expected."""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

Verdict = Literal["ok", "FAILED", "skipped", "not judged"]


class NotHere(Exception):
    """What a check asks about does not exist on this machine."""


class CheckResult(Struct, frozen=True, kw_only=True):
    """One number with the range that it should be in."""

    name: str
    """What is checked, with the unit."""
    value: float | None
    """None: the check raised."""
    low: float
    high: float = math.inf
    note: str = ""
    """Why it raised or was skipped, or what else belongs to the number."""
    skipped: bool = False
    """What it asks about does not exist here; there is no value."""

    def judge(self, *, dry: bool = False) -> Verdict:
        """Whether the value is in its range; in a dry run, where nothing is measured, only whether nothing raised."""
        if self.skipped:
            return "skipped"
        if self.value is None:
            return "FAILED"
        if dry:
            return "not judged"
        return "ok" if self.low <= self.value <= self.high else "FAILED"

    def describe(self, *, dry: bool = False) -> str:
        """One line: the verdict, what was checked, the value, what was expected."""
        value = "n/a" if self.skipped else "raised" if self.value is None else f"{self.value:.6g}"
        if self.low == self.high:
            expected = f"{self.low:g}"
        else:
            expected = f"at least {self.low:g}" if math.isinf(self.high) else f"{self.low:g} to {self.high:g}"
        return f"{self.judge(dry=dry):10s} {self.name:76s} {value:>10s}   expected {expected}  {self.note}".rstrip()
