"""``report.json`` read back, also as earlier versions of distprof wrote it: the only place that knows old schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distprof.errors import DataError
from distprof.report.report import SCHEMA
from distprof.storage.whole_file import read_object

FIRST_SCHEMA = "distprof.report/1"
CAUSE_NAMES = {
    "lost_ns": "saved_if_only_this_ns", "lost_ratio": "saved_if_only_this_ratio",
    "alone_ns": "saved_after_others_ns", "alone_ratio": "saved_after_others_ratio",
}  # fmt: skip
"""What schema 2 calls the fields of a cause, by their names in schema 1."""
VERDICT_STRETCHES = ("stretch_lost_ratio",)
CAUSE_STRETCHES = ("stretch_saved_if_only_this_ratio", "stretch_saved_after_others_ratio")
"""Fields that schema 2 has gained."""
MAX_BYTES = 1 << 30


def read_report_file(path: Path) -> dict[str, Any]:
    """Reads a report as the current schema describes it.

    Raises:
        DataError: It is missing, damaged, no report, or of a schema that this distprof does not know.
    """
    values = read_object(path, schema=SCHEMA, what="report", missing=f"{path}: no such file", max_bytes=MAX_BYTES)
    if values["schema"] == FIRST_SCHEMA:
        _rename_costs(values)
        values["schema"] = SCHEMA
    if values["schema"] != SCHEMA:
        raise DataError(f"{path}: written as {values['schema']!r}, but this distprof reads up to {SCHEMA}")
    _add_stretches(values)
    _rename_labels(values)
    return values


def _add_stretches(values: dict[str, Any]) -> None:
    """The first reports of schema 2 say nothing about the steps in which a cause acts."""
    causes = values.get("causes")
    listed = causes.get("causes") if isinstance(causes, dict) else None
    parts = [(cause, CAUSE_STRETCHES) for cause in (listed if isinstance(listed, list) else ())]
    for part, names in ((values.get("verdict"), VERDICT_STRETCHES), *parts):
        if isinstance(part, dict):
            part.update({name: part.get(name) for name in names})


def _rename_labels(values: dict[str, Any]) -> None:
    """The first reports of schema 2 call a label a sign, and the states of ranks in a hang stands."""
    verdict, activity, hang = (values.get(name) or {} for name in ("verdict", "activity", "hang"))
    items = [*verdict.get("evidence", ()), *(item for each in activity.get("findings", ()) for item in each["figures"])]
    for part, before, after in ((hang, "stands", "states"), *((item, "sign", "label") for item in items)):
        if before in part:
            part[after] = part.pop(before)


def _rename_costs(values: dict[str, Any]) -> None:
    """Schema 1 named a cause's costs so that ``alone`` meant the opposite of what the terminal printed under it."""
    causes = values.get("causes")
    if not isinstance(causes, dict) or not isinstance(causes.get("causes"), list):
        return
    causes["causes"] = [
        {CAUSE_NAMES.get(name, name): value for name, value in cause.items()} if isinstance(cause, dict) else cause
        for cause in causes["causes"]
    ]
