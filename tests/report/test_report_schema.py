"""The schema that other programs read reports by says what `report.report` holds, all of it and nothing else."""

from __future__ import annotations

import copy
import enum
import json
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest
from msgspec import Struct, structs

from benchmarks.simulate import Clocks, Delay, SimulatedBucket, SimulatedJob, simulate
from distprof.__main__ import main
from distprof.analyze import analyze
from distprof.analyze.summary.phases import PARTS as BETWEEN
from distprof.analyze.traces.findings.rules import RULES
from distprof.facts.run import FORWARDS_ONLY, Clock, CollectiveKind, Phase, Run, Stretch
from distprof.facts.trace_summary import Category
from distprof.facts.writer_liveness import LastWrite
from distprof.render import finding_texts
from distprof.render.files.files import describe_plain
from distprof.render.files.report_schema import describe_schema, read_field_texts
from distprof.report import (
    finding_report,
    generation_report,
    gpu_report,
    hang_report,
    job_modules,
    late_reasons,
    pipeline_report,
    probe_report,
    report,
    step_timeline,
    trace_report,
    wait_report,
)
from distprof.report.report import SCHEMA, Report
from distprof.report.wait_report import VerdictKind
from tests.analyze.summary.test_gpus import make_gpu, make_job
from tests.factories import USUAL_NS, drop_rows, make_run, make_shadow_stall
from tests.made_causes import make_cause, make_report
from tests.made_modules import make_module_run
from tests.traces.traced_ranks import make_activity

DOCUMENT: dict[str, Any] = describe_schema()
VALIDATOR = jsonschema.Draft202012Validator(DOCUMENT)
PARTS = {
    name: part
    for module in (
        report,
        wait_report,
        hang_report,
        gpu_report,
        trace_report,
        finding_report,
        generation_report,
        finding_texts,
        job_modules,
        late_reasons,
        pipeline_report,
        probe_report,
        step_timeline,
    )
    for name, part in vars(module).items()
    if isinstance(part, type) and issubclass(part, Struct) and part not in (Struct, Report, finding_texts.FindingText)
}
WORDS: dict[str, dict[str, Any]] = {
    "Finding": typing.get_type_hints(finding_texts.FindingText), "NotChecked": {"why": str}
}  # fmt: skip
"""What the file holds beside the fields of a part."""
SILENT = LastWrite(at_utc="2026-01-02T03:04:05+00:00", ago_s=1.0, writer_lives=None)
LINK = SimulatedJob(
    ranks_per_host=4, slow_hosts={1: 100}, link_bytes_per_s=2e10, clocks=Clocks(offset_ns=3e9, bound_ns=1e5)
)
BUCKETS = tuple(
    SimulatedBucket(size_bytes=size, backward_ratio=0.25, transfer_ns=1e6 + size)
    for size in (4 * 10**6, 5 * 10**6, 6 * 10**6, 2 * 10**6)
)
ANCHORS = {
    "begin_device_ns": np.arange(4) * 1e8, "anchor_device_ns": np.arange(4) * 1e8,
    "anchor_host_ns": 1e12 + np.arange(4) * 1e8, "anchor_bound_ns": 5e3,
}  # fmt: skip
RUNS: dict[str, Callable[[], Run]] = {
    "whole": make_run,
    "two clocks": lambda: make_run(num_ranks=4, device_ns=USUAL_NS),
    "one rank": lambda: make_run(num_ranks=1),
    "no ranks": lambda: make_run(num_ranks=0, meta={"world_size": 2}),
    "no steps": lambda: make_run(num_steps=0),
    "all NaN": lambda: make_run(columns={"step": np.nan, "warmup": np.nan}),
    "running": lambda: make_run(infos={0: {"ended": None, "last_write": SILENT}}),
    "killed": lambda: drop_rows(make_run(num_ranks=3, infos={1: {"ended": None, "snapshot": None}}), 1, 2),
    "no work": lambda: make_run(meta={"work": None}),
    "a slow rank": lambda: simulate(SimulatedJob(delays=(Delay(rank=1, phase=Phase.DATA, delay_ns=5e7),)), seed=1).run,
    "buckets": lambda: simulate(SimulatedJob(num_ranks=2, ranks_per_host=2, buckets=BUCKETS), seed=1).run,
    "two clocks apart": lambda: simulate(LINK, seed=1).run,
    "device clocks": lambda: make_run(device_ns=USUAL_NS, columns=ANCHORS),
    "a stall in a shadow step": make_shadow_stall,
    "modules": make_module_run,
    "GPUs": lambda: make_job([make_gpu(21), make_gpu(5), None]),
    "traces": lambda: structs.replace(make_run(), activity=(make_activity(0), make_activity(1, device=None))),
}


def write_and_read(run: Run) -> Any:
    """A report as another program gets it: through strict JSON."""
    return json.loads(json.dumps(describe_plain(analyze(run)), allow_nan=False))


@pytest.mark.parametrize("make", RUNS.values(), ids=RUNS)
def test_real_reports_are_valid(make: Callable[[], Run]) -> None:
    VALIDATOR.validate(write_and_read(make()))


def test_a_report_with_causes_is_valid() -> None:
    causes = [make_cause(kind, 3.0) for kind in VerdictKind if kind is not VerdictKind.NONE]
    VALIDATOR.validate(json.loads(json.dumps(describe_plain(make_report(causes)), allow_nan=False)))


