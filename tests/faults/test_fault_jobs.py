"""Ranks that are missing, duplicated or of another job; traces that are damaged or of different jobs."""

from __future__ import annotations

import json
import re
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from distprof.cli.parser import run_verb
from distprof.errors import EXIT_FAILED, EXIT_OK, EXIT_PARTIAL
from distprof.storage.run_folder import rank_path
from distprof.storage.stream_part import SCHEMA_MAJOR, SCHEMA_MINOR
from tests.faults.run_folder import make_late_run, write_run, write_stream
from tests.kineto_file import make_kernel, make_launch, make_step, write_kineto
from tests.ranks import run_alone
from tests.traces.reduce.real_traces import find_shared

RUN = make_late_run()
NOON_US = 1_700_000_000_000_000


def read_json(folder: Path) -> Any:
    return json.loads((folder / "report.json").read_text())


def make_trace(path: Path, rank: int, *, world: int = 4, at_us: float = NOON_US) -> Path:
    events = [make_step(1, at_us, 100), make_launch(at_us + 2, 3, 9), make_kernel("gemm", at_us + 10, 20, 9)]
    return write_kineto(path, events, distributedInfo={"rank": rank, "world_size": world, "backend": "nccl"})


def restate(path: Path, **changes: Any) -> None:
    """Changes a rank file's header, with a valid checksum."""
    first, rest = path.read_bytes().split(b"\n", 1)
    header = {key: value for key, value in json.loads(first).items() if key != "crc"} | changes
    body = json.dumps(header, separators=(",", ":")).encode()[:-1]
    path.write_bytes(body + b',"crc":"%08x"}\n' % zlib.crc32(body) + rest)


def test_fault_12_a_deleted_rank_a_foreign_one_and_one_that_is_there_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run", RUN)
    assert run_verb(["report", str(folder)]) == EXIT_OK
    whole = read_json(folder)
    assert whole["verdict"]["rank"] == 2 and whole["verdict"]["lost_ns"] is not None and whole["what_if"]
    assert any(ratio == 1 for item in whole["waits"] for ratio in item["last_ratio"])
    rank_path(folder, 3).unlink()  # deleted: the others' waits are at least, and no cost is known
    assert run_verb(["report", str(folder), "--details"]) == EXIT_PARTIAL
    shown, part = capsys.readouterr().out, read_json(folder)
    assert part["coverage"]["ranks_missing"] == [3] and "rank 3 is missing" in shown
    assert (part["verdict"]["rank"], part["verdict"]["critical"], part["verdict"]["lost_ns"]) == (2, False, None)
    assert part["what_if"] == [] and "what fixing it would gain is not known" in shown
    for item in part["waits"]:
        assert (item["members_missing"], item["transfer_ns"], set(item["last_ratio"])) == (1, None, {None})
    assert "n/a: 1 of 4 missing" in shown and "members of default (1 of 4) are missing" in shown
    write_stream(folder, RUN, 3, run_id="another")  # of another run: as if it were not there
    assert run_verb(["report", str(folder), "--details"]) == EXIT_PARTIAL
    assert "rank-00003.jsonl: belongs to another run, ignored" in re.sub(r"\s+", " ", capsys.readouterr().out)
    rank_path(folder, 3).unlink()
    shutil.copy(rank_path(folder, 2), rank_path(folder, 3))  # rank 2 twice
    assert run_verb(["report", str(folder), "--no-write"]) == EXIT_FAILED
    said = capsys.readouterr().err
    assert "rank-00003.jsonl: says it is rank 2: a rank exists twice" in said and said.count("\n") == 1


def test_fault_13_other_worlds_and_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", RUN)
    rank_path(folder, 1).unlink()
    path = write_stream(folder, RUN, 1, world_size=2)
    assert run_verb(["report", str(folder), "--no-write"]) == EXIT_FAILED
    said = capsys.readouterr().err
    assert "rank-00001.jsonl: says the job has 2 ranks, but run.json says 4" in said and said.count("\n") == 1
    path.unlink()
    path = write_stream(folder, RUN, 1)
    restate(path, schema=f"distprof.rank/{SCHEMA_MAJOR}.{SCHEMA_MINOR + 7}", mood="good")
    assert run_verb(["report", str(folder), "--no-write"]) == EXIT_OK  # a newer minor version
    capsys.readouterr()
    restate(path, schema=f"distprof.rank/{SCHEMA_MAJOR + 1}.0")
    assert run_verb(["report", str(folder)]) == EXIT_PARTIAL  # a newer major one, beside three that are readable
    refused = f"rank-00001.jsonl: written as 'distprof.rank/{SCHEMA_MAJOR + 1}.0'"
    assert f"left out: {refused}" in capsys.readouterr().err
    assert any(refused in note and "upgrade distprof" in note for note in read_json(folder)["coverage"]["notes"])
    meta = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(meta | {"schema": "distprof.run/2.0"}))
    assert run_verb(["report", str(folder), "--no-write"]) == EXIT_FAILED
    said = capsys.readouterr().err
    assert "not written by this major version" in said and said.count("\n") == 1


