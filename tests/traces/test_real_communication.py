"""Communication in real traces from elsewhere, by any library, against plain loops over the raw events."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distprof.cli.parser import run_verb
from distprof.errors import EXIT_PARTIAL
from distprof.facts.run import KINDS
from distprof.traces.kineto.read_kineto import read_kineto
from distprof.traces.reduce.device_work import code_collectives
from tests.traces.reduce.real_traces import find_shared, read_events
from tests.traces.reduce.synthetic_traces import measure_trace

pytestmark = pytest.mark.slow

GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def is_deep_ep(name: str) -> bool:
    return name.removeprefix("void ").startswith("dpsk::ep::")


def is_nccl(name: str) -> bool:
    return name.startswith("nccl")


def is_vllm(name: str) -> bool:
    return is_nccl(name) or "::multimem_all_reduce_kernel<" in name


EXCHANGES: dict[str, Callable[[str], bool]] = {
    "h800_deepseek_train.json.gz": is_deep_ep, "b200_8ranks_rank0.json.gz": is_vllm,
    "mi300_resnet_checkpoint.json.gz": is_nccl, "a100_2ranks_rank0.json.gz": is_nccl,
    "a100_128ranks_rank0.json.gz": is_nccl, "a100_128ranks_rank1.json.gz": is_nccl,
}  # fmt: skip


def sum_running(events: list[dict[str, Any]], counts: Callable[[set[str]], bool]) -> int:
    """How long the running kernels met the condition, ns, walking from edge to edge."""
    edges = [(event["begin_ns"], 1, event) for event in events] + [(event["end_ns"], -1, event) for event in events]
    running: Counter[str] = Counter()
    total_ns = last_ns = 0
    for time_ns, change, event in sorted(edges, key=lambda edge: edge[:2]):
        if counts({what for what, number in running.items() if number > 0}):
            total_ns += time_ns - last_ns
        last_ns = time_ns
        running[event["what"]] += change
    return total_ns


@pytest.mark.parametrize("name", EXCHANGES)
def test_what_communicates_and_what_of_it_is_exposed(name: str) -> None:
    events = [event for event in read_events(name) if event.get("cat") in GPU]
    devices = Counter(event["args"]["device"] for event in events)
    assert len(devices) == 1
    for event in events:
        kernel = "exchanges" if EXCHANGES[name](event["name"]) else "computes"
        event["what"] = kernel if event["cat"] == "kernel" else "copies"
    device = measure_trace(read_kineto(find_shared("data", "kineto", name)), None)
    assert device is not None
    assert device.communication_busy_ns == sum_running(events, lambda what: "exchanges" in what)
    assert device.idle_communication_ns == sum_running(events, lambda what: what == {"exchanges"})
    assert device.compute_ns == sum_running(events, lambda what: "computes" in what)


def test_deep_ep_communicates_for_113_of_129_ms() -> None:
    """All of its kernels count, including a dispatch's layout: 0.41 ms, on the same stream, for nothing else."""
    device = measure_trace(read_kineto(find_shared("data", "kineto", "h800_deepseek_train.json.gz")), None)
    assert device is not None
    assert (device.communication_busy_ns, device.idle_communication_ns) == (113_440_000, 4_177_000)


ANNOTATED = {
    "a100_128ranks_rank0.json.gz": {"all_reduce": 4, "all_to_all": 4, "all_gather": 2},
    "mi300_resnet_checkpoint.json.gz": {"all_reduce": 6, "other": 11},  # broadcasts, and launches without annotation
}


@pytest.mark.parametrize("name", ANNOTATED)
def test_kinds_are_those_of_the_annotations_around_the_launches(name: str) -> None:
    """Every kernel there has the same name, that of sending and receiving or of anything."""
    codes = code_collectives(read_kineto(find_shared("data", "kineto", name)))
    assert Counter(KINDS[code].value for code in codes.tolist() if code >= 0) == ANNOTATED[name]


def test_an_exchange_among_eight_ranks_has_its_name_and_no_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = find_shared("data", "kineto", "v100_dlrm_8ranks", "worker0_step_12.1694128201545.pt.trace.json")
    run_verb(["report", str(first.parent), "--details", "--out", str(tmp_path)])
    report = json.loads((tmp_path / "report.json").read_text())
    counts = {item["kind"]: item["count_per_step"] for item in report["communication"]}
    assert counts == {"all_reduce": [3] * 8, "all_to_all": [5] * 8}
    assert {item["kind"] for item in report["waits"]} == {"all_reduce", "all_to_all"}
    assert {item["bytes_per_step"] for item in report["waits"]} == {None}
    assert " 0 B" not in capsys.readouterr().out


def test_gloo_on_cpus_exposes_nobody_knows_how_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = find_shared("data", "kineto", "cpu_gloo.json.gz")
    assert run_verb(["report", str(path), "--details", "--out", str(tmp_path)]) == EXIT_PARTIAL
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["headline"]["exposed_ratio"] is None and report["headline"]["exposed_ns"] is None
    assert "exposed comm.  n/a" in capsys.readouterr().out
