"""Several starts of a job's ranks by the same launcher: one run folder, and one report that says so."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from distprof.analyze import analyze
from distprof.cli.parser import run_verb
from distprof.errors import EXIT_OK, EXIT_PARTIAL, EXIT_USAGE, DataError, UsageError
from distprof.facts.run import COLUMN, Launch, Run
from distprof.storage.gather_folders import gather_folders
from distprof.storage.generations import (
    find_latest_run,
    find_newest,
    find_root,
    list_generations,
    number_folder,
    open_run_folder,
    read_generations,
)
from distprof.storage.rank_stream import StreamWriter, append_end
from distprof.storage.run_folder import rank_path, read_meta, write_meta
from tests.faults.run_folder import make_late_run, write_run

RUN = make_late_run()
LAUNCH = Launch(agents=("a0a0", "b1b1"), job=0, restarts=(0, 0))
NOW = datetime(2026, 3, 4, 5, 6, 7)
SECOND_NS = 1e9


def restart(launch: Launch = LAUNCH, **changes: object) -> Launch:
    """As after a failure of a rank of the second agent: the first does not count it."""
    own = replace(launch, **changes)  # type: ignore[arg-type]
    return replace(own, restarts=(*launch.restarts[:1], launch.restarts[1] + 1)[: len(own.agents)])


def open_next(runs: Path, launch: Launch | None, *, name: str = "job", run_dir: Path | None = None) -> Path:
    exact = None if run_dir is None else str(run_dir)
    return open_run_folder(runs_dir=str(runs), run_dir=exact, name=name, now=NOW, launch=launch)


def write_job(folder: Path, run: Run, launch: Launch | None = LAUNCH, *, ended: str | None = "completed") -> None:
    """A generation in a folder that was opened for it; None: all ranks were killed."""
    write_meta(folder, replace(run.meta, launch=launch))
    for position, info in enumerate(run.ranks):
        writer = StreamWriter(
            rank_path(folder, info.rank), run_id=run.meta.run_id, world_size=run.meta.world_size,
            info=replace(info, ended=None),
        )  # fmt: skip
        rows = list(run.rows[position].round())
        writer.write_steps(rows, [None] * len(rows))
        if ended is not None:
            writer.write_end(ended, error=None, traceback=None, rows_lost=0, notes=())
        writer.close()


def shift(run: Run, by_ns: float) -> Run:
    rows = run.rows.copy()
    rows[:, :, COLUMN["begin_host_ns"]] += by_ns
    return replace(run, rows=rows)


def shrink(run: Run, size: int) -> Run:
    meta = replace(run.meta, world_size=size, run_id="shrunk")
    return replace(run, meta=meta, ranks=run.ranks[:size], rows=run.rows[:size])


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Four ranks that were killed, four of which one failed, and three that completed."""
    runs, folder = tmp_path / "runs", open_next(tmp_path / "runs", LAUNCH)
    write_job(folder, RUN, ended=None)
    second = open_next(runs, restart())
    write_job(second, replace(shift(RUN, 60 * SECOND_NS), meta=replace(RUN.meta, run_id="second")), restart())
    append_end(rank_path(second, 1), "failed", error="ValueError: boom")
    append_end(rank_path(second, 2), "failed", error="RuntimeError: [pair.cc:1] Connection closed by peer [::1]:9")
    append_end(rank_path(second, 3), "failed", error="RuntimeError: [pair.cc:2] Connection closed by peer [::1]:7")
    write_job(open_next(runs, restart(restart())), shrink(shift(RUN, 100 * SECOND_NS), 3), restart(restart()))
    return folder


def test_ranks_that_are_started_again_go_on_in_the_same_folder(job: Path) -> None:
    assert [path.name for path in job.parent.iterdir()] == [job.name]
    numbers = list_generations(job)
    assert list(numbers) == [0, 1, 2] and numbers[2] == find_newest(job) == job / "generation-2"
    assert find_latest_run(job.parent) == find_latest_run(job) == job / "generation-2"
    assert [find_root(path) for path in numbers.values()] == [job] * 3
    assert [number_folder(path) for path in numbers.values()] == [0, 1, 2]
    assert find_root(job.parent / "generation-1") == job.parent / "generation-1"  # somebody's own name


