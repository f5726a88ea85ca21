"""`distprof reduce` and URLs: reduced elsewhere or earlier, a report is cell for cell what one process reports."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from distprof.cli.parser import run_verb
from distprof.errors import EXIT_FAILED, EXIT_OK, EXIT_PARTIAL, EXIT_USAGE
from tests.nsys_file import make_training_export
from tests.traces.test_join_cycles import write_cycle
from tests.traces.test_load_run import make_run_folder, make_traces

RANKS = 6


def report(out: Path, *arguments: object, code: int = EXIT_OK) -> Any:
    """The report in the files, the timeline included."""
    assert run_verb(["report", *map(str, arguments), "--out", str(out)]) == code
    return json.loads((out / "report.json").read_text()), (out / "trace.json.gz").read_bytes()


def move(found: Any, there: str, here: object) -> Any:
    """The report as if the traces had been elsewhere; what is made of their paths is left out."""
    text: str = json.dumps({**found, "run_id": None})
    return json.loads(text.replace(there, str(here)) if there else text)


def list_reduced(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.distprof"))


def test_reduced_ranks_give_the_report_of_the_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces, reduced = make_traces(tmp_path / "traces"), tmp_path / "reduced"
    assert run_verb(["reduce", str(traces), "--out", str(reduced)]) == EXIT_OK
    assert capsys.readouterr().out == f"reduced: 3 ranks in {reduced}\n"
    whole = report(tmp_path / "a", traces)
    assert report(tmp_path / "b", *list_reduced(reduced)) == whole
    assert report(tmp_path / "c", reduced) == whole
    first, *_ = list_reduced(reduced)
    assert report(tmp_path / "d", first, *sorted(traces.iterdir())[1:]) == whole


def test_cycles_of_a_process_are_one_reduced_rank_and_captures_have_several(tmp_path: Path) -> None:
    (tmp_path / "cycles").mkdir()
    for number, first in ((1, 2), (2, 12)):
        write_cycle(tmp_path / "cycles", number, first)
    capture = make_training_export(num_steps=4).write(tmp_path / "capture.sqlite")
    for name, given, count in (("one", tmp_path / "cycles", 1), ("two", capture, 2)):
        assert run_verb(["reduce", str(given), "--out", str(tmp_path / name)]) == EXIT_OK
        assert len(list_reduced(tmp_path / name)) == count
        assert report(tmp_path / f"{name}b", tmp_path / name) == report(tmp_path / f"{name}a", given)


def test_cycles_that_were_reduced_one_by_one_are_not_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, first in ((1, 2), (2, 12)):
        path = write_cycle(tmp_path, number, first)
        assert run_verb(["reduce", str(path), "--out", str(tmp_path / "reduced")]) == EXIT_OK
    assert run_verb(["report", str(tmp_path / "reduced"), "--no-write"]) == EXIT_FAILED
    assert "traces of one process: reduce them with one command" in capsys.readouterr().err


def test_a_damaged_file_is_named_and_the_others_are_reduced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = make_traces(tmp_path / "traces")
    (traces / "rank-00001.json.gz").write_bytes(b"\x1f\x8b")
    assert run_verb(["reduce", str(traces), "--out", str(tmp_path / "reduced")]) == EXIT_PARTIAL
    assert "distprof: left out: " in capsys.readouterr().err and len(list_reduced(tmp_path / "reduced")) == 2


def test_names_of_steps_come_too_late_for_reduced_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["reduce", str(make_traces(tmp_path / "traces")), "--out", str(tmp_path / "reduced")]) == EXIT_OK
    assert run_verb(["report", str(tmp_path / "reduced"), "--step", "mine*", "--no-write"]) == EXIT_FAILED
    assert "--step and --phase come too late: pass them to distprof reduce" in capsys.readouterr().err


def test_run_folders_are_not_reduced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["reduce", str(make_run_folder(tmp_path)), "--out", str(tmp_path / "x")]) == EXIT_USAGE
    assert "a run folder is not reduced: pass it to distprof report" in capsys.readouterr().err


def test_traces_and_output_may_be_behind_urls(
    memory: MemoryFileSystem, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = make_traces(tmp_path / "traces")
    memory.put(str(traces), "/traces", recursive=True)
    memory.pipe_file("/traces/notes.txt", b"no trace")
    memory.pipe_file("/traces/settings.json", b'{"a": 1}')
    here, there = (
        report(tmp_path / name, given)[0] for name, given in (("a", f"file://{traces}"), ("b", "memory://traces"))
    )
    assert move(there, "memory:///traces", traces) == move(here, "", "")
    assert run_verb(["reduce", "memory://traces/rank-0000[0-2].json.gz", "--out", "memory://kept"]) == EXIT_FAILED
    assert run_verb(["reduce", "memory://traces/*.json.gz", "--out", "memory://kept"]) == EXIT_OK
    assert run_verb(["report", "memory://kept/*.distprof", "--out", "memory://out"]) == EXIT_OK
    shown = capsys.readouterr().out
    assert "in memory://out" in shown and json.loads(memory.cat_file("/out/report.json")) == there
    assert run_verb(["compare", "memory://traces", "memory://kept"]) == EXIT_OK
    assert run_verb(["tables", "memory://traces", "--rows", "1"]) == EXIT_OK


def test_a_run_folder_may_be_behind_a_url(memory: MemoryFileSystem, tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path)
    memory.put(str(folder), "/run", recursive=True)
    code = run_verb(["report", str(folder), "--out", str(tmp_path / "a")])
    assert report(tmp_path / "b", "memory://run", code=code) == report(tmp_path / "a", folder, code=code)


def test_files_behind_urls_that_are_no_traces_are_named(
    memory: MemoryFileSystem, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory.pipe_file("/x/a.json", b'{"traceEvents": [{')
    memory.pipe_file("/x/b.txt", b"text")
    for given, said in (
        ("memory://x/b.txt", "memory://x/b.txt: not a file that distprof can read: "),
        ("memory://x/a.json", "memory://x/a.json: "), ("memory://x", "memory:///x/a.json: "),
        ("memory://nothing", "memory://nothing: no such file or folder"),
    ):  # fmt: skip
        assert run_verb(["report", given, "--no-write"]) == EXIT_FAILED
        line = capsys.readouterr().err
        assert line.startswith(f"distprof: {said}") and line.count("\n") == 1 and "/tmp" not in line


@pytest.mark.slow
@pytest.mark.dask
def test_dask_reduces_on_the_workers_that_are_left(tmp_path: Path) -> None:
    from distributed import LocalCluster

    traces = make_traces(tmp_path / "traces", RANKS)
    whole = report(tmp_path / "a", traces)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        os.kill(next(iter(cluster.workers.values())).pid, 9)
        assert report(tmp_path / "b", traces, "--executor", f"dask:{cluster.scheduler_address}") == whole


@pytest.mark.slow
@pytest.mark.ray
def test_ray_reduces(tmp_path: Path) -> None:
    traces = make_traces(tmp_path / "traces", RANKS)
    assert report(tmp_path / "b", traces, "--executor", "ray:local") == report(tmp_path / "a", traces)


@pytest.mark.slow
@pytest.mark.s3
def test_an_s3_serves_traces_and_takes_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "testing")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        traces, system = make_traces(tmp_path / "traces"), fsspec.filesystem("s3", skip_instance_cache=True)
        system.mkdir("bucket")
        system.put(str(traces), "bucket/traces", recursive=True)
        assert run_verb(["report", "s3://bucket/traces", "--out", "s3://bucket/out"]) == EXIT_OK
        there = json.loads(system.cat_file("bucket/out/report.json"))
        assert move(there, "s3://bucket/traces", traces) == move(report(tmp_path, traces)[0], "", "")
    finally:
        server.stop()
