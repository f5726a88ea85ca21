"""The run folder: one per run, read back completely, or as far as it can be trusted."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from distprof.errors import DataError, UsageError
from distprof.facts.arrays import FloatArray
from distprof.facts.run import (
    COLUMN,
    ROW_WIDTH,
    ClockReading,
    CollectiveKind,
    LinkReading,
    Peak,
    Phase,
    RankInfo,
    RunMeta,
)
from distprof.storage.collective_records import GroupInfo, IssuedCollective, StepCollectives
from distprof.storage.rank_stream import StreamWriter
from distprof.storage.run_folder import create_run_folder, rank_path, read_run, write_meta
from distprof.storage.whole_file import write_json, write_whole

NOW = datetime(2026, 3, 4, 5, 6, 7)
META = RunMeta(
    run_id="id-1", name="n", started_utc="2026-03-04T05:06:07+00:00", world_size=2, backend="gloo", device_type="cpu",
    strategy="ddp", precision="fp32", work=None, versions={"torch": "2"}, git=None, config={"train": {"steps": 2}},
)  # fmt: skip


def make_row(step: int, step_ns: float) -> FloatArray:
    row = np.full(ROW_WIDTH, np.nan)
    row[COLUMN["step"]], row[COLUMN["warmup"]], row[COLUMN["failed"]] = step, 0, 0
    row[COLUMN["step_host_ns"]] = step_ns
    return row


def write_rank(folder: Path, rank: int, steps: list[int], *, run_id: str = "id-1", world_size: int = 2) -> None:
    info = RankInfo(
        rank=rank, local_rank=rank, host="h", pid=1, device="cpu", snapshot=None, peak=Peak(flops_per_s=1.0, source="s")
    )
    writer = StreamWriter(rank_path(folder, rank), run_id=run_id, world_size=world_size, info=info)
    writer.write_steps([make_row(step, 100 + 10 * rank + step) for step in steps], [None] * len(steps))
    writer.write_end("completed", error=None, traceback=None, rows_lost=0, notes=())
    writer.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = create_run_folder(runs_dir=str(tmp_path), run_dir=None, name="job", now=NOW)
    write_meta(made, META)
    return made


def test_two_runs_of_one_second_have_two_folders(tmp_path: Path) -> None:
    made = [
        create_run_folder(runs_dir=str(tmp_path / "runs"), run_dir=None, name="a/../b c", now=NOW) for _ in range(3)
    ]
    names = ["2026-03-04_05-06-07_a-..-b-c", "2026-03-04_05-06-07_a-..-b-c-2", "2026-03-04_05-06-07_a-..-b-c-3"]
    assert [path.name for path in made] == names
    assert all(path.parent == tmp_path / "runs" for path in made)


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.json").write_text("{}")
    with pytest.raises(UsageError, match="is not empty"):
        create_run_folder(runs_dir="x", run_dir=str(tmp_path / "old"), name="n", now=NOW)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot make the run folder"):
        create_run_folder(runs_dir=str(tmp_path / "file"), run_dir=None, name="n", now=NOW)


def test_ranks_are_aligned_by_step_and_gaps_are_not_measured(folder: Path) -> None:
    write_rank(folder, 0, [0, 1, 2])
    write_rank(folder, 1, [1, 2, 5])
    run = read_run(folder)
    expected = [[100, 101, 102, np.nan], [np.nan, 111, 112, 115]]
    np.testing.assert_array_equal(run.column("step_host_ns"), expected)
    assert run.meta == META and [info.rank for info in run.ranks] == [0, 1] and run.warnings == ()


def write_collectives(folder: Path, rank: int, sizes: dict[int, int], *, kept: bool = True) -> None:
    """A rank with one all-reduce in every step, with bytes by step; not ``kept``: only its sum per step."""
    info = RankInfo(
        rank=rank, local_rank=rank, host="h", pid=1, device="cpu", snapshot=None, peak=Peak(flops_per_s=1.0, source="s")
    )
    writer = StreamWriter(rank_path(folder, rank), run_id="id-1", world_size=2, info=info)
    for step, size_bytes in sizes.items():
        row = make_row(step, 100)
        row[COLUMN["begin_host_ns"]], row[COLUMN["all_reduce_count"]] = 1000 * step, 1
        seen = StepCollectives(
            order=(IssuedCollective(CollectiveKind.ALL_REDUCE, 0, Phase.BACKWARD, size_bytes),),
            arrival_ns=[1000 * step + 5 + rank], end_ns=[1000 * step + 9], exposed_ns=[4],
        )  # fmt: skip
        writer.write_steps([row], [None], [seen if kept else None], [GroupInfo(name="default", ranks=None)])
    writer.close()


def test_collectives_of_the_ranks_are_lined_up(folder: Path) -> None:
    write_collectives(folder, 0, {0: 8, 1: 8, 2: 8, 4: 8})
    write_collectives(folder, 1, {0: 8, 2: 16, 4: 8})
    (folder / "ranks" / "flight_recorder-rank-00000.json").write_text("{}")  # ours, and no stream
    run = read_run(folder)
    (table,) = run.collectives
    assert table.steps.tolist() == [0, 3] and table.arrival_ns.tolist() == [[[5], [4005]], [[6], [4006]]]
    assert table.sizes_bytes == (8,) and table.size == 2
    (warning,) = run.warnings
    assert "step 2, group default: collective 0, counted from 0, is all_reduce of 8 B on rank 0 and" in warning


def test_a_rank_of_which_only_rows_are_there_is_named(folder: Path) -> None:
    write_collectives(folder, 0, {0: 8})
    write_collectives(folder, 1, {0: 8}, kept=False)
    run = read_run(folder)
    assert run.collectives[0].ranks.tolist() == [0]
    (warning,) = run.warnings
    assert warning.startswith("rank 1: collectives known only as sums per step, as for hosts that do not share the run")


def test_a_missing_rank_is_not_there(folder: Path) -> None:
    write_rank(folder, 1, [0])
    run = read_run(folder)
    assert [info.rank for info in run.ranks] == [1] and run.rows.shape == (1, 1, ROW_WIDTH)


def test_a_run_without_ranks_is_empty(folder: Path) -> None:
    assert read_run(folder).rows.shape == (0, 0, ROW_WIDTH)


def test_foreign_files_are_ignored_with_a_warning(folder: Path, tmp_path: Path) -> None:
    write_rank(folder, 0, [0])
    write_rank(folder, 1, [0], run_id="another")
    (folder / "ranks" / "rank-x.jsonl").write_text("hello")
    (tmp_path / "outside").write_text("secret")
    (folder / "ranks" / "rank-00007.jsonl").symlink_to(tmp_path / "outside")
    run = read_run(folder)
    assert [info.rank for info in run.ranks] == [0]
    text = " | ".join(run.warnings)
    assert "rank-00001.jsonl: belongs to another run" in text
    assert "rank-x.jsonl: not a rank stream" in text and "rank-00007.jsonl: not a rank stream" in text


def test_a_damaged_file_is_a_warning_not_the_end(folder: Path) -> None:
    write_rank(folder, 0, [0])
    rank_path(folder, 1).write_bytes(b"")
    run = read_run(folder)
    assert [info.rank for info in run.ranks] == [0] and "no readable header" in run.warnings[0]


def test_files_that_contradict_each_other_are_refused(folder: Path) -> None:
    write_rank(folder, 0, [0], world_size=4)
    with pytest.raises(DataError, match=r"job has 4 ranks, but run.json says 2"):
        read_run(folder)
    rank_path(folder, 0).unlink()
    write_rank(folder, 1, [0])
    rank_path(folder, 1).rename(rank_path(folder, 0))
    with pytest.raises(DataError, match="a rank exists twice"):
        read_run(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "not written by this major version"),
        ('{"schema": "distprof.run/2.0"}', "not written by this major version"),
        ('{"schema": "distprof.run/1.0"}', "missing"),
    ],
)
def test_a_bad_run_json_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        read_run(tmp_path)
    assert "run.json" in str(caught.value) and "\n" not in str(caught.value)


def test_readings_of_clocks_and_links_come_back(tmp_path: Path) -> None:
    clocks = tuple(ClockReading(rank=rank, at_ns=2**52 + 1, offset_ns=-rank, bound_ns=rank) for rank in range(2))
    first, last = ((LinkReading(rank=1, bytes_per_s=speed),) for speed in (1.5e9, 0.5e9))
    meta = replace(META, clock_readings=clocks, link_readings=first, last_link_readings=last)
    write_meta(tmp_path, meta)
    assert read_run(tmp_path).meta == meta
    path = tmp_path / "run.json"
    older = json.loads(path.read_text())
    del older["last_link_readings"]
    path.write_text(json.dumps(older))
    assert read_run(tmp_path).meta == replace(meta, last_link_readings=())
    write_meta(tmp_path, replace(meta, clock_readings=(clocks[0], replace(clocks[1], at_ns=0.5))))  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"run.json.clock_readings\[1\].at_ns=0.5: expected a whole number"):
        read_run(tmp_path)
    write_meta(tmp_path, replace(meta, link_readings="none"))  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"link_readings='none': expected a list of groups of keys"):
        read_run(tmp_path)


def test_wrong_types_in_run_json_are_named(tmp_path: Path) -> None:
    write_meta(tmp_path, replace(META, world_size="many"))  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"run.json.world_size='many': expected a whole number"):
        read_run(tmp_path)
    write_meta(tmp_path, replace(META, world_size=0))
    with pytest.raises(DataError, match="is impossible"):
        read_run(tmp_path)
    with pytest.raises(DataError, match="not a run folder"):
        read_run(tmp_path / "nowhere")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "one")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a", {"x": float("nan")})
    assert (tmp_path / "a").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