LATER: Sequence[tuple[Launch | None, bool]] = (
    (restart(), True),
    (LAUNCH, True),  # nodes came or went: not counted
    (restart(agents=("c2c2", "b1b1")), True),  # one node was replaced
    (restart(agents=("c2c2",)), False),
    (restart(job=1), False),  # the second job of each process
    (None, False),
)


@pytest.mark.parametrize(("launch", "joins"), LATER)
def test_only_the_same_agents_and_the_same_job_of_their_processes_go_on(
    launch: Launch | None, joins: bool, tmp_path: Path
) -> None:
    folder = open_next(tmp_path, LAUNCH)
    write_job(folder, RUN, ended=None)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert open_next(tmp_path, restart(), name="other").parent == tmp_path
    assert (open_next(tmp_path, launch) == folder / "generation-1") is joins
    assert {path: path.read_bytes() for path in before} == before


def test_what_follows_a_job_that_has_completed_is_another_one(tmp_path: Path) -> None:
    folder = open_next(tmp_path, LAUNCH)
    write_job(folder, RUN)
    assert open_next(tmp_path, LAUNCH).parent == tmp_path
    append_end(rank_path(folder, 3), "failed", error="x")
    assert open_next(tmp_path, restart()) == folder / "generation-1"


def test_a_folder_from_before_the_first_step_is_not_that_of_the_start_before(tmp_path: Path) -> None:
    folder = open_next(tmp_path, LAUNCH)
    write_job(folder, RUN, ended=None)
    early = open_next(tmp_path, restart())
    write_meta(early, replace(RUN.meta, launch=replace(LAUNCH, agents=("b1b1",), restarts=(1,), is_early=True)))
    assert open_next(tmp_path, restart()) == folder / "generation-2"  # the same start
    alone = open_next(tmp_path, LAUNCH, name="alone")
    write_meta(alone, replace(RUN.meta, launch=replace(LAUNCH, agents=("b1b1",), restarts=(0,), is_early=True)))
    assert open_next(tmp_path, LAUNCH, name="alone").parent == tmp_path
    assert open_next(tmp_path, restart(), name="alone").parent == alone