BREAKS: dict[str, Callable[[Any], Any]] = {
    "a field is gone": lambda report: report["headline"].pop("mfu_ratio"),
    "a field is new": lambda report: report["coverage"].update(mood="good"),
    "text for a number": lambda report: report["phases"][0].update(share_ratio="11 %"),
    "MFU above 100 %": lambda report: report["ranks"][0].update(mfu_ratio=1.01),
    "another version": lambda report: report.update(schema="distprof.report/3"),
    "an unknown phase": lambda report: report["phases"][0].update(phase="sleep"),
    "null for a count": lambda report: report["coverage"].update(rows_lost=None),
    "an unknown part": lambda report: report["between"]["parts"][0].update(part="lunch"),
    "a negative time": lambda report: report["steps"][0]["mean_ns"].__setitem__(0, -1.0),
}


@pytest.mark.parametrize("break_report", BREAKS.values(), ids=BREAKS)
def test_broken_reports_are_not(break_report: Callable[[Any], Any]) -> None:
    report = write_and_read(make_run())
    broken = copy.deepcopy(report)
    break_report(broken)
    assert VALIDATOR.is_valid(report)
    assert not VALIDATOR.is_valid(broken)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(DOCUMENT)
    assert DOCUMENT["properties"]["schema"]["const"] == SCHEMA


def find_objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for item in schema.values():
            yield from find_objects(item)


def test_every_property_is_described_and_required_and_there_are_no_others() -> None:
    objects = list(find_objects(DOCUMENT))
    assert len(objects) == len(PARTS) + 1
    for item in objects:
        assert item["required"] == list(item["properties"])
        assert item["additionalProperties"] is False
        for name, described in item["properties"].items():
            assert len(described.get("description", "")) > 10, name


@pytest.mark.parametrize(
    ("field", "limits"),
    [
        ("CategoryReport.share_ratio", {"minimum": 0, "maximum": 1}), ("KernelReport.share_ratio", {"maximum": 1}),
        ("SlowModule.share_ratio", {"maximum": 1}), ("UnmarkedPlace.share_ratio", {"maximum": 1}),
        ("Headline.between_ratio", {"maximum": 1}),
        ("RankReport.mfu_ratio", {"maximum": 1}), ("BandwidthReport.num_ranks", {"minimum": 2}),
        ("BandwidthReport.transfer_ns", {"exclusiveMinimum": 0}), ("Coverage.world_size", {"minimum": 1}),
        ("PendingReport.in_step", {"minimum": 1}), ("HangReport.stalled_s", {"minimum": 0}),
        ("LastWrite.ago_s", {"minimum": 0}), ("SlowModule.others_ns", {"minimum": 0}),
        ("DeviceReport.queue_mean", {"minimum": 0}), ("Forecast.value", {"minimum": 0}),
        ("Finding.rule", {"enum": [rule.name for rule in RULES]}),
    ],
)  # fmt: skip
def test_numbers_and_names_have_their_limits(field: str, limits: dict[str, Any]) -> None:
    part, _, name = field.partition(".")
    described = DOCUMENT["$defs"][part]["properties"][name]
    found = described.get("anyOf", [described])[0]
    assert limits.items() <= found.items()


def test_the_docstrings_of_fields_are_the_descriptions() -> None:
    assert DOCUMENT["properties"]["causes"]["description"].endswith("null: too little is known for a verdict.")
    for name, part in PARTS.items():
        for field, text in read_field_texts(part).items():
            described = DOCUMENT["$defs"][name]["properties"][field]["description"]
            assert described == text and len(text) >= 10, (name, field)


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["distprof", "report", "--schema"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code in (0, None) and json.loads(capsys.readouterr().out) == DOCUMENT


@pytest.mark.parametrize("name", ["Report", *PARTS])
def test_properties_are_the_fields_with_their_types(name: str) -> None:
    part = {"Report": Report, **PARTS}[name]
    described = (DOCUMENT if name == "Report" else DOCUMENT["$defs"][name])["properties"]
    hints = {**typing.get_type_hints(part), **WORDS.get(name, {})}
    assert list(described) == [*part.__struct_fields__, *WORDS.get(name, {})]
    for field, schema in described.items():
        assert accepts(schema, hints[field]), f"{name}.{field}: {hints[field]} is not {schema}"


def accepts(schema: dict[str, Any], hint: Any) -> bool:
    """Whether a schema admits just the kinds of value that a type hint does."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        assert len(options) == 1
        if "anyOf" in schema:
            return {"type": "null"} in schema["anyOf"] and any(accepts(item, options[0]) for item in schema["anyOf"])
        return schema["type"][1:] == ["null"] and accepts({**schema, "type": schema["type"][0]}, options[0])
    if typing.get_origin(hint) is typing.Literal:
        return schema["type"] == "string" and schema["enum"] == list(typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return schema["type"] == "array" and accepts(schema["items"], typing.get_args(hint)[0])
    if hint in PARTS.values():
        return schema.get("$ref") == f"#/$defs/{hint.__name__}"
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return schema.get("enum") == list(hint)
    if hint is str and ("enum" in schema or "const" in schema):
        return True
    names = {str: "string", float: "number", int: "integer", bool: "boolean"}
    return schema.get("type") == names.get(hint, "object")


def test_closed_sets_are_those_of_the_code() -> None:
    parts = DOCUMENT["$defs"]
    assert parts["PhaseReport"]["properties"]["phase"]["enum"] == list(Phase)
    assert parts["BusiestRank"]["properties"]["phase"]["anyOf"][0]["enum"] == list(Phase)
    assert parts["CommunicationReport"]["properties"]["kind"]["enum"] == list(CollectiveKind)
    assert set(parts["StepReport"]["properties"]["clock"]["enum"]) == set(Clock)
    assert set(parts["BetweenPart"]["properties"]["part"]["enum"]) == {*BETWEEN, Stretch.BETWEEN, FORWARDS_ONLY}
    assert parts["WindowCheck"]["properties"]["phase"]["enum"] == ["step", *Phase]
    for part in ("CategoryReport", "KernelReport"):
        assert parts[part]["properties"]["category"]["enum"] == list(Category)
