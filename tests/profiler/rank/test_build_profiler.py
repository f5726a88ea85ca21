"""What happens once per job: one folder, also where the ranks do not share a file system, or one refusal."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest
from torch.multiprocessing import ProcessExitedException

from distprof.config.schema import HardwareConfig, ProfileConfig
from distprof.errors import UsageError
from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, Clock, ClockReading, LinkReading
from distprof.profiler.job import host_readings, run_files
from distprof.profiler.job.run_files import JobPlan
from distprof.profiler.rank import build_profiler
from distprof.profiler.rank.build_profiler import HostOptions, Job, start_profiler
from distprof.record.gather import background_consumer
from distprof.record.gather.gather import GatherThread
from distprof.record.hosts import clock_sync, link_probe
from distprof.record.hosts.scheduling import SchedulingWatch
from distprof.storage.run_folder import read_run
from distprof.world import World
from tests.ranks import call_on_ranks


def start_job(world: World, runs_dir: str, record: str = "auto", **options: Any) -> Job:
    return start_profiler(
        world,
        JobPlan(
            name="job", strategy="none", precision="fp32", config={"password": "x"}, runs_dir=runs_dir,
            hardware=HardwareConfig(peak=1e9),
        ),
        ProfileConfig(
            level="phases", nvtx=False, nvtx_module_depth=0, window_s=0.05, shadow_every=0, max_overhead_ratio=None,
            record=record,
        ),
        print_line=lambda text: None, **options,
    )  # fmt: skip


def run_steps(job: Job, number: int) -> None:
    for step in range(number):
        with job.profiler.step(warmup=step == 0):
            with job.profiler.phase("forward"):
                pass
            job.profiler.add_work(tokens=10 + step)
            job.profiler.keep_scalars(loss=0.5)


def run_job(world: World, runs_dir: str) -> None:
    job = start_job(world, runs_dir)
    run_steps(job, 3)
    job.profiler.close()


def work_on_one_host(world: World, runs_dir: str) -> None:
    seen: list[FloatArray] = []
    job = start_job(world, runs_dir, host=HostOptions(on_start=lambda meta, ranks, folder: seen.append))
    assert [info.rank for info in job.ranks] == [0, 1]
    run_steps(job, 5)
    job.profiler.close()
    job.profiler.close()  # a second time changes nothing
    if world.rank == 0:
        steps = [int(step) for rows in seen for step in rows[0, :, COLUMN["step"]]]
        assert steps == [0, 1, 2, 3, 4] and all(rows.shape[0] == 2 for rows in seen)
        run = read_run(job.folder)  # what rank 0 does next: every rank's file is whole by now
        assert [info.ended for info in run.ranks] == ["completed"] * 2
        assert run.column("tokens").tolist() == [[10, 11, 12, 13, 14]] * 2
        assert run.phase_ns(Clock.HOST).sum(axis=2).tolist() == run.step_ns(Clock.HOST).tolist()
        assert run.meta.config["password"] == "[redacted]"
        readings = [(reading.rank, reading.offset_ns, reading.bound_ns) for reading in run.meta.clock_readings]
        assert readings == [(0, 0, 0), (1, 0, 0)] * 2 and run.meta.link_readings == ()
        first, _, last, _ = (reading.at_ns for reading in run.meta.clock_readings)
        assert first < run.column("begin_host_ns").min() and run.column("begin_host_ns").max() < last


def share_cores(world: World, runs_dir: str) -> None:
    windows_s: list[float] = []

    def make(**options: Any) -> GatherThread:
        windows_s.append(options["window_s"])
        return GatherThread(**options)

    build_profiler.GatherThread = make  # type: ignore[assignment,misc]
    for record, ranks_per_core in (("auto", 1.0), ("auto", 3.0), ("auto", 64.0), ("all", 3.0)):
        SchedulingWatch.count_ranks_per_core = lambda self, local_ranks, shared=ranks_per_core: shared  # type: ignore[method-assign,misc]
        start_job(world, runs_dir, record).profiler.close()
    assert windows_s == pytest.approx([0.05, 0.15, 0.2, 0.05])


def test_ranks_that_share_a_core_gather_less_often_unless_all_is_to_be_recorded(tmp_path: Path) -> None:
    call_on_ranks(1, share_cores, str(tmp_path / "runs"), tmp_path=tmp_path)


def test_ranks_of_one_host_share_a_folder(tmp_path: Path) -> None:
    call_on_ranks(2, work_on_one_host, str(tmp_path / "runs"), tmp_path=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    assert sorted(path.name for path in (folder / "ranks").iterdir()) == ["rank-00000.jsonl", "rank-00001.jsonl"]


def work_on_two_hosts(world: World, runs_dir: str, elsewhere: str) -> None:
    clock_sync.identify_clock = link_probe.identify_host = lambda: f"host {world.rank}"
    if world.rank == 1:  # its disk is another one
        agreed = build_profiler.agree_on_folder
        build_profiler.agree_on_folder = lambda *args, **options: (Path(elsewhere), *agreed(*args, **options)[1:])  # type: ignore[assignment]
    run_job(world, runs_dir)


def test_rank_0_writes_for_a_rank_that_cannot_see_its_folder(tmp_path: Path) -> None:
    call_on_ranks(2, work_on_two_hosts, str(tmp_path / "runs"), str(tmp_path / "b"), tmp_path=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    run = read_run(folder)
    assert [info.rank for info in run.ranks] == [0, 1] and [info.ended for info in run.ranks] == ["completed"] * 2
    assert run.column("tokens").tolist() == [[10, 11, 12]] * 2
    readings = run.meta.clock_readings
    assert [reading.rank for reading in readings] == [0, 1] * 2
    assert [link.rank for link in run.meta.link_readings] == [link.rank for link in run.meta.last_link_readings] == [1]
    assert all(abs(reading.offset_ns) <= reading.bound_ns for reading in readings)  # in truth they share a clock
    assert [reading.bound_ns > 0 for reading in readings] == [False, True] * 2
    assert (tmp_path / "b" / "ranks" / "rank-00001.jsonl").is_file()  # and the rank has a file of its own


def read_no_clock(world: World, runs_dir: str) -> None:
    def fail(group: object) -> tuple[ClockReading, ...]:
        raise RuntimeError("Connection closed by peer\nmore")

    host_readings.read_clocks = fail
    run_job(world, runs_dir)


def test_clocks_that_cannot_be_read_cost_a_note_and_no_job(tmp_path: Path) -> None:
    call_on_ranks(2, read_no_clock, str(tmp_path / "runs"), tmp_path=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    run = read_run(folder)
    assert [info.ended for info in run.ranks] == ["completed"] * 2 and run.meta.clock_readings == ()
    note = "host clocks were not read at the {} of the job: Connection closed by peer"
    assert run.meta.notes == (note.format("start"), note.format("end"))


def lose_a_link(world: World, runs_dir: str) -> None:
    def fail(group: object, *, limit_s: float | None = None) -> tuple[LinkReading, ...]:
        if limit_s is None:
            return (LinkReading(rank=1, bytes_per_s=1e9),)
        raise RuntimeError("Connection closed by peer\nmore")

    host_readings.probe_links = fail
    run_job(world, runs_dir)


def test_a_link_that_cannot_be_probed_again_costs_a_note_and_no_reading_of_a_clock(tmp_path: Path) -> None:
    call_on_ranks(2, lose_a_link, str(tmp_path / "runs"), tmp_path=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    meta = read_run(folder).meta
    assert len(meta.clock_readings) == 4 and len(meta.link_readings) == 1 and meta.last_link_readings == ()
    assert meta.notes == ("links between hosts were not probed at the end of the job: Connection closed by peer",)


def refuse_together(world: World, file: str, readonly: str, runs_dir: str) -> None:
    for place in (file, readonly):
        with pytest.raises(UsageError, match="cannot make the run folder"):
            start_job(world, place)
    written, opened = run_files.write_meta, run_files.StreamWriter

    def refuse(*args: object, **options: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    if world.rank == 0:
        run_files.write_meta = refuse
    with pytest.raises(UsageError, match=r"rank 0 on test-host cannot write there .No space left on device"):
        start_job(world, runs_dir)
    run_files.write_meta = written
    if world.rank == 1:
        run_files.StreamWriter = refuse  # type: ignore[assignment,misc]
    with pytest.raises(UsageError, match=r"rank 1 on test-host cannot write there .No space left on device"):
        start_job(world, runs_dir)
    run_files.StreamWriter = opened  # type: ignore[misc]
    start_job(world, runs_dir).profiler.close()  # nobody waits for what another rank has left


def test_fault_09_all_ranks_leave_together_when_there_is_no_folder_or_none_to_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    places = str(tmp_path / "file"), "/proc/distprof", str(tmp_path / "runs")  # in /proc nobody makes a folder
    call_on_ranks(2, refuse_together, *places, tmp_path=tmp_path)


def fail_alone(world: World, runs_dir: str) -> None:
    job = start_job(world, runs_dir)
    run_steps(job, 2)
    try:
        with job.profiler.step(), job.profiler.phase("backward"):
            raise ZeroDivisionError("no luck")
    except ZeroDivisionError as error:
        job.profiler.close(error)  # on both, and neither waits for the other
    os._exit(0)  # as a failed job leaves: the background thread may still wait for a rank that is gone


def test_a_failure_is_written_by_each_rank_for_itself(tmp_path: Path) -> None:
    call_on_ranks(2, fail_alone, str(tmp_path / "runs"), tmp_path=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    run = read_run(folder)
    assert [info.ended for info in run.ranks] == ["failed"] * 2
    assert run.ranks[1].error == "ZeroDivisionError: no luck" and "fail_alone" in (run.ranks[1].traceback or "")
    assert run.column("failed").tolist() == [[0, 0, 1]] * 2


def test_phases_are_named_and_belong_into_a_step(tmp_path: Path) -> None:
    call_on_ranks(1, misuse, str(tmp_path / "runs"), tmp_path=tmp_path)


def misuse(world: World, runs_dir: str) -> None:
    profiler = start_job(world, runs_dir).profiler
    with pytest.raises(ValueError, match="no such phase: 'sleep'"):
        profiler.phase("sleep")
    with pytest.raises(ValueError, match="outside"), profiler.phase("data"):
        pass
    assert profiler.phase("data") is profiler.phase("data")  # nothing is allocated per use
    profiler.close()


def be_deaf(meta: Any, ranks: Any, folder: Path) -> Any:
    def take(rows: FloatArray) -> None:
        threading.Event().wait()

    return take


def never_begin(meta: Any, ranks: Any, folder: Path) -> Any:
    threading.Event().wait()


def work_beside_the_deaf(world: World, runs_dir: str) -> None:
    background_consumer.CALL_LIMIT_S = 1.0
    for on_start in (be_deaf, never_begin):
        job = start_job(world, runs_dir, host=HostOptions(on_start=on_start))
        run_steps(job, 5)
        job.profiler.close()
        if world.rank == 0:
            run = read_run(job.folder)
            assert [info.ended for info in run.ranks] == ["completed"] * 2
            assert run.column("tokens").tolist() == [[10, 11, 12, 13, 14]] * 2
            assert run.meta.notes[0].startswith("5 step(s) were not shown while the job ran: ")
            assert len(run.meta.clock_readings) == 4  # those of the end too


def test_fault_31_a_callback_that_blocks_holds_no_rank_up(tmp_path: Path) -> None:
    call_on_ranks(2, work_beside_the_deaf, str(tmp_path / "runs"), tmp_path=tmp_path)


def leave_by(error: BaseException, world: World, runs_dir: str) -> None:
    job = start_job(world, runs_dir)
    run_steps(job, 2)
    try:
        with job.profiler.step(), job.profiler.phase("backward"):
            raise error
    except BaseException as raised:
        job.profiler.close(raised)
    told = read_run(job.folder).ranks[0]
    expected = {
        "5": ("failed", "exit code 5"), "no disk": ("failed", "exit code 1: no disk"),
        "0": ("terminated", "exit code 0"), "": ("terminated", "KeyboardInterrupt"),
    }  # fmt: skip
    assert (told.ended, told.error) == expected[str(error)]
    assert ("leave_by" in (told.traceback or "")) == (told.ended == "failed")
    assert told.notes[-1] == "error: phase backward was left by an exception, in 1 step(s), first in step 2"


def fork_inside(world: World, runs_dir: str) -> None:
    job = start_job(world, runs_dir)
    run_steps(job, 2)
    child = os.fork()
    if child == 0:  # as a worker of a DataLoader that inherits everything and ends as it likes
        run_steps(job, 3)
        job.profiler.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    run_steps(job, 1)
    job.profiler.close()
    assert read_run(job.folder).column("step").tolist() == [[0, 1, 2]]
    assert read_run(job.folder).ranks[0].ended == "completed"


def leave_in_every_way(world: World, runs_dir: str) -> None:
    fork_inside(world, runs_dir)
    for error in (SystemExit(5), SystemExit("no disk"), SystemExit(0), KeyboardInterrupt()):
        leave_by(error, world, runs_dir)


def test_fault_29_a_forked_process_writes_nothing_and_who_leaves_early_says_how(tmp_path: Path) -> None:
    call_on_ranks(1, leave_in_every_way, str(tmp_path / "runs"), tmp_path=tmp_path)


def be_told_to_leave(world: World, runs_dir: str) -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    job = start_job(world, runs_dir)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # the program's own
    job.profiler.close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    job = start_job(world, runs_dir)
    run_steps(job, 2)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(60)
    raise AssertionError("it was told to leave")


def test_fault_33_a_program_that_handles_no_signals_has_the_end_written(tmp_path: Path) -> None:
    with pytest.raises(ProcessExitedException) as left:
        call_on_ranks(1, be_told_to_leave, str(tmp_path / "runs"), tmp_path=tmp_path)
    assert left.value.exit_code == -signal.SIGTERM  # as without us
    _, folder = sorted((tmp_path / "runs").iterdir())
    (told,) = read_run(folder).ranks
    assert (told.ended, told.error) == ("terminated", "SIGTERM between two steps")
