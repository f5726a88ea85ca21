"""The JSON schema of ``report.json``, made from the parts of a report: their docstrings are its descriptions."""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from distprof.analyze.traces.findings.rules import RULES
from distprof.facts.modules import MEMORY_KINDS
from distprof.facts.run import FORWARDS_ONLY, Clock, CollectiveKind, Phase, Stretch
from distprof.facts.trace_summary import Category, DeviceState
from distprof.render.finding_texts import FindingText
from distprof.report.finding_report import Finding, NotChecked
from distprof.report.operations_report import OPERATIONS_SCHEMA, OperationsReport
from distprof.report.report import DATA_BETWEEN, SCHEMA, WAITS_BETWEEN, Report
from distprof.report.step_timeline import STEP, WAIT

_WORDS: Mapping[type, Mapping[str, Any]] = {Finding: typing.get_type_hints(FindingText), NotChecked: {"why": str}}
"""What the file holds of a part beside its fields; see `distprof.render.files.files.describe_plain`."""
_RULES = tuple(rule.name for rule in RULES)
_BETWEEN = (DATA_BETWEEN, *(stretch for stretch in Stretch), FORWARDS_ONLY, WAITS_BETWEEN)
_CLOSED: Mapping[str, Iterable[str]] = {
    "clock": Clock, "clocks": Clock, "category": Category, "PhaseReport.phase": Phase, "BusiestRank.phase": Phase,
    "WaitReport.phase": Phase, "Stall.phase": (*Phase, *Stretch, FORWARDS_ONLY), "WindowCheck.phase": ("step", *Phase),
    "BetweenPart.part": _BETWEEN, "CommunicationReport.kind": CollectiveKind, "WaitReport.kind": CollectiveKind,
    "BandwidthReport.kind": CollectiveKind, "MemoryKind.kind": (*MEMORY_KINDS, "rest", "peak"),
    "TimelineBlocks.kinds": (*Phase, WAIT, STEP, *DeviceState), "TimelineCollective.kind": CollectiveKind,
    "LongStep.phase": Phase,
    "Finding.rule": _RULES, "NotChecked.rule": _RULES,
    "Finding.traits": sorted({trait for rule in RULES for trait in rule.traits}),
}  # fmt: skip
"""The values that fields of text can have, by the name of the field, or of its part and field."""
_NOT_NEGATIVE = ("_ns", "_bytes", "_ratio", "_per_s", "_per_step", "_count", "_s", "_j", "_w", "_hz")
_SIGNED = frozenset({
    "offset_ns", "end_gap_ns", "drift_ratio", "lost_ns", "late_ns", "joint_ns", "remainder_ns", "excess_ns", "rank_ns",
    "others_ns", "phase_excess_ns", "own_ns", "low_ratio", "high_ratio", "difference_ratio", "wait_ns",
})  # fmt: skip
"""Numbers that can be below 0 although their unit ends like those that cannot."""
_SHARE, _ABOVE_0 = {"minimum": 0, "maximum": 1}, {"exclusiveMinimum": 0}
_LIMITS: Mapping[str, Mapping[str, int]] = {
    "mfu_ratio": _SHARE, "hfu_ratio": _SHARE, "overlap_ratio": _SHARE, "queue_empty_ratio": _SHARE,
    "CategoryReport.share_ratio": _SHARE, "KernelReport.share_ratio": _SHARE, "SlowModule.share_ratio": _SHARE,
    "UnmarkedPlace.share_ratio": _SHARE, "Headline.between_ratio": _SHARE, "BandwidthReport.transfer_ns": _ABOVE_0,
    "BandwidthReport.algorithm_bytes_per_s": _ABOVE_0, "BandwidthReport.bus_bytes_per_s": _ABOVE_0,
    "BandwidthReport.num_ranks": {"minimum": 2}, "world_size": {"minimum": 1}, "in_step": {"minimum": 1},
    "SlowModule.rank_ns": {"minimum": 0}, "SlowModule.others_ns": {"minimum": 0}, "explained_ratio": _SHARE,
    "StageReport.more_ratio": {}, "DeviceReport.queue_mean": {"minimum": 0}, "Forecast.value": {"minimum": 0},
}  # fmt: skip
"""Limits of numbers that their names do not tell, by the name of the field, or of its part and field."""