def test_fault_40_one_damaged_trace_of_eight_is_named_and_seven_are_reported(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    for rank in range(8):
        make_trace(traces / f"rank{rank}.json", rank, world=8)
    damaged = traces / "rank5.json"
    damaged.write_text(damaged.read_text()[:300])
    done = run_alone(["report", "traces"], tmp_path)
    assert done.returncode == EXIT_PARTIAL and "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("distprof: left out: traces/rank5.json: ")
    report = read_json(tmp_path / "distprof-report")
    assert report["coverage"]["ranks_present"] == [0, 1, 2, 3, 4, 6, 7]
    assert report["coverage"]["ranks_missing"] == [5]
    assert report["coverage"]["notes"][0].startswith("not readable and left out: traces/rank5.json: ")


def test_fault_40_tables_and_run_folders_leave_out_what_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(3):
        make_trace(tmp_path / f"rank{rank}.json", rank, world=3)
    (tmp_path / "rank1.json").write_text('{"traceEvents": [{')
    (tmp_path / "rank2.json").write_text("")
    assert run_verb(["tables", str(tmp_path), "--table", "cuda_gpu_kern_sum", "--width", "200"]) == EXIT_PARTIAL
    told = capsys.readouterr()
    assert "cuda_gpu_kern_sum: 1 row, rank 0" in told.out
    assert [line.split(": ")[2].rpartition("/")[2] for line in told.err.splitlines()] == ["rank2.json", "rank1.json"]
    (tmp_path / "rank0.json").unlink()
    for verb in ("tables", "report"):
        assert run_verb([verb, str(tmp_path)]) == EXIT_FAILED
        told = capsys.readouterr()
        assert told.out == "" and told.err.count("\n") == 1 and "rank" in told.err
    folder = write_run(tmp_path / "run", RUN)
    rank_path(folder, 1).write_bytes(b"\0" * 100)
    assert run_verb(["report", str(folder)]) == EXIT_PARTIAL
    assert capsys.readouterr().err == (
        "distprof: left out: rank-00001.jsonl: no readable header: not a distprof rank stream, or damaged at its "
        "start\n"
    )
    assert read_json(folder)["coverage"]["ranks_present"] == [0, 2, 3]


OTHERS = {
    "another world": ({"world": 8}, "is from a job of 4 ranks"),
    "another day": ({"at_us": NOON_US + 86_400e6 * 3}, "begins 3 days later"),
}


@pytest.mark.parametrize(("change", "reason"), OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("verb", ["report", "tables"])
def test_fault_40_traces_of_different_jobs_are_refused_with_the_reason(
    verb: str, change: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trace(tmp_path / "a.json", 0)
    make_trace(tmp_path / "b.json", 1, **change)
    assert run_verb([verb, str(tmp_path)]) == EXIT_FAILED
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1
    assert "a.json" in told.err and "b.json" in told.err and reason in told.err and "pass traces of one job" in told.err


def test_fault_40_runs_of_different_ids_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [
        write_run(tmp_path / name, structs.replace(RUN, meta=structs.replace(RUN.meta, run_id=name)))
        for name in ("one", "two")
    ]
    assert run_verb(["report", *map(str, folders)]) == EXIT_FAILED
    assert "two runs" in capsys.readouterr().err


def test_fault_40_real_traces_of_different_jobs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither names a rank or a world, and both have the same kind of device, but they are hours apart."""
    names = ("h100_bert_small_single.json.gz", "h100_qwen_single.json.gz")
    paths = [str(find_shared("data", "kineto", name)) for name in names]
    assert run_verb(["tables", *paths]) == EXIT_FAILED
    assert "begins 3 hours later" in capsys.readouterr().err
