"""What the columns of a table of operations are called, and what may stand in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from distprof.errors import TableError

MOST_EXACT = 2.0**53
"""Whole numbers up to here are exact in a float64."""
MOST_WORKERS = 1 << 16
LATEST_NS = 1e19
"""Later than any clock's nanoseconds."""


class Layout(Struct, frozen=True, kw_only=True):
    """A column that is read."""

    names: Mapping[str, float]
    """What it may be called, the open layout's name first, and the factor to the unit in memory."""
    required: bool = True
    whole: bool = True
    least: float = 0.0
    most: float = MOST_EXACT


def _name(*names: str) -> Mapping[str, float]:
    return dict.fromkeys(names, 1.0)


LAYOUT: Mapping[str, Layout] = {
    "kind": Layout(names=_name("kind", "optype")),
    "replica": Layout(names=_name("dp", "dp_rank"), most=MOST_WORKERS),
    "stage": Layout(names=_name("pp", "stage"), most=MOST_WORKERS),
    "step": Layout(names=_name("step"), least=-MOST_EXACT),
    "start_ns": Layout(
        names={"start_ns": 1.0, "start_s": 1e9, "start_ts": 1e9}, whole=False, least=-LATEST_NS, most=LATEST_NS
    ),
    "duration_ns": Layout(names={"duration_ns": 1.0, "duration_s": 1e9, "duration": 1e9}, whole=False, most=LATEST_NS),
    "tensor": Layout(names=_name("tp", "tp_rank"), required=False, most=MOST_WORKERS),
    "rank": Layout(names=_name("rank"), required=False, least=-1.0),
    "number": Layout(names=_name("number", "seq_id"), required=False, least=-1.0, most=2.0**31),
    "chunk": Layout(names=_name("chunk", "mc"), required=False, least=-1.0, most=4096.0),
    "micro_batch": Layout(names=_name("micro_batch", "mb_id"), required=False, least=-1.0),
}
"""By the field of `distprof.facts.operations.Operations`. Second names are those of the traces that ByteDance has
published; other columns are left out."""

FIELDS: Mapping[str, str] = {name: field for field, layout in LAYOUT.items() for name in layout.names}
"""The field of each name that a column may have."""


def choose_columns(path: Path, heads: Sequence[str]) -> list[str]:
    """The heads of the columns that are read.

    Raises:
        TableError: A required column is missing, or one occurs twice.
    """
    chosen: list[str] = []
    for layout in LAYOUT.values():
        found = [name for name in layout.names for head in heads if head == name]
        if len(found) > 1:
            raise TableError(f"{path}: columns {found[0]} and {found[1]}: both say the same: keep one")
        if not found and layout.required:
            raise TableError(f"{path}: column {' or '.join(layout.names)}: is missing: see docs/operations.md")
        chosen += found
    return chosen
