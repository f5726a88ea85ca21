"""A capture of a GPU job without kernels is a failed capture."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from distprof.cli.capture import job
from distprof.cli.capture.command import read_request, read_run_dir
from distprof.cli.capture.job import require_kernels, runs_on_gpu
from distprof.errors import DataError
from distprof.storage.run_folder import write_meta
from distprof.traces.nsys.nsys_tool import Nsys
from tests.factories import make_meta


@pytest.mark.parametrize(
    ("options", "traces"),
    [
        ([], True),
        (["-t", "nvtx"], False),
        (["-tnvtx,cuda"], True),
        (["--trace=nvtx,osrt"], False),
        (["--trace", "cuda-hw"], True),
    ],
)
def test_whether_kernels_are_expected_follows_from_what_is_traced(options: list[str], traces: bool) -> None:
    assert read_request([*options, "--", "x=1"]).traces_cuda == traces


NVTX = "CREATE TABLE NVTX_EVENTS (text)"
KERNELS = "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start)"
DIAGNOSES = "CREATE TABLE DIAGNOSTIC_EVENT (text)"
TOO_NEW = "Installed CUDA driver version (13.0) is not supported by this build"


def make_export(path: Path, *statements: str) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as base:
        for statement in (NVTX, *statements):
            base.execute(statement)
        base.commit()
    return path


def test_a_capture_of_a_gpu_job_without_kernels_is_a_failed_one_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "read_driver", lambda: "580.65.06")
    nsys = Nsys(path="nsys", version="2024.4.1.61-x")
    with pytest.raises(DataError, match=r"no kernel.*older than the driver.*nsys 2024\.4\.1.*driver 580\.65\.06"):
        require_kernels(make_export(tmp_path / "empty", KERNELS), nsys)
    told = [f"INSERT INTO DIAGNOSTIC_EVENT VALUES ('{text}')" for text in ("No CUDA events", f"{TOO_NEW}\n\x1b[0m")]
    with pytest.raises(DataError) as raised:
        require_kernels(make_export(tmp_path / "told", DIAGNOSES, *told), nsys)
    assert f"nsys says: {TOO_NEW} [0m (nsys" in str(raised.value) and str(raised.value).isprintable()
    for table in ("KERNEL", "GRAPH_TRACE"):
        name = f"CUPTI_ACTIVITY_KIND_{table}"
        whole = make_export(tmp_path / table, f"CREATE TABLE {name} (start)", f"INSERT INTO {name} VALUES (1)")
        require_kernels(whole, nsys)


def test_whether_the_job_ran_on_gpus_is_read_from_its_run_folder_else_from_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "GPUS", tmp_path / "gpus")
    assert not runs_on_gpu(tmp_path / "none", on_cpu=False)
    (tmp_path / "gpus" / "0000:01:00.0").mkdir(parents=True)
    assert runs_on_gpu(tmp_path / "none", on_cpu=False) and not runs_on_gpu(tmp_path / "none", on_cpu=True)
    for device_type in ("cpu", "cuda"):
        (tmp_path / device_type).mkdir()
        write_meta(tmp_path / device_type, make_meta(device_type=device_type))
        assert runs_on_gpu(read_run_dir([f"run_dir='{tmp_path / device_type}'"], tmp_path), on_cpu=False) == (
            device_type == "cuda"
        )


@pytest.mark.parametrize(
    ("arguments", "on_gpu", "fails"),
    [([], True, True), ([], False, False), (["-t", "nvtx"], True, False)],
    ids=["on a GPU", "on the CPU", "CUDA is not traced"],
)
def test_the_capture_of_a_job_asks_for_kernels_where_there_were_some(
    arguments: list[str], on_gpu: bool, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = make_export(tmp_path / "export", KERNELS)
    instead = {
        "require_nsys": lambda *_: Nsys(path="nsys", version="2025.1.1.1-x"), "_keep_neighbours_out": lambda _: [],
        "_run": lambda *_: 0, "judge": lambda *_: [tmp_path / "report"], "_export": lambda *_: export,
        "runs_on_gpu": lambda *_, on_cpu: on_gpu and not on_cpu,
    }  # fmt: skip
    for name, function in instead.items():
        monkeypatch.setattr(job, name, function)
    monkeypatch.setattr(job, "read_driver", lambda: "580.65.06")
    told = ["--no-report", *arguments, "--", f"runs_dir={tmp_path}"]
    with pytest.raises(DataError, match="no kernel") if fails else contextlib.nullcontext():
        assert job.capture(told, {"NPROC": "1"}) == 0
