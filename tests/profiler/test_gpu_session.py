"""A whole session whose rank has a scripted GPU: what that draws is in the folder, in the report and on the port."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import distprof
from distprof.analyze import analyze
from distprof.profiler.rank import build_profiler
from distprof.record.device import gpu_sampler
from distprof.storage.run_folder import read_run
from tests.scripted_nvml import HandClock, ScriptedCard, make_scripted_nvml

WINDOW_S, LIMIT_S, ENOUGH = 0.02, 60, 40


class Samples:
    """Those that were taken of the GPU."""

    def __init__(self) -> None:
        self.first = threading.Event()
        self.number = 0


@pytest.fixture(autouse=True)
def samples(monkeypatch: pytest.MonkeyPatch) -> Samples:
    """However slow the machine is, no two of them are too far apart, and the last one is waited for."""
    describe: Any = vars(build_profiler)["describe_rank"]
    taken = Samples()
    monkeypatch.setattr(build_profiler, "describe_rank", lambda *facts: replace(describe(*facts), device_uuid="a"))
    card = ScriptedCard(base_w=125, limits=0x1, counts_energy=False)
    nvml = make_scripted_nvml({"GPU-a": card}, HandClock())
    read = nvml.nvmlDeviceGetPowerUsage

    def take(handle: ScriptedCard) -> Any:
        taken.number += 1
        taken.first.set()
        return read(handle)

    nvml.nvmlDeviceGetPowerUsage = take
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    for name in ("MAX_GAP", "STALE"):
        monkeypatch.setattr(gpu_sampler, name, LIMIT_S / WINDOW_S)
    monkeypatch.setattr(gpu_sampler, "CLOSE_LIMIT_S", LIMIT_S)
    return taken


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def run_job(folder: Path, port: int, samples: Samples, **options: Any) -> str:
    """Steps until there are samples enough and the port tells of a temperature, if it ever does; what it told last."""
    text, begin_s = "", time.monotonic()
    with distprof.start(
        "a", run_dir=str(folder), find=False, window_s=WINDOW_S, warmup_steps=0, metrics_port=port, **options
    ) as session:
        before: int | None = None
        while (
            before is None or samples.number < before + ENOUGH or "celsius" not in text
        ) and time.monotonic() < begin_s + LIMIT_S:
            with session.step():
                if not options:
                    assert samples.first.wait(LIMIT_S)
                time.sleep(0.005)
            before = samples.number if before is None else before  # many may have been taken before the first step
            with contextlib.suppress(OSError):
                text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S).read().decode()
            if options:
                break
    return text


def list_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_what_the_gpu_draws_is_reported(tmp_path: Path, samples: Samples) -> None:
    text = run_job(tmp_path / "run", find_port(), samples)
    assert "distprof_gpu_power_watts 125.0" in text and "distprof_gpu_energy_joules_total" in text
    run = read_run(tmp_path / "run")
    assert not run.warnings and "distprof-gpu" not in list_threads()
    found = analyze(run).gpus
    assert found is not None and found.integrated
    (device,) = found.devices
    steps = analyze(run).coverage.steps_measured
    assert steps - 10 <= device.steps_used <= steps  # the first step begins before the first sample
    assert device.power_w == pytest.approx(125, rel=0.01) and device.limited_by == ()


def test_at_level_off_nothing_is_sampled(tmp_path: Path, samples: Samples) -> None:
    run_job(tmp_path / "run", find_port(), samples, level="off")
    assert read_run(tmp_path / "run").gpus == (None,) and samples.number == 0