@functools.cache
def read_field_texts(part: type) -> dict[str, str]:
    """The docstrings of a record's fields, which Python itself does not keep, by name."""
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
    assert isinstance(made, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, text in zip(made.body, made.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                texts[name] = _clean(inspect.cleandoc(said))
    return texts


def _clean(text: str) -> str:
    return " ".join(text.replace("`", "").split()).replace("None:", "null:").replace("None,", "null,")


_OTHER_TEXTS: Mapping[type, Mapping[str, str]] = {
    Finding: read_field_texts(FindingText), NotChecked: {"why": "The reason, lack, in words."},
}  # fmt: skip
"""Descriptions of `_WORDS`."""


def describe_schema() -> dict[str, Any]:
    """The schema of `distprof.report.report.Report` as ``report.json`` holds it; every part is closed."""
    return _describe_whole(Report, SCHEMA, "distprof report", "Everything distprof concludes about a run.")


def describe_operations_schema() -> dict[str, Any]:
    """The same of `distprof.report.operations_report.OperationsReport`."""
    about = "Everything distprof concludes about a table of operations of a pipeline-parallel job."
    return _describe_whole(OperationsReport, OPERATIONS_SCHEMA, "distprof report of operations", about)


def _describe_whole(report: type[Struct], schema: str, title: str, about: str) -> dict[str, Any]:
    parts: dict[str, dict[str, Any]] = {}
    whole = _describe_part(report, parts)
    whole["properties"]["schema"] = {**whole["properties"]["schema"], "const": schema}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{schema.replace('.', ':').replace('/', ':')}",
        "title": title,
        **whole,
        "description": f"{about} Times are in nanoseconds (ns) on the clock named beside them, sizes in bytes. Null "
        "means not measured; 0 means measured, and zero.",
        "$defs": parts,
    }


def _describe_part(part: type[Struct], parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    hints = typing.get_type_hints(part)
    texts, properties = {**_OTHER_TEXTS.get(part, {}), **read_field_texts(part)}, dict[str, Any]()
    for name in part.__struct_fields__:
        properties[name] = _describe_value(hints[name], name, part, parts)
    for name, hint in _WORDS.get(part, {}).items():
        properties[name] = _describe_value(hint, name, part, parts)
    for name, text in texts.items():
        properties[name] = {"description": text, **properties[name]}
    return {
        "description": _clean(inspect.getdoc(part) or ""), "type": "object", "additionalProperties": False,
        "required": list(properties), "properties": properties,
    }  # fmt: skip


def _describe_value(hint: Any, name: str, part: type, parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (option,) = (item for item in inner if item is not types.NoneType)
        return {"anyOf": [_describe_value(option, name, part, parts), {"type": "null"}]}
    if origin is tuple:
        if inner[-1:] == (Ellipsis,):
            return {"type": "array", "items": _describe_value(inner[0], name, part, parts)}
        return {"type": "array", "prefixItems": [_describe_value(item, name, part, parts) for item in inner]}
    if origin is typing.Literal:
        return {"type": "string", "enum": list(inner)}
    if isinstance(hint, type) and issubclass(hint, Struct):
        if hint.__name__ not in parts:
            parts[hint.__name__] = {}  # its place, before the parts that it holds
            parts[hint.__name__] = _describe_part(hint, parts)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return {"type": "string", "enum": [str(item) for item in hint]}
    full = f"{part.__name__}.{name}"
    if hint is str:
        closed = _CLOSED.get(full, _CLOSED.get(name))
        return {"type": "string"} if closed is None else {"type": "string", "enum": [str(item) for item in closed]}
    if hint is bool:
        return {"type": "boolean"}
    if hint not in (int, float):
        return {"type": "object"}
    usual = {"minimum": 0} if hint is int or (name.endswith(_NOT_NEGATIVE) and name not in _SIGNED) else {}
    limits = _LIMITS.get(full, _LIMITS.get(name, usual))
    return {"type": "integer" if hint is int else "number", **limits}
