"""One look at a device: through a pretended NVML, and at a pretended processor."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distprof.facts.hardware import look_up_peak
from distprof.record.device import rank_info as module
from distprof.record.device.rank_info import take_snapshot


class NvmlError(Exception):
    pass


def make_nvml(**changes: Any) -> Any:
    facts: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "NVMLError": NvmlError,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetMemoryInfo": lambda card: SimpleNamespace(total=80, used=30),
        "nvmlDeviceGetUtilizationRates": lambda card: SimpleNamespace(gpu=50),
        "nvmlDeviceGetPowerUsage": lambda card: 250_500,
        "nvmlDeviceGetTemperature": lambda card, kind: 41,
        "nvmlDeviceGetComputeRunningProcesses": lambda card: [1, 2],
    }
    return SimpleNamespace(**{**facts, **changes})


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA Pretended")
    properties = SimpleNamespace(uuid="1234")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)


def test_nvml_is_asked_for_the_card_that_torch_means(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def find(uuid: str) -> str:
        asked.append(uuid)
        return uuid

    monkeypatch.setitem(sys.modules, "pynvml", make_nvml(nvmlDeviceGetHandleByUUID=find))
    look, notes = take_snapshot("cuda", 3)
    assert asked == ["GPU-1234"] and notes == ()
    assert (look.name, look.memory_total_bytes, look.memory_used_bytes) == ("NVIDIA Pretended", 80, 30)
    assert (look.utilization_ratio, look.power_w, look.temperature_c, look.processes) == (0.5, 250.5, 41.0, 2)


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-SXM4-40GB"])
@pytest.mark.parametrize("uuid", ["1234", "MIG-1234"])
def test_a_slice_is_found_by_its_own_uuid_and_gets_no_peak_of_the_card(
    name: str, uuid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(uuid: str) -> str:
        if not uuid.startswith("MIG-"):
            raise NvmlError("Not Found")
        return uuid

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=uuid))
    monkeypatch.setitem(sys.modules, "pynvml", make_nvml(nvmlDeviceGetHandleByUUID=find))
    look, notes = take_snapshot("cuda", 0)
    assert look.memory_total_bytes == 80 and notes == () and look.name.startswith(name)
    peak = look_up_peak(look.name, "bf16")
    assert peak.flops_per_s is None and "is a slice of a card" in peak.source


def test_what_a_card_refuses_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise NvmlError("not supported")

    monkeypatch.setitem(sys.modules, "pynvml", make_nvml(nvmlDeviceGetPowerUsage=refuse))
    look, notes = take_snapshot("cuda", 0)
    assert look.power_w is None and look.memory_total_bytes == 80 and notes == ()
    monkeypatch.setitem(sys.modules, "pynvml", make_nvml(nvmlInit=refuse))
    look, (note,) = take_snapshot("cuda", 0)
    assert look.name == "NVIDIA Pretended" and look.memory_total_bytes is None and "not supported" in note


def test_without_nvml_there_is_a_name_and_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    look, (note,) = take_snapshot("cuda", 0)
    assert look.name == "NVIDIA Pretended" and "pip install nvidia-ml-py" in note


def test_a_processor_has_a_name_and_the_machines_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Fast One @ 2GHz\nmodel name\t: Fast One @ 2GHz\n")
    (tmp_path / "meminfo").write_text("MemTotal:     1000 kB\nMemFree: 1 kB\nMemAvailable:   400 kB\n")
    monkeypatch.setattr(module, "PROC", tmp_path)
    look, notes = take_snapshot("cpu", None)
    assert (look.name, look.memory_total_bytes, look.memory_used_bytes) == ("Fast One @ 2GHz", 1_024_000, 614_400)
    assert look.utilization_ratio is None and notes == ()
    monkeypatch.setattr(module, "PROC", tmp_path / "nothing")
    look, _ = take_snapshot("cpu", None)
    assert look.name and look.memory_total_bytes is None and look.memory_used_bytes is None
