"""Traces from real profilers on real machines, as plain events; they lie beside the checkout, not in it."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from distprof.facts.trace import UNKNOWN, ActivityKind, CopyKind, Trace
from tests.ranks import REPOSITORY
from tests.traces.reduce.synthetic_traces import SyntheticTrace

SHARED = REPOSITORY.parent / "shared"
FILES = (
    "a100_128ranks_rank0.json.gz",
    "a100_128ranks_rank1.json.gz",
    "a100_2ranks_rank0.json.gz",
    "b200_8ranks_rank0.json.gz",
    "h100_bert_small_single.json.gz",
    "h100_qwen_single.json.gz",
)
KINDS = {"kernel": ActivityKind.KERNEL, "gpu_memcpy": ActivityKind.MEMCPY, "gpu_memset": ActivityKind.MEMSET}
CALLS = ("cuda_runtime", "cuda_driver")


def find_shared(*parts: str) -> Path:
    """A file beside the checkout; the test is skipped if it is missing."""
    path = SHARED.joinpath(*parts)
    if not path.is_file():
        pytest.skip(f"no {'/'.join(parts)} beside the checkout")
    return path


@cache
def read_events(name: str) -> list[dict[str, Any]]:
    """The complete events of a file, with integer ``begin_ns`` and ``end_ns``."""
    with gzip.open(find_shared("data", "kineto", name), "rt", encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X" and "dur" in event]
    first_us = min(event["ts"] for event in events)
    for event in events:
        event["begin_ns"] = round((event["ts"] - first_us) * 1000)
        event["end_ns"] = event["begin_ns"] + round(event["dur"] * 1000)
    return events


def build_trace(name: str) -> Trace:
    """Device activities and API calls of a file, joined by correlation id, without any of our readers."""
    made = SyntheticTrace()
    calls = {
        event["args"]["correlation"]: made.call(event["name"], event["begin_ns"], event["end_ns"])
        for event in read_events(name)
        if event.get("cat") in CALLS and event.get("args", {}).get("correlation")
    }
    for event in read_events(name):
        kind = KINDS.get(event.get("cat", ""))
        if kind is not None:
            made.activity(
                event["name"], event["begin_ns"], event["end_ns"], kind=kind, device=event["args"]["device"],
                call=calls.get(event["args"]["correlation"], UNKNOWN),
                copy=CopyKind.OTHER if kind == ActivityKind.MEMCPY else CopyKind.NONE,
            )  # fmt: skip
    return made.build()
