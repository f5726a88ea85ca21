"""`distprof report` on real traces from elsewhere, against figures computed differently: loops over the JSON."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distprof.analyze import analyze
from distprof.cli.parser import run_verb
from distprof.errors import EXIT_OK, EXIT_PARTIAL
from distprof.traces.read_paths import read_paths
from distprof.traces.reduce.phase_names import NameMap
from tests.traces.reduce.real_traces import find_shared, read_events

pytestmark = pytest.mark.slow

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
PARTS = ("compute", "memory", "idle_communication", "idle_host", "idle_launch", "idle_unknown")
FORWARD, BACKWARD = "## forward ##", "## backward ##"


def report(tmp_path: Path, *names: str) -> tuple[int, dict[str, Any]]:
    paths = [str(find_shared("data", "kineto", f"{name}.json.gz")) for name in names]
    code = run_verb(["report", *paths, "--out", str(tmp_path)])
    return code, json.loads((tmp_path / "report.json").read_text())


def pick(events: Iterable[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    found = (event for event in events if event.get("cat") == "user_annotation" and event["name"].startswith(name))
    return sorted(found, key=lambda event: event["begin_ns"])


def read_phases(report: dict[str, Any], clock: str, position: int = 0) -> dict[str, float]:
    return {phase["phase"]: phase["mean_ns"][position] for phase in report["phases"] if phase["clock"] == clock}


def close(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= max(5.0, 1e-6 * wanted)  # the naive times went through floats of microseconds


@pytest.mark.parametrize("name", ["a100_2ranks_rank0", "a100_128ranks_rank0", "a100_128ranks_rank1"])
def test_host_phases_are_the_annotations_inside_the_steps(tmp_path: Path, name: str) -> None:
    code, found = report(tmp_path, name)
    events = read_events(f"{name}.json.gz")
    steps = pick(events, "ProfilerStep#")
    phases = read_phases(found, "host")
    assert code == EXIT_PARTIAL and found["coverage"]["steps_measured"] == len(steps)
    assert close(found["steps"][1]["mean_ns"][0], sum(step["end_ns"] - step["begin_ns"] for step in steps) / len(steps))
    for annotation, phase in ((FORWARD, "forward"), (BACKWARD, "backward")):
        inside = [
            event["end_ns"] - event["begin_ns"] for event in pick(events, annotation)
            if any(step["begin_ns"] <= event["begin_ns"] and event["end_ns"] <= step["end_ns"] for step in steps)
        ]  # fmt: skip
        assert close(phases[phase], sum(inside) / len(steps))


def test_exposed_communication_is_what_runs_alone_on_the_device(tmp_path: Path) -> None:
    name = "a100_2ranks_rank0"
    _, found = report(tmp_path, name)
    events = read_events(f"{name}.json.gz")
    gpu = [event for event in events if event["cat"] in DEVICE]
    edges = sorted({event[end] for event in gpu for end in ("begin_ns", "end_ns")})
    running: dict[int, set[str]] = {edge: set() for edge in edges}
    for event in gpu:
        for edge in edges[edges.index(event["begin_ns"]) : edges.index(event["end_ns"])]:
            reduces = "AllReduce" in event["name"]
            running[edge].add("reduces" if reduces else "nccl" if "nccl" in event["name"] else "works")
    alone = {edge: int("reduces" in what and "works" not in what) for edge, what in running.items()}
    exposed_ns = sum(after - edge for edge, after in pairwise(edges) if alone[edge] == 1)
    steps = len(pick(events, "ProfilerStep#"))
    (reduced,) = [item for item in found["communication"] if item["kind"] == "all_reduce"]
    assert close(reduced["exposed_device_ns"][0], exposed_ns / steps)
    assert close(read_phases(found, "device")["all_reduce"], exposed_ns / steps)
    busy_ns = sum(event["end_ns"] - event["begin_ns"] for event in gpu if "AllReduce" in event["name"])
    assert close(reduced["busy_device_ns"][0], busy_ns / steps)  # on one stream they do not overlap each other


def test_two_of_128_ranks_are_a_report_that_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = report(tmp_path, "a100_128ranks_rank0", "a100_128ranks_rank1")
    shown = capsys.readouterr().out
    assert (code, found["world_size"], found["coverage"]["ranks_present"]) == (EXIT_PARTIAL, 128, [0, 1])
    assert "2 of 128" in shown and "missing: ranks 2-127" in shown
    assert found["verdict"]["rank"] is None
    assert [device["rank"] for device in found["activity"]["devices"]] == [0, 1]
    for device in found["activity"]["devices"]:
        assert sum(device[f"{part}_ns"] for part in PARTS) == pytest.approx(device["span_ns"])


@pytest.mark.parametrize(("name", "steps"), [("h100_qwen_single", 1), ("h100_bert_small_single", 1)])
def test_a_single_process_without_distributed_info_is_whole(tmp_path: Path, name: str, steps: int) -> None:
    code, found = report(tmp_path, name)
    assert (code, found["world_size"], found["coverage"]["steps_measured"]) == (EXIT_OK, 1, steps)
    assert any("names no rank" in note for note in found["coverage"]["notes"])
    kernels = [event for event in read_events(f"{name}.json.gz") if event["cat"] == "kernel"]
    counted = sum(item["count"] for item in found["activity"]["categories"] if item["category"] != "copy")
    assert 0 < counted <= len(kernels)


def test_a_trace_without_steps_is_told_as_a_whole_and_keeps_no_environment(tmp_path: Path) -> None:
    code, found = report(tmp_path, "b200_8ranks_rank0")
    assert (code, found["world_size"], found["coverage"]["ranks_present"]) == (EXIT_PARTIAL, 8, [0])
    (device,) = found["activity"]["devices"]
    events = [
        event
        for event in read_events("b200_8ranks_rank0.json.gz")
        if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    assert device["steps"] == 0
    assert close(
        device["span_ns"], max(event["end_ns"] for event in events) - min(event["begin_ns"] for event in events)
    )
    report(tmp_path, "h100_qwen_single")
    for path in tmp_path.iterdir():  # the file holds an environment with a token in it
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert b"hf_" not in data and b"HF_TOKEN" not in data


def test_with_one_of_eight_ranks_missing_nobody_is_last_and_no_transfer_is_known() -> None:
    folder = find_shared("data", "kineto", "mi250_toy.json.gz").parent / "v100_dlrm_8ranks"
    paths = sorted(folder.glob("worker*.json"))
    assert len(paths) == 8
    whole = analyze(read_paths(paths, NameMap()))
    assert all(item.members_missing == 0 and item.transfer_ns is not None for item in whole.waits)
    part = analyze(read_paths([path for path in paths if "worker5" not in path.name], NameMap()))
    assert len(part.waits) == len(whole.waits) > 0
    for item, complete in zip(part.waits, whole.waits, strict=True):
        assert (item.members_missing, item.transfer_ns, set(item.last_ratio)) == (1, None, {None})
        waits_ns = [wait for rank, wait in enumerate(complete.wait_ns) if rank != 5]
        assert all(seen <= true for seen, true in zip(item.wait_ns, waits_ns, strict=True))  # type: ignore[operator]


def test_the_busiest_rank_is_named_with_a_phase_in_which_it_is_busier() -> None:
    """Rank 5's forward is long because it waits in it; without the waits it is shorter than the others'."""
    folder = find_shared("data", "kineto", "mi250_toy.json.gz").parent / "v100_dlrm_8ranks"
    run = read_paths([folder], NameMap())
    busiest = analyze(run).headline.busiest
    assert busiest is not None and (busiest.rank, busiest.phase) == (5, "backward")
    counted = run.column("warmup")[0] == 0
    own_ns = {
        phase: (run.column(f"{phase}_device_ns") - run.column(f"{phase}_wait_device_ns"))[:, counted].mean(axis=1)
        for phase in ("forward", "backward")
    }
    assert own_ns["forward"][5] < np.median(np.delete(own_ns["forward"], 5))
    excess_ns = own_ns["backward"][5] - np.median(np.delete(own_ns["backward"], 5))
    assert busiest.phase_excess_ns == pytest.approx(excess_ns) and excess_ns > 0