def test_a_folder_that_was_given_is_gone_on_in_by_the_same_job_only(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert open_next(tmp_path, LAUNCH, run_dir=folder) == folder
    write_job(folder, RUN, ended=None)
    for launch in (None, restart(agents=("c2c2",))):
        with pytest.raises(UsageError, match="is not empty"):
            open_next(tmp_path, launch, run_dir=folder)
    assert open_next(tmp_path, restart(), run_dir=folder) == folder / "generation-1"


def test_the_newest_generation_with_a_measured_step_is_reported_and_all_are_listed(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb(["report", str(job), "--details", "--width", "200"]) == EXIT_OK
    shown = capsys.readouterr().out
    assert "generations: the ranks were started 3 times" in shown and "2 (here)" in shown
    assert "generation 0: ranks 0-3 stopped recording" in shown
    assert "generation 1: rank 1 failed: ValueError: boom; ranks 2-3 lost another rank; rank 0 completed" in shown
    report = json.loads((job / "report.json").read_text())
    assert (report["generation"], report["world_size"]) == (2, 3)
    listed = report["generations"]
    assert [item["world_size"] for item in listed] == [4, 4, 3] and [item["restarts"] for item in listed] == [0, 1, 2]
    assert listed[2]["step_mean_ns"] == report["headline"]["step_mean_ns"]
    begin_ns, end_ns = RUN.column("begin_host_ns").round(), RUN.column("begin_host_ns") + RUN.column("step_host_ns")
    gap_ns = np.nanmin(begin_ns) - np.nanmax(end_ns)
    assert [item["lost_ns"] for item in listed] == [
        None, pytest.approx(60 * SECOND_NS + gap_ns, abs=9), pytest.approx(40 * SECOND_NS + gap_ns, abs=9)
    ]  # fmt: skip
    page = (job / "report.html").read_text()
    assert "the ranks were started 3 times" in page
    assert run_verb(["report", str(job), "--no-write"]) == EXIT_OK
    assert "2, of 3 from 0 on" in re.sub(r"\s+", " ", capsys.readouterr().out)


def test_another_generation_can_be_asked_for(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, folder = read_generations(job, 1)
    assert (run.meta.run_id, folder, list(run.others)) == ("second", job / "generation-1", [0, 2])
    assert run_verb(["report", str(job), "--generation", "0", "--no-write"]) == EXIT_PARTIAL
    assert run_verb(["report", str(job), "--generation", "7", "--no-write"]) == EXIT_USAGE
    assert "no such generation, only 0, 1, 2" in capsys.readouterr().err
    assert run_verb(["report", str(job / "generation-1"), "--no-write"]) == EXIT_PARTIAL
    assert run_verb(["compare", str(job), str(job / "generation-1")]) == EXIT_PARTIAL  # its ranks ended early, too


def test_a_generation_without_steps_or_that_cannot_be_read_does_not_hide_the_others(job: Path) -> None:
    (job / "generation-3" / "ranks").mkdir(parents=True)
    write_job(job / "generation-3", replace(shrink(RUN, 3), rows=RUN.rows[:3, :0]), ended=None)
    (job / "generation-4").mkdir()  # its rank 0 was killed before it wrote anything
    (job / "generation-1" / "run.json").write_text("{")
    run, _ = read_generations(job)
    assert (run.generation, list(run.others), len(run.unread)) == (2, [0, 3], 1)
    report = analyze(run)
    assert [item.number for item in report.generations] == [0, 2, 3] and not report.coverage.complete
    assert report.generations[2].step_mean_ns is None and report.generations[2].lost_ns is None


def test_time_is_lost_only_where_one_clock_shows_it(job: Path) -> None:
    meta = read_meta(job / "generation-2")
    assert meta.launch is not None
    write_meta(job / "generation-2", replace(meta, launch=replace(meta.launch, agents=("b1b1", "a0a0"))))
    report = analyze(read_generations(job)[0])
    assert report.generations[1].lost_ns is not None and report.generations[2].lost_ns is None


def test_a_run_from_before_there_were_generations_is_read_as_before(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "old", RUN)
    written = json.loads((folder / "run.json").read_text())
    del written["launch"]
    (folder / "run.json").write_text(json.dumps(written))
    run, where = read_generations(folder)
    assert (run.generation, run.others, where) == (0, {}, folder) and analyze(run).generations == ()
    assert open_next(tmp_path, LAUNCH, name="old").parent == tmp_path


def test_a_start_without_agents_is_impossible(job: Path) -> None:
    written = json.loads((job / "run.json").read_text())
    for agents in ([], ["a0a0"]):
        (job / "run.json").write_text(json.dumps(written | {"launch": written["launch"] | {"agents": agents}}))
        with pytest.raises(DataError, match="launch: a start without agents"):
            read_meta(job)


def test_parts_of_several_hosts_are_gathered_by_generation(job: Path, tmp_path: Path) -> None:
    far = tmp_path / "far"
    for generation, ranks in (("", (2, 3)), ("generation-1", (2, 3)), ("generation-2", (2,))):
        (far / generation / "ranks").mkdir(parents=True)
        for rank in ranks:
            rank_path(job / generation, rank).rename(rank_path(far / generation, rank))
    gathered = gather_folders([far, job], tmp_path / "all")
    assert (gathered.ranks, gathered.own, gathered.generations) == ((0, 1, 2), 1, 3)
    run, _ = read_generations(tmp_path / "all")
    assert [len(each.ranks) for each in (*run.others.values(), run)] == [4, 4, 3] and not run.unread
