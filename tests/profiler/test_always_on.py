"""Always on: what Prometheus is told is what the steps say, and a file in the run folder turns recording off."""

from __future__ import annotations

import re
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

import distprof
from distprof.analyze import analyze
from distprof.facts.gpu import GpuReading
from distprof.profiler.metrics.metrics import Metrics
from distprof.storage.run_folder import read_run
from tests.factories import MS, make_run

NAME = 'a "run"\\of\nmine \ud800'
LINE = re.compile(
    r'distprof_[a-z_]+(\{[a-z_]+="(?:[^"\\\n]|\\[\\"n])*"(,[a-z_]+="(?:[^"\\\n]|\\[\\"n])*")*\})? -?[0-9.e+-]+'
)


def read(text: str) -> dict[str, float]:
    """The samples by name and labels; every line is valid."""
    lines = [line for line in text.splitlines() if not line.startswith("# ")]
    assert all(LINE.fullmatch(line) for line in lines)
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def make_metrics(num_ranks: int = 2, **columns: object) -> Metrics:
    own = np.full((num_ranks, 1), 20.0 * MS)
    own[-1] = 50 * MS
    run = make_run(
        num_ranks=num_ranks, num_steps=4, num_warmup=0, host_ns={"forward": own, "all_reduce": 70 * MS - own},
        meta={"name": NAME}, columns={"memory_peak_bytes": 3e9, **columns},
    )  # fmt: skip
    metrics = Metrics(structs.replace(run.meta, work=None), run.ranks, now_s=lambda: 7.5)
    metrics.add(run.rows)
    return metrics


def test_the_numbers_are_those_of_the_steps() -> None:
    metrics = make_metrics()
    found = read(metrics.render())
    labels = 'name="a \\"run\\"\\\\of\\nmine \ud800",run_id='
    assert any(key.startswith(f"distprof_run_info{{{labels}") for key in found)
    expected = {
        "distprof_ranks": 2, "distprof_steps_total": 4, "distprof_steps_seconds_total": 0.28,
        "distprof_tokens_total": 8192, "distprof_last_step_timestamp_seconds": 7.5, "distprof_last_step": 3,
        "distprof_memory_peak_bytes": 3e9, "distprof_step_seconds": 0.07,
        "distprof_straggler_excess_seconds": 0.03, 'distprof_phase_seconds{phase="forward",clock="host"}': 0.035,
        'distprof_exposed_communication_ratio{clock="host"}': 0.5, "distprof_tokens_per_second": 29257.1,
    }  # fmt: skip
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    assert not any("device" in key or "flops" in key or "mfu" in key for key in found)  # not measured: no line
    metrics.add(make_run(num_ranks=2, num_steps=1).rows)
    again = read(metrics.render())
    assert again["distprof_steps_total"] == 5 and again["distprof_step_seconds"] != 0.07


def test_a_loop_that_does_not_count_its_tokens_has_no_line_for_them() -> None:
    found = read(make_metrics(tokens=0).render())
    assert found["distprof_steps_total"] == 4 and not any("tokens" in key for key in found)


def test_gauges_leave_out_the_steps_of_a_window() -> None:
    """Its steps take ten times as long, and counting operations in the first one longer still."""
    window = np.array([[0, 0, 1, 1, 0]] * 2)
    forward = np.array([[50, 50, 900, 500, 80]]) * MS
    run = make_run(num_steps=5, num_warmup=0, host_ns={"forward": forward}, columns={"window": window})
    metrics = Metrics(run.meta, run.ranks)
    for first, last, step_s in ((0, 2, 0.05), (3, 3, 0.05), (4, 4, 0.08)):
        metrics.add(run.rows[:, first : last + 1])
        found = read(metrics.render())
        assert (found["distprof_last_step"], found["distprof_step_seconds"]) == (last, pytest.approx(step_s))
    assert found["distprof_steps_total"] == 5 and found["distprof_steps_seconds_total"] == pytest.approx(1.58)


def read_gpus(readings: list[GpuReading], uuids: str) -> dict[str, float]:
    run = make_run(num_ranks=len(uuids), infos={rank: {"device_uuid": uuid} for rank, uuid in enumerate(uuids)})
    metrics = Metrics(run.meta, run.ranks, read_gpus=lambda: readings)
    return {key: value for key, value in read(metrics.render()).items() if "_gpu" in key}


def test_gpus_are_added_up_each_once_and_only_if_all_are_read() -> None:
    one = GpuReading(power_mw=125_500, energy_mj=4000, sm_clock_mhz=345, temperature_c=38, limits=0x1)
    two = GpuReading(power_mw=700_000, energy_mj=9000, sm_clock_mhz=1410, temperature_c=71, limits=0x4 | 0x20)
    found = read_gpus([one, two, two], "abb")
    assert (found["distprof_gpu_power_watts"], found["distprof_gpu_energy_joules_total"]) == (825.5, 13)
    assert found["distprof_gpu_sm_clock_hertz"] == 345e6 and found["distprof_gpu_temperature_celsius"] == 71
    limited = {key: value for key, value in found.items() if value and key.startswith("distprof_gpus_limited")}
    assert limited == {f'distprof_gpus_limited{{by="{by}"}}': 1 for by in ("power cap", "temperature")}
    found = read_gpus([one, GpuReading()], "ab")
    assert "distprof_gpu_power_watts" not in found and found["distprof_gpu_temperature_celsius"] == 38
    assert read_gpus([GpuReading(), GpuReading()], "ab") == {} == read_gpus([], "ab")


def test_there_are_no_more_series_with_more_ranks() -> None:
    assert len(read(make_metrics(200).render())) == len(read(make_metrics(2).render()))


def test_before_the_first_step_counters_are_0_and_nothing_else_is_said() -> None:
    text = Metrics(make_run().meta, make_run().ranks).render()
    assert "distprof_steps_total 0.0" in text and "step_seconds" not in text and "nan" not in text


def test_a_file_in_the_run_folder_turns_recording_off_and_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with distprof.start("a", run_dir=str(run), find=False, window_s=0.01, warmup_steps=0, shadow_every=0) as session:

        def step_until(recording: bool) -> None:
            end_s = time.monotonic() + 60
            while time.monotonic() < end_s:
                with session.step():
                    if session.recording is recording:
                        return
                time.sleep(0.002)
            raise AssertionError(f"recording did not become {recording}")

        step_until(True)
        (run / "record.stop").touch()
        step_until(False)
        (run / "record.stop").unlink()
        step_until(True)
    notes = analyze(read_run(run)).coverage.notes
    assert "recording was off while there was record.stop in the run folder" in notes


def test_a_session_serves_them_and_a_taken_port_costs_no_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with distprof.start("a", run_dir=str(tmp_path / "a"), metrics_port=0, find=False, window_s=0.01) as session:
        with session.step():
            pass
        said = capsys.readouterr().err
        url = said.split("live metrics: ")[1].split()[0]
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert "distprof_ranks 1.0" in answer.read().decode()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            options = {"metrics_port": port, "find": False}
            with distprof.start("b", run_dir=str(tmp_path / "b"), **options) as other, other.step():
                pass
    assert (
        f"no live metrics: profile.metrics_port={port} on 127.0.0.1: Address already in use" in capsys.readouterr().err
    )
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=1)
